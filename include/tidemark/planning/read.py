"""Which raw segments hold given offsets of a partition, and which of those offsets are gone from raw."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from tidemark.formats.plan import ConversionTask, PartitionPlan
from tidemark.intervals import Interval, Intervals
from tidemark.kafka_log import Lineage
from tidemark.planning.partition_plan import clipped
from tidemark.raw.byte_ranges import TARGET_BYTES, ranges_of, tasks_of
from tidemark.raw.partition import PartitionView, RawPartition
from tidemark.raw.segments import Segment, SegmentPiece, cover, live_end, whole_lineage
from tidemark.raw.topic import RawTopic
from tidemark.raw.transactions import aborted_from, decided_by

NO_LIMIT: Final = 1 << 62
"""Bytes of segments: all that hold the offsets."""


class RawPart(NamedTuple):
    """How to read a partition again, and the offsets ``gone`` that cannot be read."""

    plan: PartitionPlan
    tasks: list[ConversionTask]
    gone: Intervals


def plan_reading(
    raw: RawTopic,
    part: RawPartition,
    known: Lineage,
    wanted: Intervals,
    *,
    verdicts_end: int | None = None,
    committed: bool = True,
    keep: Callable[[Segment], bool] = lambda _: True,
) -> RawPart:
    """How to read the offsets ``wanted`` of a partition from raw, as far as raw has them.

    ``known`` is an older lineage, for offsets that the newest does not cover, and below ``verdicts_end`` lie all
    markers that decide them, if that is known. Unless ``committed`` is false, offsets count as gone if raw does not
    show whether they were committed, and aborted transactions are left out. Segments that ``keep`` refuses are not
    read, and their offsets are not gone.
    """
    view = raw.view(part)
    lineage = known
    pieces: list[SegmentPiece] = []
    deciding: list[Segment] = []
    gone = Intervals()
    for span in wanted:
        if view is None:
            gone |= Intervals([span])
            continue
        segments = raw.segments(view, span.start, span.end, NO_LIMIT).segments
        lineage = whole_lineage(view.lineage, lineage, segments)
        found, holes = _covered(segments, lineage, span)
        more, end = segments, span.end
        if committed:
            more, end = deciding_for(raw, view, span, segments, verdicts_end)
        pieces += [piece for piece in clipped(found, end) if keep(piece.segment)]
        gone |= holes | Intervals([(end, span.end)])
        deciding += more
    start = pieces[0].start if pieces else 0
    ranges = [one for piece in pieces for one in ranges_of(piece, raw.cuts(piece.segment))]
    plan = PartitionPlan(
        incarnation=part.incarnation,
        topic_id=part.topic_id,
        partition=part.keys.partition,
        start=start,
        end=pieces[-1].end if pieces else 0,
        leader_epoch=-1 if view is None else view.watermark.leader_epoch,
        lineage=lineage.entries,
        aborted=aborted_from(start, raw.aborted(deciding, lineage)) if committed else (),
    )
    return RawPart(plan, tasks_of(part.incarnation, part.topic_id, part.keys.partition, ranges), gone)


def _covered(segments: list[Segment], lineage: Lineage, span: Interval) -> tuple[list[SegmentPiece], Intervals]:
    """All pieces of ``span`` that segments hold, and the holes that they leave."""
    pieces: list[SegmentPiece] = []
    holes: list[Interval] = []
    at = span.start
    while at < span.end:
        found, hole = cover(segments, lineage, Intervals([(at, span.end)]))
        pieces += found
        if hole is None:
            break
        holes.append(hole)
        at = hole.end
    return pieces, Intervals(holes)


def deciding_for(
    raw: RawTopic, view: PartitionView, span: Interval, segments: list[Segment], verdicts_end: int | None = None
) -> tuple[list[Segment], int]:
    """``segments`` and the later ones that decide their transactions; and up to which offset of the span they do.

    All is decided once they reach ``verdicts_end``, if that is known: below it lie all markers of what has landed.
    """
    found, lineage = list(segments), view.lineage
    end, reached = span.end, -1
    while found and (end := decided_by(found, lineage, span.end)) < span.end:
        before, reached = reached, max(live_end(segment, lineage) for segment in found)
        if verdicts_end is not None and reached >= verdicts_end:
            return found, span.end
        if reached <= before:
            break
        found += raw.segments(view, reached, view.end, TARGET_BYTES).segments
    return found, end


def joined(hulls: Iterable[tuple[int, int]]) -> list[Interval]:
    """``hulls`` joined where they overlap, and not where they only touch."""
    found: list[Interval] = []
    for start, end in sorted(hulls):
        if found and start < found[-1].end:
            found[-1] = Interval(found[-1].start, max(found[-1].end, end))
        else:
            found.append(Interval(start, end))
    return found
