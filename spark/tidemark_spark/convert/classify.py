"""Gives every offset of a range a class, batch by batch, or stops the task there.

A batch accounts for its base offset up to base + last offset delta, which compaction keeps. So offsets between two
batches are missing: compacted away in a compacted segment, LOST in any other. Offsets within a batch that have no
record were compacted away too: neither producers nor brokers leave holes in a batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tidemark import decode
from tidemark.decode.offset_mask import OffsetMask
from tidemark.formats.table.plan import PartitionPlan, SegmentRange
from tidemark.kafka_log import AbortedTransaction
from tidemark.kafka_log.batch import CONTROL
from tidemark.raw.masks import mask_of
from tidemark.store import StoreOptions, open_store
from tidemark.table.evidence import OffsetClass
from tidemark_spark.model import Stop


class Run(NamedTuple):
    """The class of ``rows`` of the offsets ``[start, end)``: of all of them, unless other classes lie between."""

    offset_class: OffsetClass
    start: int
    end: int
    rows: int

    @classmethod
    def whole(cls, offset_class: OffsetClass, start: int, end: int) -> Run:
        """All offsets ``[start, end)``."""
        return cls(offset_class, start, end, end - start)


class BatchVerdict(NamedTuple):
    """The classification of the batches of a window.

    ``data`` are the batches to decode, which account for ``span`` offsets and hold ``records`` records. That number is
    None if only decoding shows it: in v0 and v1, or where a batch lies across an end of the range. All offsets below
    ``next_offset`` are in ``runs`` or in ``span``.
    """

    data: decode.Headers
    span: int
    records: int | None
    runs: list[Run]
    next_offset: int
    stop: Stop | None


class PartitionRules(NamedTuple):
    """The rules of a partition's plan for its batches: the lineage, the aborted transactions, the erased offsets."""

    epochs: NDArray[np.int64]
    starts: NDArray[np.int64]
    aborted: tuple[AbortedTransaction, ...]
    mask: OffsetMask

    @classmethod
    def of(cls, plan: PartitionPlan, options: StoreOptions) -> PartitionRules:
        """The rules of ``plan``; reads its masks.

        Raises:
            FormatError: a mask does not parse.
            StoreError: a mask cannot be read.
        """
        lineage = np.array(plan.lineage, np.int64).reshape(-1, 2)
        mask = OffsetMask()
        if plan.masks is not None:
            store = open_store(plan.masks.store, options)
            masks = [mask_of(store, key) for key in plan.masks.keys]
            mask = OffsetMask(masks, plan.masks.spared, restores=plan.restores)
        return cls(lineage[:, 0], lineage[:, 1], plan.aborted, mask)

    def erased(self, start: int, end: int, *, compacted: bool) -> NDArray[np.int64]:
        """The erased offsets of ``[start, end)`` on the lineage, ascending."""
        offsets, epochs = self.mask.between(start, end)
        return np.unique(offsets[self._on_lineage(offsets, epochs, compacted=compacted)])

    def epochs_at(self, offsets: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """The epoch that the lineage has at each of ``offsets``; None if one lies below its beginning."""
        if not len(self.starts) or (offsets < self.starts[0]).any():
            return None
        return self.epochs[np.searchsorted(self.starts, offsets, "right") - 1]

    def live(self, headers: decode.Headers, *, compacted: bool) -> NDArray[np.bool_]:
        """A mask of the batches on the lineage. Below its first start no batch contradicts it.

        A batch has the epoch that the lineage has at its offset. This check also finds damage, since no checksum covers
        the epoch. Compaction moves the starts of epochs, and not their ends. So ``compacted`` bytes are judged by ends,
        as in :meth:`tidemark.kafka_log.Lineage.is_live`.
        """
        return self._on_lineage(headers["base_offset"], headers["leader_epoch"], compacted=compacted)

    def _on_lineage(self, base: NDArray[np.int64], epoch: NDArray[Any], *, compacted: bool) -> NDArray[np.bool_]:
        if not len(self.starts):
            return np.ones(len(base), np.bool_)
        live: NDArray[np.bool_] = base < self.starts[0]
        if compacted:
            index = np.searchsorted(self.epochs, epoch, "right") - 1
            ends = np.append(self.starts[1:], np.iinfo(np.int64).max)
            live |= (index >= 0) & (self.epochs[index] == epoch) & (base < ends[index])
        else:
            live |= self.epochs[np.searchsorted(self.starts, base, "right") - 1] == epoch
        return live


def judge(headers: decode.Headers, expected: int, part: SegmentRange, rules: PartitionRules) -> BatchVerdict:
    """Classify the batches of ``headers``; ``expected`` is the next wanted offset."""
    headers = headers[rules.live(headers, compacted=part.compacted)]
    starts, ends = _spans(headers, expected, part)
    wanted = ends > starts
    headers, starts, ends = headers[wanted], starts[wanted], ends[wanted]
    before = np.concatenate([[expected], ends])[:-1]
    runs: list[Run] = []
    stop = None
    holes = np.flatnonzero(starts > before)
    if part.compacted:
        runs += [Run.whole("compacted", int(before[index]), int(starts[index])) for index in holes]
    elif len(holes):
        cut = int(holes[0])
        stop = missing(part, int(before[cut]), int(starts[cut]))
        headers, starts, ends = headers[:cut], starts[:cut], ends[:cut]
    next_offset = int(ends[-1]) if len(ends) else expected
    control = headers["attributes"] & CONTROL != 0
    aborted = decode.aborted_mask(headers, rules.aborted)
    emptied = ~control & ~aborted & (headers["record_count"] == 0)
    classes: Sequence[tuple[OffsetClass, NDArray[np.bool_]]] = (
        ("transaction_marker", control),
        ("aborted", aborted),
        ("compacted", emptied),
    )
    for name, mask in classes:
        runs += [Run.whole(name, int(start), int(end)) for start, end in zip(starts[mask], ends[mask], strict=True)]
    kept = ~(control | aborted | emptied)
    data, spans = headers[kept], (ends - starts)[kept]
    whole = (data["record_count"] >= 0) & (spans == data["last_offset_delta"] + 1)
    records = int(data["record_count"].sum()) if whole.all() else None
    return BatchVerdict(data, int(spans.sum()), records, runs, next_offset, stop)


def without(runs: Iterable[Run], offsets: NDArray[np.int64]) -> list[Run]:
    """``runs`` without ``offsets``, which are ascending: a run of all its offsets is divided there."""
    if not len(offsets):
        return list(runs)
    left: list[Run] = []
    for run in runs:
        low, high = np.searchsorted(offsets, [run.start, run.end])
        edges = [run.start - 1, *offsets[low:high].tolist(), run.end]
        left += [Run.whole(run.offset_class, before + 1, at) for before, at in pairwise(edges) if at > before + 1]
    return left


def missing(part: SegmentRange, start: int, end: int) -> Stop:
    """The stop at a hole."""
    return Stop(start, end, "lost", f"{part.key}: no batch holds offsets {start} to {end - 1}")


def _spans(headers: decode.Headers, expected: int, part: SegmentRange) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The offsets ``[start, end)`` that each batch accounts for, within the range.

    The header of a compressed v0 or v1 message has only its last offset; the message starts where the previous batch
    ends.
    """
    starts = headers["base_offset"].copy()
    ends = starts + headers["last_offset_delta"] + 1
    wrapped = headers["record_count"] < 0
    starts[wrapped] = np.concatenate([[expected], ends])[:-1][wrapped]
    low, high = max(part.from_offset, expected), part.to_offset
    return np.clip(starts, low, high), np.clip(ends, low, high)
