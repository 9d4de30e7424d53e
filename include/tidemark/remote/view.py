"""A watermark and the tail for readers: first and last offset, gaps, branches that the log has left. Pure."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

from tidemark.formats.raw.gaps import Gap, split_acknowledged
from tidemark.formats.raw.masks import MaskName
from tidemark.formats.raw.watermark import Watermark
from tidemark.intervals import Intervals
from tidemark.kafka_log import Lineage
from tidemark.raw.aborted_transactions import Verdicts
from tidemark.raw.packs import TailPieces
from tidemark.raw.segments import SegmentPiece
from tidemark.storage import StoredWatermark

_FOR_EVER = 1 << 63


@dataclass(frozen=True, slots=True)
class WatermarkView:
    """A partition at one moment. ``gaps`` are not acknowledged, ``passed`` are acknowledged gaps.

    Below ``sealed`` seals hold the offsets, from there on the ranges of ``tail``, without a hole. ``end`` is the offset
    after the last readable one. Up to ``stable`` all transactions are decided. ``masks`` is None while the masks could
    not be read: then nothing is delivered.
    """

    stored: StoredWatermark | None = None
    start: int = 0
    gaps: tuple[Gap, ...] = ()
    passed: Intervals = field(default_factory=Intervals)
    sealed: int = 0
    tail: TailPieces = field(default_factory=TailPieces)
    end: int = 0
    stable: int = 0
    branch: int = 0
    verdicts: Verdicts = field(default_factory=Verdicts, compare=False)
    masks: tuple[MaskName, ...] | None = None

    @property
    def etag(self) -> str:
        """The ETag of ``offset.wm``; empty without one."""
        return self.stored.etag if self.stored is not None else ""

    @property
    def lineage(self) -> Lineage:
        """The leader's whole lineage."""
        return self.stored.lineage if self.stored is not None else Lineage()

    @property
    def brokers(self) -> frozenset[int]:
        """The brokers that may have packed offsets that are not sealed."""
        return self.stored.watermark.tail_brokers if self.stored is not None else frozenset()

    @property
    def missing(self) -> Intervals:
        """All missing offsets of the watermark, acknowledged or not."""
        return Intervals.of(self.gaps) | self.passed

    def packed(self, offset: int) -> SegmentPiece | None:
        """The tail's piece from ``offset`` on; None if that does not lie in the tail."""
        pieces = self.tail.pieces
        index = bisect_right(pieces, offset, key=lambda piece: piece.start) - 1
        return pieces[index]._replace(start=offset) if index >= 0 and offset < pieces[index].end else None

    def gap_at(self, offset: int) -> Gap | None:
        """The unacknowledged gap around ``offset``; None if there is none."""
        return next((gap for gap in self.gaps if gap.start <= offset < gap.end), None)

    def clear_until(self, offset: int) -> int:
        """The next missing offset above ``offset``; far away if there is none."""
        starts = [part.start for part in self.missing if part.start > offset]
        return min(starts, default=_FOR_EVER)

    def diverged(self, offset: int, leader_epoch: int) -> int | None:
        """The offset below ``offset`` at which the log left the branch of ``leader_epoch``; None if it did not."""
        if self.stored is None or leader_epoch < 0:
            return None
        ended = self.lineage.end_offset(leader_epoch, _FOR_EVER)
        return ended[1] if ended is not None and ended[1] < offset else None


def left_branch(before: WatermarkView, lineage: Lineage, sealed: int) -> bool:
    """True if offsets that ``before`` had, its tail's too, are taken back, or of another epoch now."""
    if before.stored is None:
        return False
    return sealed < before.sealed or before.lineage.divergence(lineage, before.end) is not None


def readable_end(watermark: Watermark, missing: Intervals) -> int:
    """The offset after the last sealed one, above recorded gaps as well, but not above an unrecorded hole.

    Beyond such a hole an upload is under way; those offsets can be read once the hole is filled or recorded.
    """
    start = watermark.start_offset
    present = Intervals([(start, max(start, watermark.next_offset)), *watermark.ranges_above])
    recorded = Intervals.of((*watermark.gaps, *watermark.acknowledged_gaps))
    limit = (present | recorded).contiguous_from(start)
    readable = present.clip(start, max(start, limit)) - missing
    return readable.parts[-1].end if readable else start


def open_and_passed(
    watermark: Watermark, acknowledged: Intervals, *, kafka_too: bool
) -> tuple[tuple[Gap, ...], Intervals]:
    """(the gaps that still stop readers, the offsets that a person acknowledged as lost).

    An acknowledgement may be newer than the watermark. If it covers offsets that are not missing, these are read. A
    reader of Kafka, too, is always stopped by what Kafka's own remote tier still has.
    """
    before = Intervals.of(watermark.acknowledged_gaps)
    holding, passed = split_acknowledged(watermark.gaps, acknowledged | before)
    passed = (*watermark.acknowledged_gaps, *passed)
    if kafka_too:
        holding = tuple(sorted((*holding, *(gap for gap in passed if gap.in_remote_tier)), key=lambda gap: gap.start))
    return holding, Intervals.of(passed) - Intervals.of(holding)
