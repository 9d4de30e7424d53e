"""The cuts of segments into byte ranges of about 64 MiB, and the tasks of that size that gather the ranges.

The cuts are entries of the segment's index at fixed byte targets. They do not depend on the number of cores. So equal
segments give equal ranges, tasks and files wherever a run happens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final, NamedTuple, TypeVar

from tidemark.formats.table.plan import SegmentRange, SegmentTask, Shipped, StoredTask
from tidemark.raw.segments import Segment, SegmentPiece

AnyTask = TypeVar("AnyTask", bound=StoredTask)

TARGET_BYTES: Final = 64 << 20
"""Size of a range and of a task."""


class BatchCut(NamedTuple):
    """Byte ``position`` of a segment's log, where a batch starts, and that batch's base ``offset``."""

    position: int
    offset: int


def ranges_of(piece: SegmentPiece, cuts: Sequence[BatchCut]) -> list[SegmentRange]:
    """The byte ranges that hold the offsets of ``piece``; ``cuts`` are the cuts inside its segment, ascending."""
    segment = piece.segment
    bounds = [BatchCut(segment.position, segment.base), *cuts, BatchCut(segment.stop, segment.end)]
    ranges: list[SegmentRange] = []
    for (start, first), (end, after) in pairwise(bounds):
        from_offset, to_offset = max(first, piece.start), min(after, piece.end)
        if from_offset < to_offset:
            ranges.append(
                SegmentRange(
                    store=segment.store,
                    key=segment.key,
                    etag=segment.etag,
                    base_offset=segment.base,
                    start=start,
                    end=end,
                    from_offset=from_offset,
                    to_offset=to_offset,
                    origin=segment.origin,
                    compacted=segment.compacted,
                    referred=segment.referred,
                    uploaded_at=segment.uploaded_at,
                    shipped=_shipped(segment, from_offset, to_offset),
                )
            )
    return ranges


def _shipped(segment: Segment, start: int, end: int) -> tuple[Shipped, ...]:
    """The packed parts of ``segment`` that have some of the offsets ``[start, end)``."""
    return tuple(
        Shipped(first=part.first, next=part.next, at=part.shipped_at)
        for part in segment.parts
        if part.first < end and part.next > start
    )


def tasks_of(
    incarnation: int, topic_id: str | None, partition: int, ranges: Iterable[SegmentRange]
) -> list[SegmentTask]:
    """Consecutive ``ranges`` of one partition gathered up to 64 MiB, so that small segments make no tiny files."""
    groups: list[list[SegmentRange]] = []
    size = 0
    for part in ranges:
        length = part.end - part.start
        if groups and groups[-1][-1].to_offset == part.from_offset and size + length <= TARGET_BYTES:
            groups[-1].append(part)
            size += length
        else:
            groups.append([part])
            size = length
    return [
        SegmentTask(incarnation=incarnation, topic_id=topic_id, partition=partition, ranges=tuple(group))
        for group in groups
    ]


def within(tasks: Sequence[AnyTask], size: int, count: int) -> list[AnyTask]:
    """The first ``tasks``, up to ``size`` bytes and ``count`` tasks, but at least one."""
    kept: list[AnyTask] = []
    for task in tasks:
        if kept and (len(kept) >= count or size < task.size):
            break
        kept.append(task)
        size -= task.size
    return kept
