"""The runs of a log that may be sealed: pure decisions from the state of disk, store and broker.

A run may be sealed if it lies below the high watermark. Retention on the broker follows the high watermark too, so
waiting for the last stable offset would lose data behind a transaction that hangs. Offsets of a rotated segment that
the store lacks are sealed at once. The tail of a partition without appends is sealed up to the high watermark, since
Kafka rolls a segment only on an append.

Bytes of an active segment may also be packed: :mod:`uploader_agent.packing.thread` decides when, and
:mod:`uploader_agent.packing.packer` up to which offset, the high watermark as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tidemark.intervals import Intervals
from uploader_agent.disk.log_dirs import LocalSegment


class SealRun(NamedTuple):
    """A run of one local segment to seal: the offsets ``[base_offset, end)``.

    ``segment`` is the base offset of the local segment, and ``segment_end`` that of the next one; None while it is
    active. Then the run ends with the last batch that lies below ``end``, the high watermark.
    """

    base_offset: int
    end: int
    segment: int
    segment_end: int | None

    @property
    def is_tail(self) -> bool:
        """True if the run is of an active segment."""
        return self.segment_end is None


def rotated_runs(segments: Sequence[LocalSegment], final: Intervals, high_watermark: int) -> Iterator[SealRun]:
    """The runs of rotated segments that may be sealed, without the ``final`` offsets, which need no upload."""
    for segment in segments:
        if segment.next_offset is not None and segment.next_offset <= high_watermark:
            for start, end in final.missing(segment.base_offset, segment.next_offset):
                yield SealRun(start, end, segment.base_offset, segment.next_offset)


def quiet_tail(
    segments: Sequence[LocalSegment], final: Intervals, high_watermark: int, quiet_before: float
) -> Iterator[SealRun]:
    """The run of the active segment, if its last append was before ``quiet_before`` and it has news.

    ``quiet_before`` is the current time less ``tail_after`` of the settings, in seconds since 1970.
    """
    for segment in segments[-1:]:
        if segment.size and segment.modified <= quiet_before and segment.base_offset < high_watermark:
            for start, end in final.missing(segment.base_offset, high_watermark):
                yield SealRun(start, end, segment.base_offset, None)


def tail_up_to(segments: Sequence[LocalSegment], final: Intervals, end: int) -> Iterator[SealRun]:
    """The run of the active segment up to ``end``, below the high watermark, since much of it is packed."""
    for segment in segments[-1:]:
        for start, stop in final.missing(segment.base_offset, end) if segment.base_offset < end else ():
            yield SealRun(start, stop, segment.base_offset, None)


def waiting_for(segments: Sequence[LocalSegment], final: Intervals, high_watermark: int) -> bool:
    """True if a rotated segment waits for the high watermark to pass its end, as far as is known."""
    return any(
        segment.next_offset is not None
        and segment.next_offset > high_watermark
        and final.missing(segment.base_offset, segment.next_offset)
        for segment in segments
    )
