"""Which raw segments hold given offsets of a partition, and which of those offsets are gone from raw."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from tidemark.formats.plan import ConversionTask, PartitionPlan
from tidemark.intervals import Interval, Intervals
from tidemark.kafka_log import Lineage
from tidemark.planning.partition_plan import clipped
from tidemark.raw.byte_ranges import TARGET_BYTES, ranges_of, tasks_of
from tidemark.raw.segments import Segment, SegmentPiece, cover, whole_lineage
from tidemark.raw.topic import RawPartition, RawTopic
from tidemark.raw.transactions import aborted_from, decided_by

_NO_LIMIT: Final = 1 << 62


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
    committed: bool = True,
    keep: Callable[[Segment], bool] = lambda _: True,
) -> RawPart:
    """How to read the offsets ``wanted`` of a partition from raw, as far as raw has them.

    ``known`` is an older lineage, for offsets that the newest does not cover. Unless ``committed`` is false, offsets
    count as gone if raw does not show whether they were committed, and aborted transactions are left out. Segments that
    ``keep`` refuses are not read, and their offsets are not gone.
    """
    watermark = raw.watermark(part)
    lineage = known
    pieces: list[SegmentPiece] = []
    deciding: list[Segment] = []
    gone = Intervals()
    for span in wanted:
        if watermark is None:
            gone |= Intervals([span])
            continue
        newest = Lineage(watermark.lineage)
        segments = raw.segments(part, span.start, span.end, newest, _NO_LIMIT).segments
        lineage = whole_lineage(newest, lineage, segments)
        found, holes = _covered(segments, lineage, span)
        more, end = segments, span.end
        if committed:
            more, end = _deciding(raw, part, span, segments, watermark.next_offset, newest)
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
        leader_epoch=-1 if watermark is None else watermark.leader_epoch,
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


def _deciding(
    raw: RawTopic, part: RawPartition, span: Interval, segments: list[Segment], stop: int, lineage: Lineage
) -> tuple[list[Segment], int]:
    """``segments`` and the later ones that decide their transactions; and up to which offset of the span they do."""
    found = list(segments)
    end = span.end
    while found and (end := decided_by(found, lineage, span.end)) < span.end:
        window = raw.segments(part, max(segment.end for segment in found), stop, lineage, TARGET_BYTES)
        if not window.segments:
            break
        found += window.segments
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
