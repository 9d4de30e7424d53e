"""A partition of one incarnation, and what a reader has found of it in the store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidemark.errors import FormatError, StoreError
from tidemark.formats.keys import PartitionKeys
from tidemark.formats.raw.head import HeadEntry
from tidemark.formats.raw.watermark import Watermark
from tidemark.kafka_log import Lineage
from tidemark.raw.packs import live_end
from tidemark.storage import PartitionStore, StoredWatermark


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
class StoredPartition:
    """A partition as :meth:`tidemark.raw.heads.LiveEnd.look` found it, from which planner, consumer and verify begin.

    It has ``offset.wm``, and the partition's entries in the heads that ``offset.wm`` lists, which were read before it.
    ``errors`` are those of the listed heads that cannot be read. Everything else that is stored follows from these two
    by the keys of ``place``: seals below the watermark, and behind them the ranges of the entries' chains.
    """

    place: PartitionStore
    stored: StoredWatermark
    entries: Sequence[HeadEntry] = ()
    errors: Sequence[FormatError | StoreError] = ()

    @property
    def watermark(self) -> Watermark:
        """Line 2 of ``offset.wm``."""
        return self.stored.watermark

    @property
    def lineage(self) -> Lineage:
        """The newest lineage."""
        return self.stored.lineage

    @property
    def tail_ends(self) -> list[tuple[int, HeadEntry]]:
        """The offset at which each entry's tail ends or leaves the lineage."""
        return [(live_end(entry, self.lineage), entry) for entry in self.entries]

    @property
    def end(self) -> int:
        """The highest offset that may exist: the watermark's, or the end of the longest tail."""
        return max([self.watermark.next_offset, *(end for end, _ in self.tail_ends)])
