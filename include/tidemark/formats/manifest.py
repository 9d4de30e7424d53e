"""A segment's manifest: written after all its other objects, it is what makes the segment count as present.

It says what the bytes hold (offsets, epochs, times, open transactions), what the broker said about the
partition when they were read, and the size, CRC32C and ETag of each object, so that a reader can prove that it
reads the very bytes that the agent sent.
"""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import AwareDatetime, Field, model_validator

from tidemark.formats import object_sizes
from tidemark.formats.base import Model, StoredObject
from tidemark.formats.keys import SegmentName
from tidemark.kafka_log import UnfinishedTransaction

LineagePairs = tuple[tuple[int, int], ...]
"""(leader epoch, its start offset), ascending: Kafka's ``leader-epoch-checkpoint``."""


class ObjectSum(Model):
    """What proves an object: size in bytes, CRC32C as 8 hexadecimal digits, ETag as the store gave it."""

    size: int = Field(ge=0)
    crc32c: str = Field(pattern="^[0-9a-f]{8}$")
    etag: str


class OpenTransaction(Model):
    """A transaction that is neither committed nor aborted at the segment's end."""

    producer_id: int
    producer_epoch: int
    first_offset: int

    @classmethod
    def of(cls, unfinished: UnfinishedTransaction) -> OpenTransaction:
        """As it is stored."""
        return cls(**unfinished._asdict())

    @property
    def unfinished(self) -> UnfinishedTransaction:
        """As the log's reader has it."""
        return UnfinishedTransaction(self.producer_id, self.producer_epoch, self.first_offset)


class SegmentDamage(Model):
    """Where a segment breaks the record-batch format: the first bad batch."""

    position: int
    offset: int
    rule: str


def compacts(cleanup_policy: str) -> bool:
    """Whether the broker's cleaner may remove records under a topic's ``cleanup.policy``."""
    return "compact" in cleanup_policy.split(",")


class PackedPart(Model):
    """A range of a pack whose bytes, by their CRC32C, the segment holds; ``shipped_at`` is the range's."""

    first: int = Field(ge=0)
    next: int = Field(ge=0)
    crc32c: str = Field(pattern="^[0-9a-f]{8}$")
    shipped_at: AwareDatetime


class SegmentManifest(StoredObject):
    """Everything that is known about one uploaded segment.

    ``last_batch_end`` is the next offset after the last batch that is in the file; ``next_offset`` is where the
    next segment starts. They differ when compaction emptied the tail. ``first_timestamp`` is that of the first
    data batch, ``max_timestamp`` the largest of all batches, markers of transactions included (milliseconds since 1970,
    None without such a batch). ``rotated_at`` is None for a segment that was sealed from an active one. ``objects`` is
    keyed by file name. ``suffix`` is that of the segment's :attr:`name`. ``parts`` are the ranges of packs that lie in
    the segment as a whole, by their offsets: what proves that the packs are not needed for them.
    """

    most_bytes: ClassVar[int] = object_sizes.MANIFEST

    cluster: str
    topic: str
    topic_id: str | None
    partition: int = Field(ge=0)
    base_offset: int = Field(ge=0)
    suffix: str = ""
    last_batch_end: int = Field(ge=0)
    next_offset: int = Field(ge=0)
    lineage: LineagePairs
    first_timestamp: int | None
    max_timestamp: int | None
    batch_count: int = Field(ge=0)
    magics: tuple[int, ...]
    codecs: tuple[str, ...]
    open_transactions: tuple[OpenTransaction, ...]
    log_start_offset: int
    high_watermark: int
    last_stable_offset: int | None
    offsets_from: Literal["broker", "checkpoint"]
    cleanup_policy: str
    rotated_at: AwareDatetime | None
    uploaded_at: AwareDatetime
    broker: int
    agent_version: str
    state: Literal["whole", "corrupt"]
    damage: SegmentDamage | None = None
    objects: dict[str, ObjectSum]
    parts: tuple[PackedPart, ...] = ()

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.base_offset <= self.last_batch_end <= self.next_offset:
            raise ValueError("base_offset, last_batch_end and next_offset must not decrease in this order")
        if (self.state == "corrupt") != (self.damage is not None):
            raise ValueError("damage is given if and only if state is 'corrupt'")
        return self

    @property
    def name(self) -> SegmentName:
        """What the segment's objects are called."""
        return SegmentName(self.base_offset, self.suffix)

    @property
    def log_name(self) -> str:
        """The name of the object that has the bytes: a ``.log``, or a ``.corrupt`` if they are damaged."""
        return self.name.file("corrupt" if self.damage else "log")

    @property
    def compacted(self) -> bool:
        """Whether missing offsets may have been removed by compaction."""
        return compacts(self.cleanup_policy)
