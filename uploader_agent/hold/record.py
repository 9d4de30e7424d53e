"""The record of a held segment: written when it is first seen, and the basis of every later check."""

from __future__ import annotations

from pydantic import Field

from tidemark.formats.base import StoredObject
from tidemark.formats.keys import TopicPartition
from tidemark.kafka_log import Lineage
from uploader_agent.disk.log_dirs import LocalSegment
from uploader_agent.disk.segment_files import file_name


class HeldSegment(StoredObject):
    """A rotated segment of a partition of one topic id.

    ``size`` and ``modified`` (seconds since 1970) are those of its ``.log``, ``files`` the names of all files that are
    held; ``lineage`` ends at ``next_offset``. ``deleted`` states that the segment was first seen as ``.log.deleted``,
    so that its lineage comes from its batches alone.
    """

    topic: str
    partition: int = Field(ge=0)
    topic_id: str | None
    base_offset: int = Field(ge=0)
    next_offset: int = Field(ge=0)
    size: int = Field(ge=0)
    modified: float
    leader_epoch: int
    lineage: tuple[tuple[int, int], ...]
    files: tuple[str, ...]
    deleted: bool = False

    @property
    def tp(self) -> TopicPartition:
        """The segment's partition."""
        return TopicPartition(self.topic, self.partition)

    @property
    def segment(self) -> LocalSegment:
        """The segment as the log directory showed it."""
        return LocalSegment(self.base_offset, self.next_offset, self.size, self.modified)

    @property
    def log(self) -> str:
        """The name of its ``.log``."""
        return file_name(self.base_offset, "log")

    def diverges(self, lineage: Lineage, end: int | None = None) -> int | None:
        """The first of its offsets that ``lineage``, known below ``end``, assigns to another epoch."""
        limit = self.next_offset if end is None else min(self.next_offset, end)
        return Lineage(self.lineage).divergence(lineage, limit)
