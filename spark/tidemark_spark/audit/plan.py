"""Plans an audit of a partition: ranges of raw and files to read, over shared spans of offsets."""

from __future__ import annotations

from collections.abc import Sequence

from tidemark.formats.raw.incarnations import Incarnation
from tidemark.formats.table.ledger import PartitionState
from tidemark.formats.table.plan import PartitionPlan
from tidemark.intervals import Interval, Intervals
from tidemark.planning.read import RawPart, joined, plan_reading
from tidemark.raw.partition import RawPartition
from tidemark.raw_topic import RawTopic
from tidemark.table.evidence import EvidenceRow
from tidemark_spark.audit.evidence import PartitionUnderAudit, cells_of, hulls_of, touching
from tidemark_spark.audit.worker import FileTask, RawTask

Incarnations = Sequence[Incarnation]


def planned(
    raw: RawTopic,
    incarnations: Incarnations,
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
    reading = _reading(raw, incarnations, state, limits.clip(0, state.next_offset) - never, spared)
    ranges = [part for task in reading.tasks for part in task.ranges]
    spans = joined([*hulls_of(evidence), *((part.from_offset, part.to_offset) for part in ranges)])
    chosen = [span for span in spans if not dates or touching(hulls, *span)]
    tiered = _tiered(raw, incarnations, state) & never if never else never
    part = PartitionUnderAudit(
        state, evidence, reading, spans, chosen, [], {}, whole=not dates, gone=reading.gone, tiered=tiered
    )
    for task in reading.tasks:
        part.tasks.append(RawTask(task, cells_of(spans, task.from_offset, task.to_offset)))
    _plan_files(part)
    part.tasks += part.files.values()
    return part


def _reading(
    raw: RawTopic, incarnations: Incarnations, state: PartitionState, wanted: Intervals, spared: Intervals | None
) -> RawPart:
    at = _at(raw, incarnations, state)
    if at is not None:
        known, end = state.history, state.verdicts_end
        return plan_reading(raw, at, known, wanted, verdicts_end=end, spared=spared)
    return RawPart(PartitionPlan.of(state, 0, 0), [], wanted)


def _tiered(raw: RawTopic, incarnations: Incarnations, state: PartitionState) -> Intervals:
    """The offsets that only Kafka's own remote tier has, below the partition's start or acknowledged."""
    at = _at(raw, incarnations, state)
    watermark = raw.watermark(at) if at is not None else None
    if watermark is None:
        return Intervals()
    passed = Intervals.of(gap for gap in watermark.acknowledged_gaps if gap.in_remote_tier)
    return Intervals(watermark.remote_tier) | passed


def _at(raw: RawTopic, incarnations: Incarnations, state: PartitionState) -> RawPartition | None:
    """The partition in raw; None if its incarnation is gone."""
    if state.incarnation >= len(incarnations):
        return None
    place = incarnations[state.incarnation].place
    return raw.partition(state.topic_id, place, state.incarnation, state.partition)


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
