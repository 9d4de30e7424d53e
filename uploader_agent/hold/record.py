"""What is written down about a held segment when it is first seen, and what it is judged by ever after."""

from __future__ import annotations

from pydantic import Field

from tidemark.formats.base import StoredObject
from tidemark.formats.keys import TopicPartition
from tidemark.kafka_log import Lineage
from uploader_agent.disk.log_dirs import LocalSegment
from uploader_agent.disk.segment_files import file_name


class HeldSegment(StoredObject):
    """A rotated segment of a partition of one topic id.

    ``size`` and ``modified`` (seconds since 1970) are its ``.log``'s, ``rotated_at`` the time of its rotation,
    ``files`` the names of all files that are held; ``lineage`` ends at ``next_offset``. ``deleted`` says that it was
    first seen as ``.log.deleted``, so that its lineage is known from its batches alone.
    """

    topic: str
    partition: int = Field(ge=0)
    topic_id: str | None
    base_offset: int = Field(ge=0)
    next_offset: int = Field(ge=0)
    size: int = Field(ge=0)
    modified: float
    rotated_at: float
    leader_epoch: int
    lineage: tuple[tuple[int, int], ...]
    files: tuple[str, ...]
    deleted: bool = False

    @property
    def at(self) -> TopicPartition:
        """The partition."""
        return TopicPartition(self.topic, self.partition)

    @property
    def segment(self) -> LocalSegment:
        """The segment as the log directory showed it."""
        return LocalSegment(self.base_offset, self.next_offset, self.size, self.modified)

    @property
    def log(self) -> str:
        """The name of its ``.log``."""
        return file_name(self.base_offset, "log")

    @property
    def snapshot(self) -> str:
        """The name of the producer snapshot at its end."""
        return file_name(self.next_offset, "snapshot")

    def diverges(self, lineage: Lineage, end: int | None = None) -> int | None:
        """The first of its offsets that ``lineage``, which is known below ``end``, gives to another epoch."""
        known = self.next_offset if end is None else min(self.next_offset, end)
        return Lineage(self.lineage).divergence(lineage, known)
