"""A run that lands what raw has new. Every offset is accounted for before any commit.

A partition whose task stopped at a hole or at damage lands up to that offset. The change does not name the files of its
later tasks, so they do not count. The other partitions land in full.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import ClassVar, Literal

from typing_extensions import override

from tidemark.errors import ContinuityError, StaleRun
from tidemark.formats.raw.gaps import Gap, GapReason
from tidemark.formats.table.ledger import Ledger, PartitionState
from tidemark.formats.table.plan import BranchCut, PartitionPlan, merged
from tidemark.intervals import Intervals
from tidemark.parsers.unknown_fields import summed
from tidemark.table.delta_table import LiveFiles
from tidemark_spark.convert.conversion import converted
from tidemark_spark.kinds.kind import Kind, TableChange, left_behind, no_more, without_segment
from tidemark_spark.model import Executor, Outcome, Stop


class Ingest(Kind):
    """Lands offsets for the first time."""

    lands: ClassVar = True
    parses: ClassVar = True
    work = staticmethod(partial(converted, waits=True))

    @override
    def change(self, outcomes: Sequence[Outcome], executor: Executor) -> TableChange | Literal["stale"]:
        change = self.account(outcomes)
        if self.plan.partitions and not self._moves(change):
            return "stale"
        before = self.told(file for files in change.supersedes.values() for file in files)
        return change._replace(evidence=(*change.evidence, *no_more(before.aside)))

    def account(self, outcomes: Iterable[Outcome]) -> TableChange:
        """The change of all partitions, without the evidence that others supersede by it. Pure.

        Raises:
            ContinuityError: an offset has no class or two.
        """
        by_partition: dict[tuple[int, int], list[Outcome]] = {part.key: [] for part in self.plan.partitions}
        for outcome in sorted(outcomes, key=lambda outcome: outcome.from_offset):
            by_partition[outcome.incarnation, outcome.partition].append(outcome)
        parts = [self._landed(part, by_partition[part.key]) for part in self.plan.partitions]
        return TableChange(
            files=tuple(file for part in parts for file in part.files),
            evidence=tuple(row for part in parts for row in part.evidence),
            partitions=tuple(state for part in parts for state in part.partitions),
            removes=tuple(file for part in parts for file in part.removes),
            supersedes=merged(part.supersedes for part in parts),
            unknown=summed(part.unknown for part in parts),
        )

    def _landed(self, part: PartitionPlan, outcomes: Sequence[Outcome]) -> TableChange:
        """The change of one partition."""
        acknowledged = Intervals(part.acknowledged)
        at, stop = part.start, None
        kept: list[Outcome] = []
        for outcome in outcomes:
            at = acknowledged.contiguous_from(at)
            if outcome.from_offset != at:
                raise ContinuityError(
                    f"{self.name(part)}: a task starts at offset {outcome.from_offset}, and {at} was next"
                )
            kept.append(outcome)
            at, stop = outcome.next_offset, outcome.stop
            if stop:
                break
        if stop is None:
            at = acknowledged.contiguous_from(at)
            if at != part.end:
                raise ContinuityError(f"{self.name(part)}: tasks end at offset {at}, the plan at {part.end}")
        if stop and part.cut and at < part.cut.landed_at:
            return self._stays(part, part.cut, stop)
        passed = acknowledged.clip(part.start, at)
        evidence = [
            *(without_segment(part, "deleted_before_upload", *span) for span in part.deleted_before_upload),
            *(without_segment(part, "expired", *span) for span in part.expired),
            *(without_segment(part, "acknowledged", *span) for span in passed),
            *(row for outcome in kept for row in outcome.evidence),
        ]
        covered = at - part.start + Intervals((*part.deleted_before_upload, *part.expired)).size
        counted = sum(row.rows for row in evidence)
        if counted != covered:
            raise ContinuityError(f"{self.name(part)}: {covered} offsets are covered, but {counted} have a class")
        files = tuple(file for outcome in kept for file in outcome.files)
        unknown = summed(outcome.unknown for outcome in kept)
        state = self._state(part, at, stop)
        if part.cut is None:
            return TableChange(files, tuple(evidence), (state,), unknown=unknown)
        evidence += left_behind(part, part.cut, part.begins)
        return TableChange(files, tuple(evidence), (state,), part.cut.removes, part.cut.supersedes, unknown)

    def _stays(self, part: PartitionPlan, cut: BranchCut, stop: Stop) -> TableChange:
        """The change of a partition that keeps its branch, because raw no longer holds the offsets below the cut."""
        if stop.kind in {"moved", "unread"}:
            return TableChange()
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
            gaps=(self._gap(stop.offset, cut.old_next, "unclean_election"),),
        )
        return TableChange(partitions=(state,))

    def _state(self, part: PartitionPlan, at: int, stop: Stop | None) -> PartitionState:
        gaps = list(part.gaps)
        reason: dict[str, GapReason] = {"lost": "unknown", "corrupt": "corrupt"}
        if stop and stop.kind in reason:
            gaps.insert(0, self._gap(stop.offset, stop.end, reason[stop.kind]))
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

    def _gap(self, start: int, end: int, reason: GapReason) -> Gap:
        """The offsets that a task did not find in the bytes that should have them."""
        fields = {"from": start, "to": end, "reason": reason, "detected_at": self.plan.created_at, "read": True}
        return Gap.model_validate(fields)

    def _moves(self, change: TableChange) -> bool:
        """True if the change commits anything: not if all partitions stopped at once at replaced segments."""
        starts = {part.key: part for part in self.plan.partitions}
        return any(
            state.next_offset > starts[state.key].start
            or state.gaps
            or state.branch > starts[state.key].branch
            or starts[state.key].start == starts[state.key].end
            for state in change.partitions
        )

    @override
    def check_fresh(self, ledger: Ledger, live: LiveFiles) -> None:
        super().check_fresh(ledger, live)
        for part in self.plan.partitions:
            state = ledger.by_partition.get(part.key)
            if state is None:
                continue
            if state.next_offset != part.landed_next:
                place = f"at {state.next_offset}, not at {part.landed_next}"
                raise StaleRun(f"partition {part.partition} now continues {place}")
            later = state.leadership > part.leadership and state.leader_epoch not in part.foreign_epochs
            if state.branch != part.branch or later:
                raise StaleRun(f"partition {part.partition} now follows leader epoch {state.leader_epoch}")
