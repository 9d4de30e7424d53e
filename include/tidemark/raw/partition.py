"""A partition of one incarnation, and the state of it that a reader has seen in the store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tidemark.formats.keys import PartitionKeys
from tidemark.formats.raw.watermark import Watermark
from tidemark.kafka_log import Lineage
from tidemark.raw.packs import Tails
from tidemark.raw.segments import Segment
from tidemark.storage import StoredWatermark


@dataclass(frozen=True, slots=True)
class RawPartition:
    """A partition of one incarnation, and its keys."""

    incarnation: int
    topic_id: str | None
    keys: PartitionKeys

    @property
    def key(self) -> tuple[int, int]:
        """(incarnation, partition)."""
        return self.incarnation, self.keys.partition


@dataclass(frozen=True, slots=True)
class PartitionView:
    """``offset.wm``, and the tails that it lists; their heads were read before it."""

    part: RawPartition
    stored: StoredWatermark
    tails: Tails

    @property
    def watermark(self) -> Watermark:
        """Line 2 of ``offset.wm``."""
        return self.stored.watermark

    @property
    def lineage(self) -> Lineage:
        """The newest lineage."""
        return self.stored.lineage

    @property
    def end(self) -> int:
        """The highest offset that may exist: the watermark's, or the end of the longest tail."""
        return max(self.watermark.next_offset, self.tails.end)


class SegmentWindow(NamedTuple):
    """Segments of a partition from an offset on; ``complete`` unless the limit of bytes left out later segments."""

    segments: list[Segment]
    complete: bool
