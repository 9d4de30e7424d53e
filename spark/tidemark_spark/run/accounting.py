"""The outcomes of all tasks become one change of the table; every offset is accounted for before anything is committed.

Pure. A partition whose task stopped at a hole or at damage lands up to there. The change does not name the files of its
later tasks, so they do not count. The other partitions land in full.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from tidemark.errors import ContinuityError
from tidemark.formats.gaps import Gap, GapReason
from tidemark.formats.ledger import PartitionState
from tidemark.formats.plan import BranchCut, PartitionPlan, RunPlan, merged
from tidemark.intervals import Intervals
from tidemark.kafka_log import Lineage
from tidemark.parsers.unknown_fields import summed
from tidemark.table.evidence import PARSED, EvidenceClass, EvidenceRow
from tidemark_spark.model import DataFile, Outcome, Stop


class Change(NamedTuple):
    """What a run wants to commit: files to add, their evidence, and the state of each partition thereafter.

    ``partitions`` is empty for a rebuild, a replay and a compaction, which move no offsets; for a repair it has those
    that go back to before a branch was left. ``removes`` and ``supersedes`` are those of the plan, except for
    partitions that cannot move after all. ``unknown`` are the unknown fields of the rows that it adds.
    """

    files: tuple[DataFile, ...]
    evidence: tuple[EvidenceRow, ...]
    partitions: tuple[PartitionState, ...]
    removes: tuple[str, ...] = ()
    supersedes: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    unknown: Mapping[str, int] = MappingProxyType({})


def account(plan: RunPlan, outcomes: Iterable[Outcome]) -> Change:
    """The change that ``outcomes`` add up to.

    Raises:
        ContinuityError: an offset has no class or two, or a rebuild found a hole, damage or a replaced segment.
    """
    if plan.kind == "compact":
        return _laid_together(plan, list(outcomes))
    by_partition: dict[tuple[int, int], list[Outcome]] = {part.key: [] for part in plan.partitions}
    for one in sorted(outcomes, key=lambda one: one.from_offset):
        by_partition[one.incarnation, one.partition].append(one)
    if plan.kind != "ingest":
        return _again(plan, by_partition)
    parts = [_landed(plan, part, by_partition[part.key]) for part in plan.partitions]
    return Change(
        files=tuple(file for part in parts for file in part.files),
        evidence=tuple(row for part in parts for row in part.evidence),
        partitions=tuple(state for part in parts for state in part.partitions),
        removes=tuple(file for part in parts for file in part.removes),
        supersedes=merged(part.supersedes for part in parts),
        unknown=summed(part.unknown for part in parts),
    )


def _landed(plan: RunPlan, part: PartitionPlan, outcomes: Sequence[Outcome]) -> Change:
    """One partition of an ingest."""
    acknowledged = Intervals(part.acknowledged)
    at, stop = part.start, None
    kept: list[Outcome] = []
    for one in outcomes:
        at = acknowledged.contiguous_from(at)
        if one.from_offset != at:
            raise ContinuityError(f"{_name(plan, part)}: a task starts at offset {one.from_offset}, and {at} was next")
        kept.append(one)
        at, stop = one.next_offset, one.stop
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
        *(_without_segment(part, "deleted_before_upload", *one) for one in part.deleted_before_upload),
        *(_without_segment(part, "expired", *one) for one in part.expired),
        *(_without_segment(part, "acknowledged", *one) for one in passed),
        *(row for one in kept for row in one.evidence),
    ]
    covered = at - part.start + Intervals((*part.deleted_before_upload, *part.expired)).size
    _check_sum(plan, part, evidence, covered)
    files = tuple(file for one in kept for file in one.files)
    unknown = summed(one.unknown for one in kept)
    state = _state(plan, part, at, stop)
    if part.cut is None:
        return Change(files, tuple(evidence), (state,), unknown=unknown)
    evidence += _left_behind(part, part.cut, part.start)
    return Change(files, tuple(evidence), (state,), part.cut.removes, part.cut.supersedes, unknown)


def _stays(plan: RunPlan, part: PartitionPlan, cut: BranchCut, stop: Stop) -> Change:
    """A partition that cannot leave its branch, because raw no longer holds the offsets below the cut."""
    if stop.kind in {"moved", "unread"}:
        return Change((), (), ())
    gap = {"from": stop.offset, "to": cut.old_next, "reason": "unclean_election", "detected_at": plan.created_at}
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
        gaps=(Gap.model_validate(gap),),
    )
    return Change((), (), (state,))


def _again(plan: RunPlan, by_partition: dict[tuple[int, int], list[Outcome]]) -> Change:
    """A rebuild, a replay or a repair: only the records' classes. The driver checks that no record is new or gone."""
    for part in plan.partitions:
        for one in by_partition[part.key]:
            if one.stop:
                raise ContinuityError(f"{_name(plan, part)}: cannot be made again: {one.stop.detail}")
            counted = sum(row.rows for row in one.evidence) + one.other_rows
            if plan.kind != "replay" and counted != one.next_offset - one.from_offset:
                raise ContinuityError(f"{_name(plan, part)}: {counted} offsets have a class from {one.from_offset} on")
    outcomes = [one for part in plan.partitions for one in by_partition[part.key]]
    evidence = [row for one in outcomes for row in one.evidence if row.offset_class in PARSED]
    back = [(part, part.cut) for part in plan.partitions if part.cut]
    for part, cut in back:
        evidence += _left_behind(part, cut, part.end)
    files = tuple(file for one in outcomes for file in one.files)
    states = tuple(_back(part, cut) for part, cut in back)
    unknown = summed(one.unknown for one in outcomes)
    return Change(files, tuple(evidence), states, plan.removes, plan.supersedes, unknown)


def _left_behind(part: PartitionPlan, cut: BranchCut, start: int) -> list[EvidenceRow]:
    """The evidence that rows landed at or above ``start`` no longer count, as their branch was cut off."""
    spans: list[tuple[EvidenceClass, int]] = [("superseded", start), ("truncated", cut.landed_at)]
    return [_without_segment(part, name, first, cut.old_next) for name, first in spans if first < cut.old_next]


def _back(part: PartitionPlan, cut: BranchCut) -> PartitionState:
    """A partition that a repair takes back to its end, from where the next ingest follows the new branch."""
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
    )


def _laid_together(plan: RunPlan, outcomes: Sequence[Outcome]) -> Change:
    """A compaction: each outcome has one file, whose evidence says what was read back from it."""
    for one in outcomes:
        if one.stop:
            where = f"{plan.cluster}/{plan.topic} partition {one.partition} of incarnation {one.incarnation}"
            raise ContinuityError(f"{where}: nothing was merged: {one.stop.detail}")
    files = tuple(file for one in outcomes for file in one.files)
    return Change(files, tuple(row for one in outcomes for row in one.evidence), (), plan.removes)


def _check_sum(plan: RunPlan, part: PartitionPlan, evidence: Sequence[EvidenceRow], covered: int) -> None:
    counted = sum(row.rows for row in evidence)
    if counted != covered:
        raise ContinuityError(f"{_name(plan, part)}: {covered} offsets are covered, but {counted} have a class")


def _state(plan: RunPlan, part: PartitionPlan, at: int, stop: Stop | None) -> PartitionState:
    gaps = list(part.gaps)
    reason: dict[str, GapReason] = {"lost": "unknown", "corrupt": "corrupt"}
    if stop and stop.kind in reason:
        fields = {"from": stop.offset, "to": stop.end, "reason": reason[stop.kind], "detected_at": plan.created_at}
        gaps.insert(0, Gap.model_validate(fields))
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
        gaps=tuple(gaps),
        held_by=() if stop else part.held_by,
        as_of=None if stop else part.as_of,
    )


def _without_segment(part: PartitionPlan, offset_class: EvidenceClass, start: int, end: int) -> EvidenceRow:
    return EvidenceRow(part.incarnation, part.partition, start, end, offset_class, end - start)


def _name(plan: RunPlan, part: PartitionPlan) -> str:
    return f"{plan.cluster}/{plan.topic} partition {part.partition} of incarnation {part.incarnation}"
