"""Marks rows by their place: those of erased records, by leader epoch and offset, and those at given offsets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidemark.decode.schema import copied, numpy_values
from tidemark.formats.raw.masks import Mask
from tidemark.intervals import Intervals
from tidemark.kafka_log import Lineage


class OffsetMask:
    """The erased offsets of a partition, by leader epoch."""

    def __init__(
        self,
        masks: Iterable[Mask] = (),
        without: Iterable[tuple[int, int]] = (),
        *,
        restores: tuple[int, ...] | None = None,
    ) -> None:
        """The offsets of ``masks``, apart from those in the half-open ranges ``without``.

        In a log with ``restores``, each counts up to where the log of its records parts from that.
        """
        by_epoch: dict[int, list[NDArray[np.int64]]] = {}
        for mask in masks:
            parted = None if restores is None else Lineage(restores=restores).parted_at(mask.restores)
            for part in mask.epochs:
                offsets = np.cumsum(np.fromiter(part.deltas, np.int64))
                by_epoch.setdefault(part.epoch, []).append(offsets if parted is None else offsets[offsets < parted])
        self._offsets = {epoch: _distinct(np.concatenate(parts)) for epoch, parts in by_epoch.items()}
        for start, end in without:
            for epoch, offsets in self._offsets.items():
                low, high = np.searchsorted(offsets, [start, end])
                self._offsets[epoch] = np.delete(offsets, slice(low, high))

    def __bool__(self) -> bool:
        return bool(self._offsets)

    def rows(self, rows: pa.RecordBatch) -> NDArray[np.bool_]:
        """A mask of the rows that are erased; ``rows`` have the columns of :data:`tidemark.decode.SCHEMA`."""
        return self.among(_integers(rows, "kafka_offset"), _integers(rows, "kafka_leader_epoch"))

    def without(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The ``rows`` that are not erased. If some are, it is a copy, which has no byte of them."""
        if not self or not (erased := self.rows(rows)).any():
            return rows
        return copied(rows, np.flatnonzero(~erased))

    def among(self, offsets: NDArray[np.int64], epochs: NDArray[Any]) -> NDArray[np.bool_]:
        """A mask of the erased among ``offsets`` of ``epochs``."""
        erased = np.zeros(len(offsets), np.bool_)
        if not self or not len(offsets):
            return erased
        for epoch in np.unique(epochs).tolist():
            known = self._offsets.get(epoch, _NONE)
            if len(known):
                at = np.minimum(np.searchsorted(known, offsets), len(known) - 1)
                erased |= (epochs == epoch) & (known[at] == offsets)
        return erased

    def of_epoch(self, epoch: int, start: int, end: int) -> NDArray[np.int64]:
        """The erased offsets of ``epoch`` in ``[start, end)``, ascending."""
        offsets = self._offsets.get(epoch, _NONE)
        low, high = np.searchsorted(offsets, [start, end])
        return offsets[low:high]

    def between(self, start: int, end: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The erased offsets of ``[start, end)``, and their epochs."""
        found = []
        for epoch, offsets in self._offsets.items():
            low, high = np.searchsorted(offsets, [start, end])
            found.append((offsets[low:high], np.full(high - low, epoch)))
        if not found:
            return _NONE, _NONE
        return np.concatenate([offsets for offsets, _ in found]), np.concatenate([epochs for _, epochs in found])


def rows_at(rows: pa.Table | pa.RecordBatch, places: Mapping[tuple[int, int], Intervals]) -> NDArray[np.bool_]:
    """A mask of the rows at one of the ``places``: offsets by (incarnation, partition)."""
    incarnations, partitions, offsets = (
        numpy_values(rows.column(name)) for name in ("kafka_incarnation", "kafka_partition", "kafka_offset")
    )
    mask = np.zeros(len(offsets), np.bool_)
    for (incarnation, partition), wanted in places.items():
        edges = np.array(wanted.parts, np.int64).ravel()  # an offset inside follows an odd number of edges
        inside = np.searchsorted(edges, offsets, "right") % 2 == 1
        mask |= inside & (incarnations == incarnation) & (partitions == partition)
    return mask


def _distinct(offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """The ``offsets``, ascending and each once. numpy's own takes a second for a million."""
    ordered = np.sort(offsets)
    return ordered[np.diff(ordered, prepend=-1) > 0]


def _integers(rows: pa.RecordBatch, name: str) -> Any:
    return rows.column(name).to_numpy(zero_copy_only=False)


_NONE: Final = np.empty(0, np.int64)
