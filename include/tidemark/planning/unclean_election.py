"""A partition's way back from a landed branch of its log, after an unclean election cut it off."""

from __future__ import annotations

from typing import NamedTuple

from tidemark.formats.table.ledger import PartitionState
from tidemark.formats.table.plan import BranchCut
from tidemark.raw.partition import PartitionView
from tidemark.raw.segments import live_until
from tidemark.raw.topic import RawTopic
from tidemark.table.delta_table import TopicTable
from tidemark.table.effective_evidence import EffectiveEvidence, Reach


class Rewind(NamedTuple):
    """A cut, and the offset from which all records are converted again."""

    cut: BranchCut
    start: int


def rewind(table: TopicTable, raw: RawTopic, view: PartitionView, state: PartitionState, at: int) -> Rewind | None:
    """The way to leave, at offset ``at``, the branch of ``state`` that has landed, or decided landed records.

    None while the new branch has nothing there, or raw does not hold the offsets right below.

    Raises:
        ContinuityError: according to the evidence, a file to remove has rows of another partition, too.
    """
    if view.end <= at:
        return None
    decided = decided_below(raw, view, state, at)
    if decided is None:
        return None
    reach = EffectiveEvidence.of(table).from_offset(state.key, decided)
    return Rewind(cut_of(state, at, reach), reach.start)


def cut_of(state: PartitionState, at: int, reach: Reach | None = None) -> BranchCut:
    """The cut at offset ``at`` of the landed branch of ``state``, which removes ``reach``."""
    return BranchCut(
        at=at,
        old_next=state.next_offset,
        old_verdicts_end=state.verdicts_end,
        leader_epoch=state.leader_epoch,
        lineage=state.lineage,
        restores=state.restores,
        removes=reach.files if reach else (),
        supersedes=reach.set_aside if reach else {},
    )


def decided_below(raw: RawTopic, view: PartitionView, state: PartitionState, at: int) -> int | None:
    """The landed offset up to which no verdict on a transaction depends on markers from ``at`` on.

    None if raw does not show it. A segment that ends at or below ``at``, live to its end, lists the transactions open
    there. All earlier transactions that it does not list were decided before.
    """
    offset, lineage = at, view.lineage
    while offset > state.start_offset:
        segments = raw.segments(view, offset - 1, offset, 1 << 62).segments
        live = [segment for segment in segments if live_until(segment, lineage, offset - 1) >= offset]
        if not live:
            return None
        lowest = min(live, key=lambda segment: segment.base)
        if lowest.end <= at and live_until(lowest, lineage, offset - 1) == lowest.end:
            opened = (transaction.first_offset for transaction in lowest.open_transactions)
            return max(state.start_offset, min([offset, state.next_offset, *opened]))
        offset = max(lowest.base, state.start_offset)
    return offset
