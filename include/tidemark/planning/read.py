"""The raw segments that hold given offsets of a partition, and the offsets that are gone from raw."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from tidemark.formats.table.plan import PartitionPlan, SegmentTask
from tidemark.intervals import Interval, Intervals
from tidemark.kafka_log import Lineage
from tidemark.planning.partition_plan import clipped
from tidemark.raw.byte_ranges import TARGET_BYTES, ranges_of, tasks_of
from tidemark.raw.partition import RawPartition, StoredPartition
from tidemark.raw.segments import Segment, SegmentPiece, aborted_from, cover, decided_by, live_end, whole_lineage
from tidemark.raw_topic import RawTopic
from tidemark.table.evidence import EvidenceRow

NO_LIMIT: Final = 1 << 62
"""A limit in bytes that takes all segments with the offsets."""


class RawPart(NamedTuple):
    """The plan to read a partition again, and the offsets ``gone`` that cannot be read."""

    plan: PartitionPlan
    tasks: list[SegmentTask]
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
    spared: Intervals | None = None,
) -> RawPart:
    """The plan to read the offsets ``wanted`` of a partition from raw, as far as raw has them.

    ``known`` is an older lineage, for offsets that the newest does not cover. Below ``verdicts_end`` lie all markers
    that decide them, if that is known. Unless ``committed`` is false, offsets count as gone if raw does not show
    whether they were committed, and aborted transactions are left out. Segments that ``keep`` refuses are not read, and
    their offsets are not gone. Masked offsets are left out, apart from ``spared`` ones.
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
        segments, _ = raw.segments(view, span.start, span.end, NO_LIMIT)
        lineage = whole_lineage(view.lineage, lineage, segments)
        covered, holes = _covered(segments, lineage, span)
        more, end = segments, span.end
        if committed:
            more, end = deciding_for(raw, view, span, segments, verdicts_end)
        pieces += [piece for piece in clipped(covered, end) if keep(piece.segment)]
        gone |= holes | Intervals([(end, span.end)])
        deciding += more
    start = pieces[0].start if pieces else 0
    ranges = [range_ for piece in pieces for range_ in ranges_of(piece, raw.cuts(piece.segment))]
    plan = PartitionPlan(
        incarnation=part.incarnation,
        topic_id=part.topic_id,
        partition=part.keys.partition,
        start=start,
        end=pieces[-1].end if pieces else 0,
        leader_epoch=-1 if view is None else view.watermark.leader_epoch,
        lineage=lineage.entries,
        restores=lineage.restores,
        aborted=aborted_from(start, raw.aborted(deciding, lineage)) if committed else (),
    )
    plan = raw.masked(part, plan, spared)
    return RawPart(plan, tasks_of(part.incarnation, part.topic_id, part.keys.partition, ranges), gone)


def _covered(segments: list[Segment], lineage: Lineage, span: Interval) -> tuple[list[SegmentPiece], Intervals]:
    """All pieces of ``span`` that segments hold, and the holes that they leave."""
    pieces: list[SegmentPiece] = []
    holes: list[Interval] = []
    position = span.start
    while position < span.end:
        covered, hole = cover(segments, lineage, Intervals([(position, span.end)]))
        pieces += covered
        if hole is None:
            break
        holes.append(hole)
        position = hole.end
    return pieces, Intervals(holes)


def deciding_for(
    raw: RawTopic, view: StoredPartition, span: Interval, segments: list[Segment], verdicts_end: int | None = None
) -> tuple[list[Segment], int]:
    """(``segments`` and the later segments that decide their transactions, the end of the decided offsets of the span).

    The whole span is decided once they reach ``verdicts_end``, if that is known: below it lie all deciding markers.
    """
    deciding, lineage = list(segments), view.lineage
    end, reached = span.end, -1
    while deciding and (end := decided_by(deciding, lineage, span.end)) < span.end:
        before, reached = reached, max(live_end(segment, lineage) for segment in deciding)
        if verdicts_end is not None and reached >= verdicts_end:
            return deciding, span.end
        if reached <= before:
            break
        deciding += raw.segments(view, reached, view.end, TARGET_BYTES)[0]
    return deciding, end


def spans_of(rows: Iterable[EvidenceRow]) -> list[Interval]:
    """The spans of offsets that rows of evidence tell apart."""
    return joined((row.first, row.next) for row in rows)


def joined(hulls: Iterable[tuple[int, int]]) -> list[Interval]:
    """``hulls`` joined if they overlap, but not if they only touch."""
    spans: list[Interval] = []
    for start, end in sorted(hulls):
        if spans and start < spans[-1].end:
            spans[-1] = Interval(spans[-1].start, max(spans[-1].end, end))
        else:
            spans.append(Interval(start, end))
    return spans
