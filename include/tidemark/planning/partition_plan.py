"""The part of one partition in a run: its start, its end, and the reason that holds it.

The decision is pure. Only the way back from a landed branch of the log, after an unclean election cut it off, is found
in the store (:func:`rewind`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from tidemark.formats.raw.gaps import Gap, GapReason
from tidemark.formats.raw.watermark import Watermark
from tidemark.formats.table.ledger import PartitionState
from tidemark.formats.table.plan import BranchCut, PartitionPlan
from tidemark.intervals import Interval, Intervals
from tidemark.kafka_log import AbortedTransaction, Lineage, OpenTransaction
from tidemark.raw.partition import StoredPartition
from tidemark.raw.segments import (
    Segment,
    SegmentPiece,
    aborted_from,
    cover,
    decided_end,
    is_whole,
    live_until,
    whole_lineage,
)
from tidemark.raw_topic import RawTopic
from tidemark.table.delta_table import TopicTable
from tidemark.table.effective_evidence import EffectiveEvidence, Reach


@dataclass(frozen=True, slots=True)
class KnownPartition:
    """The state of a partition in the store and the ledger. ``complete`` is that of :class:`~.raw.Window`.

    If the newest lineage requires the partition to leave the landed branch, ``cut`` is the way to leave it, and
    ``from_offset`` the first offset that gets a class again. If nothing below :attr:`begins` has landed, ``first`` is
    the current start of raw: what lies between the two was deleted or has expired. ``end`` is the highest offset that
    may exist: above the watermark are the tails, whose high watermarks were ``observed``: (offset, when). ``opened``
    are the transactions open behind the :attr:`Decision.cut_off` pieces, once their headers were read.
    """

    incarnation: int
    partition: int
    watermark: Watermark
    state: PartitionState | None
    segments: list[Segment]
    complete: bool = True
    aborted: tuple[AbortedTransaction, ...] = ()
    acknowledged: Intervals = field(default_factory=Intervals)
    cut: BranchCut | None = None
    from_offset: int = 0
    first: int = 0
    end: int = 0
    observed: tuple[tuple[int, datetime], ...] = ()
    opened: tuple[OpenTransaction, ...] | None = None

    @property
    def begins(self) -> int:
        """The first offset that gets a class now."""
        if self.cut:
            return self.from_offset
        return self.state.next_offset if self.state else 0

    @property
    def start(self) -> int:
        """The first offset to convert."""
        return max(self.begins if self.state else self.watermark.start_offset, self.first)

    @property
    def landed_next(self) -> int:
        """The first offset without a class."""
        return self.state.next_offset if self.state else self.start

    @property
    def lineage(self) -> Lineage:
        """The newest lineage, with its known past."""
        older = self.state.history if self.state else Lineage()
        return whole_lineage(self.watermark.history, older, self.segments)


class CutOff(NamedTuple):
    """The last pieces, of segments that the lineage leaves: the open transactions in their lists are on the old branch.

    ``before`` are the transactions open at the start of the pieces. The pieces' headers show those open at their end.
    """

    pieces: list[SegmentPiece]
    before: tuple[OpenTransaction, ...]


class Decision(NamedTuple):
    """A partition's part of a plan, and the pieces of segments that hold its offsets.

    With ``cut_off``, the partition may land further once the transactions open behind these pieces are known.
    """

    plan: PartitionPlan
    pieces: list[SegmentPiece]
    cut_off: CutOff | None = None


def decide(known: KnownPartition) -> Decision:
    """The decision how far the partition may land now.

    It stops before a hole, before an open transaction, and before a gap that an earlier task found while the segment
    there is unchanged. A hole below the watermark is LOST; above it, packs are not there yet. After an unclean election
    that cuts off landed offsets, it returns to the cut and follows the new branch. It stays in place until raw holds
    the new branch and all that lies below it.
    """
    left = left_at(known.watermark, known.state)
    if left is not None and known.cut is None:
        return _held(known, _cut_off(known, left))
    start, lineage, began = known.start, known.lineage, known.watermark.start_offset
    goal = max(known.watermark.next_offset, known.end)
    if not known.complete:
        goal = min(goal, max(segment.end for segment in known.segments))
    acknowledged = _acknowledged(known).clip(start, max(start, goal))
    pieces, hole = cover(known.segments, lineage, Intervals([(start, max(start, goal))]) - acknowledged)
    if (found := _found_before(known, pieces)) is not None:
        return _held(known, found)
    limit = hole.start if hole else max(start, goal)
    end, held_by, verdicts_end, cut_off = _decided(known, pieces, lineage, limit)
    if known.cut and (end < start or (end < known.cut.landed_at and not held_by)):
        return _held(known, _cut_off(known, known.cut.at))
    plan = PartitionPlan(
        incarnation=known.incarnation,
        topic_id=known.watermark.topic_id,
        partition=known.partition,
        start=start,
        end=max(start, end),
        verdicts_end=max(verdicts_end, known.state.verdicts_end if known.state and not known.cut else start),
        leader_epoch=known.watermark.leader_epoch,
        lineage=lineage.entries,
        restores=lineage.restores,
        aborted=aborted_from(start, known.aborted),
        held_by=held_by,
        gaps=_gaps(known, _lost(hole, known.watermark.next_offset), end),
        acknowledged=tuple(acknowledged.clip(start, max(start, end))),
        deleted_before_upload=((known.begins, deleted),) if known.begins < (deleted := min(began, start)) else (),
        expired=((expires, start),) if (expires := max(known.begins, began)) < start else (),
        branch=known.state.branch if known.state else 0,
        cut=known.cut,
        foreign_epochs=known.watermark.foreign_epochs,
        as_of=max((at for offset, at in known.observed if offset == end), default=None),
    )
    return Decision(plan, clipped(pieces, end), cut_off)


def clipped(pieces: Iterable[SegmentPiece], end: int) -> list[SegmentPiece]:
    """The parts of ``pieces`` that lie below ``end``."""
    return [piece._replace(end=min(piece.end, end)) for piece in pieces if piece.start < end]


def changes_anything(plan: PartitionPlan, state: PartitionState | None) -> bool:
    """True if the plan would change the state of the partition."""
    if state is None:
        return plan.end > plan.start or bool(plan.gaps or plan.held_by or plan.deleted_before_upload or plan.expired)
    same_gaps = {_identity(gap) for gap in plan.gaps} == {_identity(gap) for gap in state.gaps}
    moves = plan.end > plan.start or plan.cut is not None
    return moves or not same_gaps or plan.held_by != state.held_by


def _identity(gap: Gap) -> tuple[int, int, str]:
    return gap.start, gap.end, gap.reason


def left_at(watermark: Watermark, state: PartitionState | None) -> int | None:
    """The first offset of landed records, or of markers that decided them, that left the newest lineage; else None."""
    if state is None:
        return None
    at = watermark.history.divergence(state.history, state.verdicts_end)
    return None if at is None else max(at, watermark.start_offset)


def _cut_off(known: KnownPartition, at: int) -> tuple[Gap, ...]:
    """The gaps while landed offsets are cut off and not yet replaced; the ledger's if only a marker is cut off."""
    if at < known.landed_next:
        return (_gap(known, at, known.landed_next, "unclean_election"),)
    return known.state.gaps if known.state else ()


def _held(known: KnownPartition, gaps: tuple[Gap, ...]) -> Decision:
    """The decision that leaves the partition in place."""
    plan = PartitionPlan(
        incarnation=known.incarnation,
        topic_id=known.watermark.topic_id,
        partition=known.partition,
        start=known.landed_next,
        end=known.landed_next,
        verdicts_end=known.state.verdicts_end if known.state else known.landed_next,
        leader_epoch=known.state.leader_epoch if known.state else known.watermark.leader_epoch,
        lineage=known.state.lineage if known.state else (),
        restores=known.state.restores if known.state else (),
        held_by=known.state.held_by if known.state else (),
        gaps=gaps,
        branch=known.state.branch if known.state else 0,
    )
    return Decision(plan, [])


def _acknowledged(known: KnownPartition) -> Intervals:
    """The offsets that a person acknowledged as lost; for a branch that is left, none above the cut."""
    acknowledged = known.acknowledged.clip(0, known.cut.at) if known.cut else known.acknowledged
    return acknowledged | Intervals.of(known.watermark.acknowledged_gaps)


def _found_before(known: KnownPartition, pieces: list[SegmentPiece]) -> tuple[Gap, ...] | None:
    """The ledger's gaps if a task found a gap in bytes that would be read again, unchanged; else None."""
    if known.state is None or not pieces:
        return None
    if known.cut:
        gaps = (gap for gap in known.state.gaps if known.start <= gap.start < known.cut.at)
        again = any(_read_before(gap, pieces) for gap in gaps)
        return known.state.gaps if again else None
    if pieces[0].start != known.start:
        return None
    same = any(gap.start == known.start and _read_before(gap, pieces[:1]) for gap in known.state.gaps)
    return known.state.gaps if same else None


def _read_before(gap: Gap, pieces: list[SegmentPiece]) -> bool:
    """True if a task has read the bytes that should have the gap's first offset. Others came late, as to a copy."""
    at = (piece for piece in pieces if piece.start <= gap.start < piece.end)
    return gap.read and any(piece.segment.uploaded_at <= gap.detected_at for piece in at)


def _decided(
    known: KnownPartition, pieces: list[SegmentPiece], lineage: Lineage, end: int
) -> tuple[int, tuple[OpenTransaction, ...], int, CutOff | None]:
    """The end, at most ``end``, of the decided transactions.

    A segment that leaves the ``lineage`` before its end lists the transactions open on its own branch. They do not
    count; only the segment's headers show the transactions open at the point where it is left. Transactions that began
    before the first piece were decided when it landed.
    """
    whole = next((n for n in reversed(range(len(pieces))) if is_whole(pieces[n].segment, lineage, pieces[n].start)), -1)
    left = pieces[whole + 1 :]
    if left and known.complete and known.opened is not None:
        return *decided_end(end, known.opened), end, None
    cut_off = CutOff(left, pieces[whole].segment.open_transactions if whole >= 0 else ()) if left else None
    if whole < 0:
        start = pieces[0].start if pieces else end
        return start, (), start, cut_off
    last = pieces[whole]
    limit = last.end if left else end
    return *decided_end(limit, last.segment.open_transactions), last.segment.end, cut_off


def _lost(hole: Interval | None, sealed: int) -> Interval | None:
    """The part of ``hole`` that agents have reported as stored."""
    return Interval(hole.start, min(hole.end, sealed)) if hole and hole.start < sealed else None


def _gaps(known: KnownPartition, hole: Interval | None, end: int) -> tuple[Gap, ...]:
    """The gaps at or above ``end``: the agent's, and ``hole`` unless one of these covers it."""
    if not known.complete:
        return tuple(gap for gap in known.state.gaps if gap.end > end) if known.state and not known.cut else ()
    gaps = {gap.start: gap for gap in known.watermark.gaps if gap.end > end}
    if hole and not any(gap.start <= hole.start < gap.end for gap in gaps.values()):
        deleted = hole.end <= known.watermark.start_offset
        gaps[hole.start] = _gap(known, *hole, "deleted_before_upload" if deleted else "unknown")
    return tuple(gaps[start] for start in sorted(gaps))


def _gap(known: KnownPartition, start: int, end: int, reason: GapReason) -> Gap:
    """The ledger's equal gap if there is one, so that the time of its detection stays; else a new gap."""
    before = known.state.gaps if known.state else ()
    fields = {"from": start, "to": end, "reason": reason, "detected_at": known.watermark.written_at}
    fresh = Gap.model_validate(fields)
    return next((gap for gap in before if _identity(gap) == _identity(fresh)), fresh)


def rewind(
    table: TopicTable, raw: RawTopic, view: StoredPartition, state: PartitionState, at: int
) -> tuple[BranchCut, int] | None:
    """The cut that leaves, at offset ``at``, the branch of ``state`` that has landed, or decided landed records.

    With it comes the offset from which all records are converted again.

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
    return cut_of(state, at, reach), reach.start


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


def decided_below(raw: RawTopic, view: StoredPartition, state: PartitionState, at: int) -> int | None:
    """The landed offset up to which no verdict on a transaction depends on markers from ``at`` on.

    None if raw does not show it. A segment that ends at or below ``at``, live to its end, lists the transactions open
    there. All earlier transactions that it does not list were decided before.
    """
    offset, lineage = at, view.lineage
    while offset > state.start_offset:
        segments, _ = raw.segments(view, offset - 1, offset, 1 << 62)
        live = [segment for segment in segments if live_until(segment, lineage, offset - 1) >= offset]
        if not live:
            return None
        lowest = min(live, key=lambda segment: segment.base)
        if lowest.end <= at and live_until(lowest, lineage, offset - 1) == lowest.end:
            opened = (transaction.first_offset for transaction in lowest.open_transactions)
            return max(state.start_offset, min([offset, state.next_offset, *opened]))
        offset = max(lowest.base, state.start_offset)
    return offset
