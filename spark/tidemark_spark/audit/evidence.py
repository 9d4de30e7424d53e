"""The two sides of an audit of a partition: its evidence, and the sums of raw and of files, over spans of offsets."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Final

from tidemark.formats.raw.hashsum import combine
from tidemark.formats.table.ledger import Ledger, PartitionState
from tidemark.formats.table.plan import PartitionPlan, RunPlan
from tidemark.intervals import Interval, Intervals
from tidemark.planning.common import following
from tidemark.planning.read import RawPart, joined, plan_reading
from tidemark.raw.partition import RawPartition
from tidemark.raw_topic import RawTopic
from tidemark.table.delta_table import TopicTable
from tidemark.table.evidence import PARSED, EvidenceRow
from tidemark_spark.audit.worker import AuditTask, FileTask, RawTask, Tally, examine
from tidemark_spark.convert.row_checksums import Account, Cells
from tidemark_spark.model import Executor, Job

GROUP_TASKS: Final = 512
"""Tasks whose findings are processed at a time."""


def examined(
    table: TopicTable, ledger: Ledger, plans: Iterable[PartitionPlan], tasks: Sequence[AuditTask], executor: Executor
) -> Iterator[Tally]:
    """Results of ``tasks``, which belong to the partitions of ``plans``, with the current settings."""
    plan = RunPlan(**following(table, ledger, 0), kind="rebuild", partitions=tuple(plans))
    job = Job.of(table, plan)
    for start in range(0, len(tasks), GROUP_TASKS):
        yield from executor.on_each(examine, job, tasks[start : start + GROUP_TASKS])


At = tuple[str, str]
"""A class of rows, and a date or an empty text."""

Sums = dict[int, dict[At, Account]]
"""Accounts by the start of their span."""


@dataclass
class PartitionUnderAudit:
    """A partition under audit. ``spans`` are disjoint, and contain every row of evidence and range of raw.

    Unless it is ``whole``, only some of its dates are audited, and rows of other dates may be missing in ``evidence``.
    ``tiered`` are offsets without a segment that only Kafka's own remote tier has.
    """

    state: PartitionState
    evidence: list[EvidenceRow]
    raw: RawPart
    spans: list[Interval]
    chosen: list[Interval]
    tasks: list[AuditTask]
    files: dict[str, FileTask]
    whole: bool
    raw_sums: Sums = field(default_factory=dict)
    file_sums: Sums = field(default_factory=dict)
    passed: dict[tuple[int, str], list[Interval]] = field(default_factory=dict)
    passed_rows: dict[tuple[int, str], int] = field(default_factory=dict)
    gone: Intervals = field(default_factory=Intervals)
    damaged: Intervals = field(default_factory=Intervals)
    unread: set[str] = field(default_factory=set)
    tiered: Intervals = field(default_factory=Intervals)

    def span_at(self, offset: int) -> Interval | None:
        """The span that holds ``offset``, or None."""
        index = bisect_right(self.spans, offset, key=lambda span: span.start) - 1
        return self.spans[index] if index >= 0 and offset < self.spans[index].end else None


class Said:
    """The statements of a partition's evidence, by span."""

    def __init__(self, part: PartitionUnderAudit) -> None:
        self.spans: dict[int, dict[At, tuple[int, int]]] = {}
        self.files: dict[tuple[int, str, str], set[str]] = {}
        self.passed: dict[tuple[int, str], list[Interval]] = {}
        self.passed_rows: dict[tuple[int, str], int] = {}
        self.counted: dict[int, int] = {}
        self.expired: dict[int, int] = {}
        self.unsummed: set[int] = set()
        """The spans with past rows without a sum: some that retention removed were erased later."""
        self.sources: dict[int, set[str]] = {}
        """The objects from which the records of a span were read when they landed."""
        self._configurations: dict[int, set[str]] = {}
        self._never: set[int] = set()
        for row in part.evidence:
            span = part.span_at(row.first)
            if span is None:
                continue
            self.counted[span.start] = self.counted.get(span.start, 0) + row.rows
            self._configurations.setdefault(span.start, set()).add(row.configuration)
            if row.segment is None:
                self._never.add(span.start)
            elif row.offset_class in PARSED or row.offset_class == "expired":
                if row.offset_class == "expired":
                    self.expired[span.start] = self.expired.get(span.start, 0) + row.rows
                    self.unsummed |= {span.start} if row.hash128 is None else set()
                self.sources.setdefault(span.start, set()).add(row.segment)
                at = row.offset_class, row.day
                sums = self.spans.setdefault(span.start, {})
                rows, total = sums.get(at, (0, 0))
                sums[at] = rows + row.rows, combine(total, row.hash128 or 0)
                self.files.setdefault((span.start, *at), set()).add(row.file or "")
            else:
                key = span.start, row.offset_class
                self.passed_rows[key] = self.passed_rows.get(key, 0) + row.rows
                if row.rows == row.next - row.first:
                    self.passed.setdefault(key, []).append(Interval(row.first, row.next))

    def segmentless(self, span: Interval) -> bool:
        """True if no segment ever held the offsets of ``span``."""
        return span.start in self._never

    def records_alone(self, table: TopicTable, span: Interval) -> bool:
        """True if raw can prove only the records of ``span``, not their classes and dates.

        They landed with other settings than the topics file has now, or retention has removed some from the table.
        """
        return span.start in self.expired or self.other_settings(table, span)

    def other_settings(self, table: TopicTable, span: Interval) -> bool:
        """True if rows of ``span`` landed with other settings than the topics file has now."""
        return not self._configurations.get(span.start, set()) <= {table.topic.digest}


def hulls_of(evidence: Iterable[EvidenceRow]) -> list[Interval]:
    """Offsets of each range of bytes in the evidence."""
    hulls: dict[tuple[str, int, int], Interval] = {}
    alone: list[Interval] = []
    for row in evidence:
        if row.segment is None:
            alone.append(Interval(row.first, row.next))
            continue
        at = row.segment, row.byte_start or 0, row.byte_end or 0
        before = hulls.get(at, Interval(row.first, row.next))
        hulls[at] = Interval(min(before.start, row.first), max(before.end, row.next))
    return joined([*alone, *hulls.values()])


def touching(spans: Sequence[Interval], start: int, end: int) -> list[Interval]:
    """The members of ``spans``, disjoint and ascending, that overlap ``[start, end)``."""
    first = bisect_right(spans, start, key=lambda span: span.end)
    return list(spans[first : bisect_left(spans, end, key=lambda span: span.start)])


def cells_of(spans: Sequence[Interval], start: int, end: int) -> Cells:
    """The spans that overlap ``[start, end)``."""
    overlapping = touching(spans, start, end)
    return Cells(tuple(span.start for span in overlapping), tuple(span.end for span in overlapping))


def date_of(path: str) -> str:
    """The date in a file's path, or an empty text."""
    text = path.partition("/")[0].removeprefix("dt=")
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError:
        return ""


def planned(
    raw: RawTopic,
    state: PartitionState,
    evidence: list[EvidenceRow],
    dates: frozenset[str],
    spared: Intervals | None,
) -> PartitionUnderAudit:
    """A partition with its tasks, given its evidence in force; with ``dates``, only the spans of their offsets.

    ``spared`` are its masked offsets that have another class than ``erased``.
    """
    hulls = hulls_of(evidence)
    if dates:
        wanted = joined((row.first, row.next) for row in evidence if row.day in dates)
        hulls = [hull for hull in hulls if touching(wanted, *hull)]
    never = Intervals((row.first, row.next) for row in evidence if row.segment is None)
    limits = Intervals(hulls) if dates else Intervals([(0, state.next_offset)])
    reading = _reading(raw, state, limits.clip(0, state.next_offset) - never, spared)
    ranges = [part for task in reading.tasks for part in task.ranges]
    spans = joined([*hulls_of(evidence), *((part.from_offset, part.to_offset) for part in ranges)])
    chosen = [span for span in spans if not dates or touching(hulls, *span)]
    tiered = _tiered(raw, state) & never if never else never
    part = PartitionUnderAudit(
        state, evidence, reading, spans, chosen, [], {}, whole=not dates, gone=reading.gone, tiered=tiered
    )
    for task in reading.tasks:
        part.tasks.append(RawTask(task, cells_of(spans, task.from_offset, task.to_offset)))
    _plan_files(part)
    part.tasks += part.files.values()
    return part


def _reading(raw: RawTopic, state: PartitionState, wanted: Intervals, spared: Intervals | None) -> RawPart:
    at = _at(raw, state)
    if at is not None:
        known, end = state.history, state.verdicts_end
        return plan_reading(raw, at, known, wanted, verdicts_end=end, spared=spared)
    return RawPart(PartitionPlan.of(state, 0, 0), [], wanted)


def _tiered(raw: RawTopic, state: PartitionState) -> Intervals:
    """The offsets that only Kafka's own remote tier has, below the partition's start or acknowledged."""
    at = _at(raw, state)
    watermark = raw.watermark(at) if at is not None else None
    if watermark is None:
        return Intervals()
    passed = Intervals.of(gap for gap in watermark.acknowledged_gaps if gap.in_remote_tier)
    return Intervals(watermark.remote_tier) | passed


def _at(raw: RawTopic, state: PartitionState) -> RawPartition | None:
    """The partition in raw; None if its incarnation is gone."""
    return raw.partition_of(state) if state.incarnation < len(raw.incarnations) else None


def _plan_files(part: PartitionUnderAudit) -> None:
    """Plan a task for each file that has rows in a chosen span."""
    chosen = set(part.chosen)
    hulls: dict[str, Interval] = {}
    rows: dict[str, EvidenceRow] = {}
    wanted: set[str] = set()
    for row in part.evidence:
        if row.offset_class not in {"landed", "quarantined"} or row.file is None:
            continue
        before = hulls.get(row.file, Interval(row.first, row.next))
        hulls[row.file] = Interval(min(before.start, row.first), max(before.end, row.next))
        rows[row.file] = row
        if part.span_at(row.first) in chosen:
            wanted.add(row.file)
    for path in sorted(wanted):
        row = rows[path]
        part.files[path] = FileTask(
            "landed" if row.offset_class == "landed" else "quarantined",
            path,
            row.dt.isoformat() if row.dt else "",
            row.incarnation,
            row.partition,
            cells_of(part.spans, *hulls[path]),
        )
