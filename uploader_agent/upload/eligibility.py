"""Which segments may go: pure decisions over what the disk shows, what the store has and what the broker says.

A segment may go once it is rotated and its end is at or below the high watermark: retention on the broker follows the
high watermark too, so waiting for the last stable offset would lose data behind a transaction that hangs. The tail
of a partition without appends may go up to the high watermark, as provisional: Kafka rolls a segment on append only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tidemark.intervals import Intervals
from uploader_agent.disk.log_dirs import LocalSegment


class Work(NamedTuple):
    """A segment to upload, up to ``end``; ``provisional`` if it may still grow."""

    base_offset: int
    end: int
    size: int
    provisional: bool


def finished(segments: Sequence[LocalSegment], final: Intervals, high_watermark: int) -> list[Work]:
    """Rotated segments that may go and are not in ``final``, the offsets of which the store has a final copy."""
    return [
        Work(segment.base_offset, segment.next_offset, segment.size, provisional=False)
        for segment in segments
        if segment.next_offset is not None
        and segment.next_offset <= high_watermark
        and final.missing(segment.base_offset, segment.next_offset)
    ]


def quiet_tail(
    segments: Sequence[LocalSegment], present: Intervals, high_watermark: int, quiet_before: float
) -> list[Work]:
    """The active segment, if it was last appended to before ``quiet_before`` (seconds since 1970) and has news."""
    for segment in segments[-1:]:
        news = segment.base_offset < high_watermark and present.missing(segment.base_offset, high_watermark)
        if news and segment.size and segment.modified <= quiet_before:
            return [Work(segment.base_offset, high_watermark, segment.size, provisional=True)]
    return []


def waiting_for(segments: Sequence[LocalSegment], final: Intervals, high_watermark: int) -> bool:
    """Whether a rotated segment waits for the high watermark to pass its end, as far as is known."""
    return any(
        segment.next_offset is not None
        and segment.next_offset > high_watermark
        and final.missing(segment.base_offset, segment.next_offset)
        for segment in segments
    )
