"""A segment's manifest: written after all its other objects, it makes the segment count as present.

It describes the bytes (offsets, epochs, times, open transactions), the state of the partition at the broker when they
were read, and the size, CRC32C and ETag of each object, so that a reader can prove that it reads the very bytes that
the agent sent.
"""

from __future__ import annotations

from binascii import Error as NotBase64
from binascii import a2b_base64, b2a_base64
from collections.abc import Mapping
from typing import Annotated, ClassVar, Final, Literal, Self

from pydantic import AfterValidator, AwareDatetime, Field, model_validator

from tidemark.formats import object_sizes
from tidemark.formats.base import AS_MODEL, Model, StoredObject
from tidemark.formats.keys import SegmentName
from tidemark.kafka_log import AbortedTransaction, BatchHeader, Lineage, OpenTransaction
from tidemark.kafka_log.batch import HEADER_SIZE, PREFIX_SIZE, check_prefix, header_bytes, read_header

LineagePairs = tuple[tuple[int, int], ...]
"""(leader epoch, its start offset), ascending: Kafka's ``leader-epoch-checkpoint``."""

Restores = tuple[Annotated[int, Field(ge=0)], ...]
"""The offsets from which on a restored broker's log has replaced the one before, in order; beside each lineage."""

OpenTransactions = tuple[Annotated[OpenTransaction, AS_MODEL], ...]
"""Transactions that are neither committed nor aborted at an offset."""

AbortedTransactions = tuple[Annotated[AbortedTransaction, AS_MODEL], ...]

Origin = Literal["disk", "fetch"]
"""The way in which an agent got a log: from its broker's own disk, or by Fetch, by topic id and leader epochs."""


class ObjectSum(Model):
    """The proof of an object: size in bytes, CRC32C as 8 hexadecimal digits, ETag from the store."""

    size: int = Field(ge=0)
    crc32c: str = Field(pattern="^[0-9a-f]{8}$")
    etag: str


class ReferredLog(ObjectSum):
    """The proof of a log that lies where another system has put it, under ``key`` of the store at the URL ``store``.

    ``owner`` names that system. Tidemark reads the object and never writes or deletes it; its owner may delete it.
    """

    store: str
    key: str
    owner: Literal["kafka"]


OWNERS: Final = {"kafka": "Kafka's remote tier"}
"""The systems to which a :class:`ReferredLog` belongs, in words."""

REFERRED_NEED: Final = "1.1.0"
"""The first version that reads a manifest with ``refers``. An earlier one would not find the log."""


class SegmentDamage(Model):
    """The first bad batch of a segment that breaks the record-batch format."""

    position: int
    offset: int
    rule: str


def compacts(cleanup_policy: str) -> bool:
    """True if the broker's cleaner may remove records under a topic's ``cleanup.policy``."""
    return "compact" in cleanup_policy.split(",")


class PackedPart(Model):
    """A range of a pack with its bytes in the segment, proved by CRC32C; ``shipped_at`` is the range's."""

    first: int = Field(ge=0)
    next: int = Field(ge=0)
    crc32c: str = Field(pattern="^[0-9a-f]{8}$")
    shipped_at: AwareDatetime


class ErasedRecords(Model):
    """The records that a rewriting has left out: the digests of their masks, and how many of each batch, by offset.

    ``replaces`` names the log that had them, in its version ``etag``.
    """

    replaces: str
    etag: str
    masks: tuple[str, ...]
    batches: tuple[tuple[int, int], ...]


def _check(text: str) -> str:
    batch_of(text)
    return text


LastBatch = Annotated[str, AfterValidator(_check)]
"""The stored form of the header of the last stored batch, as a manifest, a range or an index entry states it.

With it, a log shows whether it is the stored one without any request to the store: a lineage alone does not prove that
after brokers were restored from a backup.
"""


class SegmentManifest(StoredObject):
    """The description of one uploaded segment.

    ``last_batch_end`` is the next offset after the last batch in the file; ``next_offset`` is the start of the next
    segment. They differ when compaction emptied the tail. ``first_timestamp`` is that of the first data batch,
    ``max_timestamp`` the largest of all batches, markers of transactions included (milliseconds since 1970, None
    without such a batch). ``delete_retention_ms`` is the topic's ``delete.retention.ms``; None if it is unknown.
    ``rotated_at`` is None for a segment that was sealed from an active one. ``objects`` is keyed by file name.
    ``suffix`` is that of the segment's :attr:`name`. ``parts`` are the ranges of packs that lie in the
    segment as a whole, by their offsets: they prove that the packs are not needed for these ranges. ``last_batch`` is
    the last batch as the log had it (None: not stated, or no batch).

    With ``refers``, the segment's log is another system's object, and no object of the segment's name: ``objects`` has
    the others. Such a manifest has format 2, and ``needs`` names the version that reads it.

    A segment that was rewritten without ``erased`` records has all else from the manifest before: times are judged by
    ``uploaded_at`` and ``parts``, although the bytes are younger and lack records of these parts.
    """

    most_bytes: ClassVar[int] = object_sizes.MANIFEST

    format: Literal[1, 2] = 1  # type: ignore[assignment]  # it reads both
    needs: str | None = None
    cluster: str
    topic: str
    topic_id: str | None
    partition: int = Field(ge=0)
    base_offset: int = Field(ge=0)
    suffix: str = ""
    last_batch_end: int = Field(ge=0)
    next_offset: int = Field(ge=0)
    lineage: LineagePairs
    restores: Restores = ()
    first_timestamp: int | None
    max_timestamp: int | None
    batch_count: int = Field(ge=0)
    magics: tuple[int, ...]
    codecs: tuple[str, ...]
    open_transactions: OpenTransactions
    log_start_offset: int
    high_watermark: int
    last_stable_offset: int | None
    offsets_from: Literal["broker", "checkpoint"]
    cleanup_policy: str
    delete_retention_ms: int | None = None
    rotated_at: AwareDatetime | None
    uploaded_at: AwareDatetime
    broker: int
    origin: Origin = "disk"
    agent_version: str
    state: Literal["whole", "corrupt"]
    damage: SegmentDamage | None = None
    objects: dict[str, ObjectSum]
    parts: tuple[PackedPart, ...] = ()
    erased: ErasedRecords | None = None
    last_batch: LastBatch | None = None
    refers: ReferredLog | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.base_offset <= self.last_batch_end <= self.next_offset:
            raise ValueError("base_offset, last_batch_end and next_offset must not decrease in this order")
        if (self.state == "corrupt") != (self.damage is not None):
            raise ValueError("damage is given if and only if state is 'corrupt'")
        if self.refers is not None and (self.format == 1 or self.damage is not None or self.log_name in self.objects):
            raise ValueError("refers needs format 2, and a segment that is whole and has no log of its own")
        return self

    def referring(self, refers: ReferredLog | None) -> Self:
        """A copy whose log is that of ``refers``, or its own, in the format that it needs."""
        later = {"format": 2, "needs": REFERRED_NEED} if refers is not None else {"format": 1, "needs": None}
        return self.model_copy(update={"refers": refers, **later})

    def with_sums(self, sums: Mapping[str, ObjectSum]) -> Self:
        """A copy with other sums of all of :attr:`sums`, which state other ETags of the same bytes."""
        if self.refers is None:
            return self.model_copy(update={"objects": dict(sums)})
        own = {name: described for name, described in sums.items() if name != self.log_name}
        refers = self.refers.model_copy(update={"etag": sums[self.log_name].etag})
        return self.model_copy(update={"objects": own, "refers": refers})

    @property
    def log(self) -> ObjectSum | None:
        """The sum of the object that has the bytes, wherever it lies; None if none is named."""
        return self.refers or self.objects.get(self.log_name)

    @property
    def sums(self) -> dict[str, ObjectSum]:
        """The sums of all objects by file name, with that of a log that lies elsewhere."""
        return self.objects if self.refers is None else {**self.objects, self.log_name: self.refers}

    @property
    def name(self) -> SegmentName:
        """The common name of the segment's objects."""
        return SegmentName(self.base_offset, self.suffix)

    @property
    def history(self) -> Lineage:
        """The lineage of the log up to the segment's end."""
        return Lineage(self.lineage, self.restores)

    @property
    def log_name(self) -> str:
        """The name of the object that has the bytes: a ``.log``, or a ``.corrupt`` if they are damaged."""
        return self.name.file("corrupt" if self.damage else "log")

    @property
    def gone(self) -> dict[int, int]:
        """The number of erased records by the base offset of their batch."""
        return dict(self.erased.batches) if self.erased else {}

    @property
    def compacted(self) -> bool:
        """True if missing offsets may have been removed by compaction."""
        return compacts(self.cleanup_policy)


def batch_of(text: str) -> BatchHeader:
    """The header in its stored form, at position 0. Raises ValueError."""
    try:
        data = a2b_base64(text, strict_mode=True)
    except NotBase64 as error:
        raise ValueError("must be the header of a batch, in base64") from error
    whole = (
        len(data) >= PREFIX_SIZE and check_prefix(data, 0) is None and len(data) == HEADER_SIZE[data[PREFIX_SIZE - 1]]
    )
    if not whole:
        raise ValueError("must be the header of a batch, in base64")
    return read_header(data, 0, 0)


def last_batch_of(header: BatchHeader | None) -> str | None:
    """The stored form of ``header``: its bytes as Kafka writes them, in base64."""
    return None if header is None else b2a_base64(header_bytes(header), newline=False).decode()
