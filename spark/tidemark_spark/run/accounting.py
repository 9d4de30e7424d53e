"""Turns the outcomes of all tasks into one change of the table, and accounts for every offset before any commit.

Pure. A partition whose task stopped at a hole or at damage lands up to that offset. The change does not name the files
of its later tasks, so they do not count. The other partitions land in full.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from tidemark.errors import ContinuityError
from tidemark.formats.raw.gaps import Gap, GapReason
from tidemark.formats.table.ledger import PartitionState
from tidemark.formats.table.plan import BranchCut, PartitionPlan, RunPlan, merged
from tidemark.intervals import Intervals
from tidemark.kafka_log import Lineage
from tidemark.parsers.unknown_fields import summed
from tidemark.table.evidence import PARSED, EvidenceClass, EvidenceRow
from tidemark_spark.model import DataFile, Outcome, Stop


class TableChange(NamedTuple):
    """The change that a run commits: files to add, their evidence, and the state of each partition afterwards.

    ``partitions`` is empty for a rebuild, a replay, a compaction and an erasure, which move no offsets. For a repair it
    has the partitions that go back to the point before a branch was left. ``removes`` and ``supersedes`` are copied
    from the plan, except for partitions that cannot move after all. ``unknown`` counts the unknown fields of the added
    rows.
    """

    files: tuple[DataFile, ...]
    evidence: tuple[EvidenceRow, ...]
    partitions: tuple[PartitionState, ...]
    removes: tuple[str, ...] = ()
    supersedes: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    unknown: Mapping[str, int] = MappingProxyType({})


def account(plan: RunPlan, outcomes: Iterable[Outcome]) -> TableChange:
    """The change that results from ``outcomes``.

    Raises:
        ContinuityError: an offset has no class or two, or a rebuild found a hole, damage or a replaced segment.
    """
    if plan.kind in {"compact", "erase"}:
        return _made_again(plan, list(outcomes))
    by_partition: dict[tuple[int, int], list[Outcome]] = {part.key: [] for part in plan.partitions}
    for outcome in sorted(outcomes, key=lambda outcome: outcome.from_offset):
        by_partition[outcome.incarnation, outcome.partition].append(outcome)
    if plan.kind != "ingest":
        return _again(plan, by_partition)
    parts = [_landed(plan, part, by_partition[part.key]) for part in plan.partitions]
    return TableChange(
        files=tuple(file for part in parts for file in part.files),
        evidence=tuple(row for part in parts for row in part.evidence),
        partitions=tuple(state for part in parts for state in part.partitions),
        removes=tuple(file for part in parts for file in part.removes),
        supersedes=merged(part.supersedes for part in parts),
        unknown=summed(part.unknown for part in parts),
    )


def _landed(plan: RunPlan, part: PartitionPlan, outcomes: Sequence[Outcome]) -> TableChange:
    """The change of one partition of an ingest."""
    acknowledged = Intervals(part.acknowledged)
    at, stop = part.start, None
    kept: list[Outcome] = []
    for outcome in outcomes:
        at = acknowledged.contiguous_from(at)
        if outcome.from_offset != at:
            raise ContinuityError(
                f"{_name(plan, part)}: a task starts at offset {outcome.from_offset}, and {at} was next"
            )
        kept.append(outcome)
        at, stop = outcome.next_offset, outcome.stop
        if stop:
            break
    if stop is None:
        at = acknowledged.contiguous_from(at)
        if at != part.end:
            raise ContinuityError(f"{_name(plan, part)}: tasks end at offset {at}, the plan at {part.end}")
    if stop and part.cut and at < part.cut.landed_at:
        return _stays(plan, part, part.cut, stop)
    passed = acknowledged.clip(part.start, at)
    evidence = [
        *(_without_segment(part, "deleted_before_upload", *span) for span in part.deleted_before_upload),
        *(_without_segment(part, "expired", *span) for span in part.expired),
        *(_without_segment(part, "acknowledged", *span) for span in passed),
        *(row for outcome in kept for row in outcome.evidence),
    ]
    covered = at - part.start + Intervals((*part.deleted_before_upload, *part.expired)).size
    _check_sum(plan, part, evidence, covered)
    files = tuple(file for outcome in kept for file in outcome.files)
    unknown = summed(outcome.unknown for outcome in kept)
    state = _state(plan, part, at, stop)
    if part.cut is None:
        return TableChange(files, tuple(evidence), (state,), unknown=unknown)
    evidence += _left_behind(part, part.cut, part.begins)
    return TableChange(files, tuple(evidence), (state,), part.cut.removes, part.cut.supersedes, unknown)


def _stays(plan: RunPlan, part: PartitionPlan, cut: BranchCut, stop: Stop) -> TableChange:
    """The change of a partition that keeps its branch, because raw no longer holds the offsets below the cut."""
    if stop.kind in {"moved", "unread"}:
        return TableChange((), (), ())
    state = PartitionState(
        incarnation=part.incarnation,
        topic_id=part.topic_id,
        partition=part.partition,
        start_offset=part.start,
        next_offset=cut.old_next,
        verdicts_end=cut.old_verdicts_end,
        leader_epoch=cut.leader_epoch,
        branch=part.branch,
        lineage=cut.lineage,
        restores=cut.restores,
        gaps=(_gap(plan, stop.offset, cut.old_next, "unclean_election"),),
    )
    return TableChange((), (), (state,))


def _again(plan: RunPlan, by_partition: dict[tuple[int, int], list[Outcome]]) -> TableChange:
    """The change of a rebuild, a replay or a repair, with evidence of record classes only.

    The driver checks that no record is new or gone.
    """
    for part in plan.partitions:
        for outcome in by_partition[part.key]:
            if outcome.stop:
                raise ContinuityError(f"{_name(plan, part)}: cannot be made again: {outcome.stop.detail}")
            counted = sum(row.rows for row in outcome.evidence) + outcome.other_rows
            if plan.kind != "replay" and counted != outcome.next_offset - outcome.from_offset:
                raise ContinuityError(
                    f"{_name(plan, part)}: {counted} offsets have a class from {outcome.from_offset} on"
                )
    outcomes = [outcome for part in plan.partitions for outcome in by_partition[part.key]]
    evidence = [row for outcome in outcomes for row in outcome.evidence if row.offset_class in PARSED]
    back = [(part, part.cut) for part in plan.partitions if part.cut]
    for part, cut in back:
        evidence += _left_behind(part, cut, part.end)
    files = tuple(file for outcome in outcomes for file in outcome.files)
    states = tuple(_back(part, cut) for part, cut in back)
    unknown = summed(outcome.unknown for outcome in outcomes)
    return TableChange(files, tuple(evidence), states, plan.removes, plan.supersedes, unknown)


def _left_behind(part: PartitionPlan, cut: BranchCut, start: int) -> list[EvidenceRow]:
    """Evidence that takes out the rows landed at or above ``start``, because their branch was cut off."""
    spans: list[tuple[EvidenceClass, int]] = [("superseded", start), ("truncated", cut.landed_at)]
    return [_without_segment(part, name, first, cut.old_next) for name, first in spans if first < cut.old_next]


def _back(part: PartitionPlan, cut: BranchCut) -> PartitionState:
    """State of a partition that a repair sets back to its end; the next ingest follows the new branch from there."""
    return PartitionState(
        incarnation=part.incarnation,
        topic_id=part.topic_id,
        partition=part.partition,
        start_offset=part.start,
        next_offset=part.end,
        verdicts_end=cut.at,
        leader_epoch=cut.leader_epoch,
        branch=part.branch + 1,
        lineage=Lineage(cut.lineage).truncated(cut.at).entries,
        restores=cut.restores,
    )


def _made_again(plan: RunPlan, outcomes: Sequence[Outcome]) -> TableChange:
    """The change of a compaction or an erasure: each outcome has at most one file, and evidence of its rows."""
    for outcome in outcomes:
        if outcome.stop:
            where = f"{plan.cluster}/{plan.topic} partition {outcome.partition} of incarnation {outcome.incarnation}"
            raise ContinuityError(f"{where}: nothing was changed: {outcome.stop.detail}")
    files = tuple(file for outcome in outcomes for file in outcome.files)
    evidence = tuple(row for outcome in outcomes for row in outcome.evidence)
    return TableChange(files, evidence, (), plan.removes, plan.supersedes)


def _check_sum(plan: RunPlan, part: PartitionPlan, evidence: Sequence[EvidenceRow], covered: int) -> None:
    counted = sum(row.rows for row in evidence)
    if counted != covered:
        raise ContinuityError(f"{_name(plan, part)}: {covered} offsets are covered, but {counted} have a class")


def _state(plan: RunPlan, part: PartitionPlan, at: int, stop: Stop | None) -> PartitionState:
    gaps = list(part.gaps)
    reason: dict[str, GapReason] = {"lost": "unknown", "corrupt": "corrupt"}
    if stop and stop.kind in reason:
        gaps.insert(0, _gap(plan, stop.offset, stop.end, reason[stop.kind]))
    return PartitionState(
        incarnation=part.incarnation,
        topic_id=part.topic_id,
        partition=part.partition,
        start_offset=part.start,
        next_offset=at,
        verdicts_end=max(at, part.verdicts_end),
        leader_epoch=part.leader_epoch,
        branch=part.branch + (part.cut is not None),
        lineage=part.lineage,
        restores=part.restores,
        gaps=tuple(gaps),
        held_by=() if stop else part.held_by,
        as_of=None if stop else part.as_of,
    )


def _gap(plan: RunPlan, start: int, end: int, reason: GapReason) -> Gap:
    """The offsets that a task of ``plan`` did not find in the bytes that should have them."""
    fields = {"from": start, "to": end, "reason": reason, "detected_at": plan.created_at, "read": True}
    return Gap.model_validate(fields)


def _without_segment(part: PartitionPlan, offset_class: EvidenceClass, start: int, end: int) -> EvidenceRow:
    return EvidenceRow(part.incarnation, part.partition, start, end, offset_class, end - start)


def _name(plan: RunPlan, part: PartitionPlan) -> str:
    return f"{plan.cluster}/{plan.topic} partition {part.partition} of incarnation {part.incarnation}"
