"""One task: converts consecutive byte ranges of a partition to Parquet files by date, and evidence. Pure worker code.

This code does not depend on Spark. A task's output depends only on its plan and the raw bytes, so repeated and
concurrent runs write the same objects. Memory is bounded by one window of a segment and the open row groups.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import groupby, pairwise
from typing import Final, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidemark.errors import ContinuityError, NotFound, PreconditionFailed, SegmentError, StoreError
from tidemark.formats.table.plan import SegmentRange, SegmentTask
from tidemark.kafka_log import BatchHeader
from tidemark.store import open_store
from tidemark.table.evidence import MAX_RUNS, EvidenceRow
from tidemark_spark.convert.classify import BatchVerdict, PartitionRules, Run, judge, missing, without
from tidemark_spark.convert.date_partitioner import numbers, take
from tidemark_spark.convert.guard import decoded, pass_on
from tidemark_spark.convert.read_ahead import Ahead, read_ahead
from tidemark_spark.convert.row_order import ascending
from tidemark_spark.convert.row_sink import Sink
from tidemark_spark.convert.segment_reader import ReadWindow, windows
from tidemark_spark.model import Job, Outcome, Stop

_OUTAGE_SECONDS: Final = 15.0
"""Seconds in which a pack that the store failed to return is not requested again: less than between two landings.

Many ranges of a landing, of many partitions and topics, lie in the same pack. If each of them waited for the store as
long as the first, ranges of other packs would also land late.
"""
_outages: dict[tuple[str, str], tuple[float, str]] = {}
"""By store and key of the pack: the time of its last failure in this worker, and the reason."""


def converted(job: Job, task: SegmentTask, *, waits: bool = False) -> Outcome:
    """Convert ``task``; see :class:`Conversion`. Raises the errors of :meth:`tidemark_spark.kinds.kind.Kind.work`."""
    with Sink(job, task) as sink:
        conversion = Conversion(job, task, sink, waits=waits)
        stop = conversion.run()
        files, evidence = sink.close()
        return Outcome(
            incarnation=task.incarnation,
            partition=task.partition,
            from_offset=task.from_offset,
            next_offset=conversion.next_offset,
            files=tuple(files),
            evidence=(*evidence, *conversion.evidence),
            stop=stop,
            bytes_read=conversion.bytes_read,
            other_rows=sink.other_rows,
            unknown=sink.unknown,
        )


class RecordSink(Protocol):
    """Receives the records of a conversion."""

    def rows(self, number: int, part: SegmentRange, rows: pa.RecordBatch, refusal: str | None) -> None:
        """Take decoded rows of ``part``, the range ``number``; a ``refusal`` refuses all of them."""
        ...

    def batch(
        self, number: int, part: SegmentRange, header: BatchHeader, data: bytes, rule: str, span: tuple[int, int]
    ) -> int:
        """Take a batch that ``rule`` makes undecodable; returns the number of its offsets."""
        ...


class Conversion:
    """A running task: ``next_offset`` is the first offset without a class.

    One that ``waits`` for what cannot be read now ends there, and its rows land later; any other needs all its ranges.
    """

    def __init__(self, job: Job, task: SegmentTask, sink: RecordSink, *, waits: bool = False) -> None:
        self._job, self._task, self._sink, self._waits = job, task, sink, waits
        self._rules = PartitionRules.of(job.partitions[task.incarnation, task.partition], job.options)
        self.next_offset = task.from_offset
        self.evidence: list[EvidenceRow] = []
        self.bytes_read = 0

    def run(self) -> Stop | None:
        """Convert all ranges in order; returns the reason for an early end, or None."""
        wanted = self._task.ranges
        outages = ((number, _known_outage(part)) for number, part in enumerate(wanted) if self._may_wait(part))
        end, outage = next(((number, reason) for number, reason in outages if reason), (len(wanted), None))
        with closing(read_ahead(wanted[:end], self._job.options)) as ranges:
            for number, (part, ahead) in enumerate(ranges):
                runs: list[Run] = []
                stop = self._range(number, part, ahead, runs)
                self.evidence += [_evidence(self._task, part, run) for run in _folded(runs)]
                if stop:
                    # A seal has, or will have, a second copy of a pack: nothing is lost.
                    waits = part.is_packed and stop.kind != "moved"
                    return replace(stop, kind="unread") if waits else stop
        return Stop(self.next_offset, wanted[end].to_offset, "unread", outage) if outage else None

    def _may_wait(self, part: SegmentRange) -> bool:
        """True if the rows of ``part`` may land later."""
        return part.is_packed and self._waits

    def _range(self, number: int, part: SegmentRange, ahead: Ahead | None, runs: list[Run]) -> Stop | None:
        remaining = windows(open_store(part.store, self._job.options), part, ahead)
        while True:
            try:
                window = next(remaining, None)
            except (PreconditionFailed, NotFound) as error:
                if isinstance(error, NotFound) and part.referred and self._waits:
                    why = f"{part.store}/{part.key}: its owner, another system, has deleted it"
                    return Stop(self.next_offset, part.to_offset, "lost", why)
                return Stop(self.next_offset, part.to_offset, "moved", str(error))
            except StoreError as error:
                if not self._may_wait(part):
                    raise
                _note_outage(part, error)
                return Stop(self.next_offset, part.to_offset, "unread", str(error))
            if window is None:
                break
            self.bytes_read += len(window.data)
            stop = self._window(number, part, window, runs)
            if stop:
                return stop
        if self.next_offset == part.to_offset:
            return None
        if not part.compacted:
            return missing(part, self.next_offset, part.to_offset)
        end = part.to_offset
        erased = self._rules.erased(self.next_offset, end, compacted=True)
        self._pass([Run.whole("compacted", self.next_offset, end)], erased, end, 0, runs)
        return None

    def _window(self, number: int, part: SegmentRange, window: ReadWindow, runs: list[Run]) -> Stop | None:
        verdict = judge(window.headers, self.next_offset, part, self._rules)
        erased, without_record = self._decode(number, part, window, verdict)
        self._pass(verdict.runs, erased, verdict.next_offset, without_record, runs)
        if verdict.stop is None and window.damage:
            return Stop(self.next_offset, window.damage.end, "corrupt", str(window.damage.error))
        return verdict.stop

    def _pass(
        self, passed: Sequence[Run], erased: NDArray[np.int64], end: int, without_record: int, runs: list[Run]
    ) -> None:
        """Move on to ``end``, and add to ``runs`` the classes of all offsets whose records went to no sink.

        Of ``without_record`` offsets in data batches, some are ``erased``. So may be offsets of ``passed`` that were
        compacted away: an erased offset has its class whether the bytes still hold its record or not. Markers and
        aborted records keep theirs.
        """
        compacted = [run for run in passed if run.offset_class == "compacted"]
        for run in passed:
            if run.offset_class != "compacted":
                runs.append(run)
                erased = erased[(erased < run.start) | (erased >= run.end)]
        left = without(compacted, erased)
        runs += [*left, *(Run.whole("erased", offset, offset + 1) for offset in erased.tolist())]
        within = sum(run.rows for run in compacted) - sum(run.rows for run in left)
        if emptied := without_record - (len(erased) - within):
            runs.append(Run("compacted", self.next_offset, end, emptied))
        self.next_offset = end

    def _decode(
        self, number: int, part: SegmentRange, window: ReadWindow, verdict: BatchVerdict
    ) -> tuple[NDArray[np.int64], int]:
        """Send the records of the data batches to the sink.

        Returns:
            the erased offsets, and the number of the batches' offsets that have no record, or an erased one.
        """
        mask = self._rules.mask
        gone = self._rules.erased(self.next_offset, verdict.next_offset, compacted=part.compacted)
        hidden: list[NDArray[np.int64]] = []
        refused: list[tuple[BatchHeader, SegmentError]] = []
        last, count = self.next_offset - 1, 0
        for rows in decoded(
            self._job,
            window.data,
            verdict.data,
            name=part.key,
            partition=self._task.partition,
            incarnation=self._task.incarnation,
            from_offset=max(part.from_offset, self.next_offset),
            to_offset=part.to_offset,
            position=window.position,
            on_refused=lambda header, error: refused.append((header, error)),
        ):
            last = ascending(rows, last, part.key)
            if mask:
                erased, offsets = mask.rows(rows), numbers(rows.column("kafka_offset"))
                hidden.append(offsets[erased])
                gone = np.setdiff1d(gone, offsets)
                chosen = take(rows, np.flatnonzero(~erased)) if erased.any() else rows
            else:
                chosen = rows
            if not len(chosen):
                continue
            count += len(chosen)
            for origin, run in by_shipping(part, chosen):
                pass_on(self._sink.rows, self._job, number, origin, run)
        for header, error in sorted(refused, key=lambda refusal: refusal[0].base_offset):
            start = header.position - window.position
            data = window.data[start : start + header.size]
            span = max(header.base_offset, part.from_offset), min(header.next_offset, part.to_offset)
            if mask:
                gone = self._without_batch(part, header, error, gone)
            origin = _shipped_at(part, header.base_offset)
            count += self._sink.batch(number, origin, header, data, error.detail, span)
        found = count + sum(map(len, hidden))
        if verdict.records is not None and found != verdict.records:
            raise ContinuityError(f"{part.key}: headers announce {verdict.records} records, {found} were found")
        return np.sort(np.concatenate([gone, *hidden])), verdict.span - count

    def _without_batch(
        self, part: SegmentRange, header: BatchHeader, error: SegmentError, gone: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """``gone`` without the offsets of a batch that cannot be decoded, and goes to quarantine.

        Raises:
            ContinuityError: it has an erased record, which cannot be taken out.
        """
        offsets = np.arange(header.base_offset, header.next_offset)
        if self._rules.mask.among(offsets, np.full(len(offsets), header.leader_epoch)).any():
            raise ContinuityError(
                f"{part.key}: the batch at byte {header.position} has erased records and cannot be decoded: "
                f"{error.detail}; quarantine would keep its bytes: install the version that landed it"
            )
        return np.setdiff1d(gone, offsets)


def _note_outage(part: SegmentRange, error: StoreError) -> None:
    """Remember that the pack of ``part`` could not be read."""
    now = time.monotonic()
    for pack in [pack for pack, (at, _) in _outages.items() if now - at >= _OUTAGE_SECONDS]:
        del _outages[pack]
    _outages[part.store, part.key] = now, str(error)


def _known_outage(part: SegmentRange) -> str | None:
    """The reason why the pack of ``part`` could recently not be read; None if there was no such failure."""
    at, reason = _outages.get((part.store, part.key), (0.0, None))
    return reason if reason is not None and time.monotonic() - at < _OUTAGE_SECONDS else None


def _folded(runs: list[Run]) -> list[Run]:
    """Runs with touching runs of a class joined; more than MAX_RUNS runs of a class become one, unless it is erased."""
    folded: list[Run] = []
    for name, group in groupby(sorted(runs), key=lambda run: run.offset_class):
        joined: list[Run] = []
        for run in group:
            if joined and joined[-1].end == run.start:
                joined[-1] = Run(name, joined[-1].start, run.end, joined[-1].rows + run.rows)
            else:
                joined.append(run)
        if len(joined) > MAX_RUNS and name != "erased":
            end = max(run.end for run in joined)
            joined = [Run(name, joined[0].start, end, sum(run.rows for run in joined))]
        folded += joined
    return folded


def _evidence(task: SegmentTask, part: SegmentRange, run: Run) -> EvidenceRow:
    return EvidenceRow(
        incarnation=task.incarnation,
        partition=task.partition,
        first=run.start,
        next=run.end,
        offset_class=run.offset_class,
        rows=run.rows,
        segment=part.key,
        byte_start=part.start,
        byte_end=part.end,
    )


def by_shipping(part: SegmentRange, rows: pa.RecordBatch) -> Iterator[tuple[SegmentRange, pa.RecordBatch]]:
    """``rows`` of ``part``, ascending by offset, in runs of one shipping time, each with ``part`` as of that time.

    A range of a pack was shipped as a whole. A seal lists its parts that had been packed before, so that its records
    get the same class and date from both.
    """
    if not part.shipped:
        yield part, rows
        return
    edges = sorted({edge for shipped in part.shipped for edge in (shipped.first, shipped.next)})
    offsets = numbers(rows.column("kafka_offset"))
    bounds = sorted({0, *np.searchsorted(offsets, np.array(edges, np.int64)).tolist(), len(rows)})
    for start, end in pairwise(bounds):
        yield _shipped_at(part, int(offsets[start])), rows.slice(start, end - start)


def _shipped_at(part: SegmentRange, offset: int) -> SegmentRange:
    """``part`` with the time at which ``offset`` was shipped."""
    at = next((shipped.at for shipped in part.shipped if shipped.first <= offset < shipped.next), part.uploaded_at)
    return part if at == part.uploaded_at else part.model_copy(update={"uploaded_at": at})
