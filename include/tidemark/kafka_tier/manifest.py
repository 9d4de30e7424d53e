"""The ``.rsm-manifest`` of a copy: how its ``.log`` is cut into chunks, where its indexes lie, what Kafka said of it.

Unknown fields are ignored: newer brokers add some. Everything else that breaks the format raises FormatError with the
object's key and the field.

The key of an object is ``<prefix><topic>-<topic id>/<partition>/<base offset, 20 digits>-<segment id>.<kind>``. The
prefix is the plugin's ``key.prefix`` and is glued on as it is: a slash is there only if it was configured.
"""

from __future__ import annotations

import re
from binascii import Error as NotBase64
from binascii import a2b_base64
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Annotated, Final, Literal, NamedTuple, Self, cast

from pydantic import AliasPath, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from tidemark.errors import ConfigError, FormatError
from tidemark.formats.base import Model, describe
from tidemark.kafka_log import Lineage

Kind = Literal["log", "indexes", "rsm-manifest"]

KINDS: Final[tuple[Kind, ...]] = ("log", "indexes", "rsm-manifest")
"""In the order in which the plugin writes them."""

_ID = r"[A-Za-z0-9_-]{22}"
# A topic's name and an id may both contain "-": the fixed length of an id tells where the name ends.
_KEY: Final = re.compile(
    rf"([A-Za-z0-9._-]{{1,249}})-({_ID})/(0|[1-9][0-9]{{0,9}})/([0-9]{{20}})-({_ID})\.({'|'.join(KINDS)})", re.ASCII
)


class CopyName(NamedTuple):
    """The name of a copy of a segment. Two copies of one segment differ in ``segment_id`` alone.

    ``topic_id`` and ``segment_id`` are in Kafka's notation: 22 characters of URL-safe base64.
    """

    topic: str
    topic_id: str
    partition: int
    base: int
    segment_id: str

    def key(self, prefix: str, kind: Kind) -> str:
        """The key of one of the copy's objects."""
        folder = f"{prefix}{self.topic}-{self.topic_id}/{self.partition}"
        return f"{folder}/{self.base:020d}-{self.segment_id}.{kind}"


def parse_key(key: str, prefix: str) -> tuple[CopyName, Kind] | None:
    """The copy and the kind of the object ``key``; None if it is no object of the remote tier below ``prefix``."""
    match = _KEY.fullmatch(key.removeprefix(prefix)) if key.startswith(prefix) else None
    if match is None or int(match[4]) >= 1 << 63:
        return None
    return CopyName(match[1], match[2], int(match[3]), int(match[4]), match[5]), cast("Kind", match[6])


MOST_BYTES: Final = 16 << 20
"""The largest ``.rsm-manifest`` that is read: a log of 4 GiB in chunks of 4 KiB has less."""

SEALED_BYTES: Final = 28
"""The bytes by which encryption makes a piece longer: 12 of the IV before it, 16 of the tag after it."""

_MOST_CHUNKS: Final = 1 << 20
_MOST_LOG: Final = (1 << 31) - 1

_Size = Annotated[int, Field(ge=0, le=_MOST_LOG)]
_ChunkSize = Annotated[int, Field(gt=0, le=_MOST_LOG)]
_Offset = Annotated[int, Field(ge=0)]


class _Part(Model):
    model_config = ConfigDict(alias_generator=to_camel)


class FixedChunks(_Part):
    """All chunks but the last take the same bytes in the object."""

    original_chunk_size: _ChunkSize
    original_file_size: _Size
    kind: Literal["fixed"] = Field(alias="type")
    transformed_chunk_size: _Size
    final_transformed_chunk_size: _Size

    def stored_sizes(self, count: int) -> Sequence[int]:
        """The bytes of each of ``count`` chunks in the object."""
        return [*[self.transformed_chunk_size] * (count - 1), self.final_transformed_chunk_size] if count else []


class VariableChunks(_Part):
    """``transformed_chunks`` is base64 of a zstd frame of the sizes, see :func:`_unpacked`."""

    original_chunk_size: _ChunkSize
    original_file_size: _Size
    kind: Literal["variable"] = Field(alias="type")
    transformed_chunks: str

    def stored_sizes(self, count: int) -> Sequence[int]:
        """The bytes of each chunk in the object, which has ``count``. Raises ValueError if they do not parse."""
        try:
            frame = a2b_base64(self.transformed_chunks, strict_mode=True)
        except NotBase64 as error:
            raise ValueError("transformedChunks is not base64") from error
        return _unpacked(decompressed(frame, most=13 + 4 * count))


def _unpacked(raw: bytes) -> Sequence[int]:
    """The sizes in their packed form, in which all numbers are big-endian. Raises ValueError.

    It has the count (4 bytes) and, of a single chunk, its size (4). Of several chunks it has a base (4), the width of a
    value (1), for each chunk but the last a value of this width, to be added to the base, and the last size (4).
    """

    def number(start: int, width: int) -> int:
        return int.from_bytes(raw[start : start + width], "big")

    count = number(0, 4)
    base, width = (number(4, 4), number(8, 1)) if count > 1 else (0, 0)
    if count > 1 and not 1 <= width <= 4:
        raise ValueError(f"transformedChunks has values of {width} bytes, not 1 to 4")
    last = 9 + (count - 1) * width if count > 1 else 4
    end = last + 4 if count else last
    if end != len(raw):
        raise ValueError(f"transformedChunks has {len(raw)} bytes, and {count} chunks take {end}")
    sizes = [base + number(at, width) for at in range(9, last, width)] if count > 1 else []
    return [*sizes, number(last, 4)] if count else []


class Chunk(NamedTuple):
    """``size`` bytes of the original ``.log``, in ``stored`` bytes of the object from ``at`` on."""

    size: int
    at: int
    stored: int


class IndexSpan(_Part):
    """The bytes of an index in ``.indexes``, as stored."""

    position: _Size
    size: _Size


class IndexSpans(_Part):
    """The indexes of a copy, one after the other in this order. Without a transaction index there was none to copy."""

    offset: IndexSpan
    timestamp: IndexSpan
    producer_snapshot: IndexSpan
    leader_epoch: IndexSpan
    transaction: IndexSpan | None

    @property
    def all(self) -> list[IndexSpan]:
        """Those that are there, in order."""
        spans = (self.offset, self.timestamp, self.producer_snapshot, self.leader_epoch, self.transaction)
        return [span for span in spans if span is not None]

    @property
    def size(self) -> int:
        """The size of the ``.indexes`` object."""
        return sum(span.size for span in self.all)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if [span.position for span in self.all] != [0, *accumulate(span.size for span in self.all)][:-1]:
            raise ValueError("the indexes must follow one another without a gap")
        return self


class Encryption(_Part):
    """``data_key`` is the key of this copy under a key pair: ``<id of the key pair>:<base64>``; ``aad`` is base64."""

    data_key: str = Field(pattern=r"^[^:]+:[A-Za-z0-9+/=]+$")
    aad: str

    @property
    def key_pair(self) -> str:
        """The id of the key pair."""
        return self.data_key.partition(":")[0]


_ID_OF_SEGMENT: Final = "remoteLogSegmentId"
_TOPIC_ID_PARTITION: Final = (_ID_OF_SEGMENT, "topicIdPartition")
_TOPIC_PARTITION: Final = (*_TOPIC_ID_PARTITION, "topicPartition")
"""The objects within one another that name the segment."""


class SegmentMetadata(_Part):
    """What Kafka said when the copy began. ``end_offset`` is inclusive, ``event_timestamp_ms`` that of the beginning.

    ``segment_leader_epochs`` has each epoch's first offset in this segment; the first epoch may have begun before it.
    """

    topic: str = Field(validation_alias=AliasPath(*_TOPIC_PARTITION, "topic"))
    partition: int = Field(ge=0, validation_alias=AliasPath(*_TOPIC_PARTITION, "partition"))
    topic_id: str = Field(validation_alias=AliasPath(*_TOPIC_ID_PARTITION, "topicId"))
    segment_id: str = Field(validation_alias=AliasPath(_ID_OF_SEGMENT, "id"))
    start_offset: _Offset
    end_offset: _Offset
    broker_id: int
    event_timestamp_ms: int
    segment_leader_epochs: dict[Annotated[int, Field(ge=0)], _Offset] = Field(min_length=1)

    @property
    def next_offset(self) -> int:
        """The offset after the last one."""
        return self.end_offset + 1

    @property
    def epochs(self) -> tuple[tuple[int, int], ...]:
        """(leader epoch, its first offset in this segment), ascending."""
        return tuple(sorted(self.segment_leader_epochs.items()))

    @property
    def lineage(self) -> Lineage:
        """:attr:`epochs` as a lineage that begins with the segment."""
        return Lineage(self.epochs)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.end_offset < self.start_offset:
            raise ValueError(f"endOffset {self.end_offset} is below startOffset {self.start_offset}")
        starts = [start for _, start in self.epochs]
        if starts[0] != self.start_offset or starts[-1] > self.end_offset:
            raise ValueError("segmentLeaderEpochs must begin at startOffset, and not above endOffset")
        if any(later <= start for start, later in pairwise(starts)):
            raise ValueError("segmentLeaderEpochs must begin at increasing offsets")
        return self


class TierManifest(_Part):
    """A parsed ``.rsm-manifest``."""

    version: Literal["1"]
    chunk_index: Annotated[FixedChunks | VariableChunks, Field(discriminator="kind")]
    segment_indexes: IndexSpans
    compression: bool
    encryption: Encryption | None = None
    about: SegmentMetadata = Field(alias="remoteLogSegmentMetadata")
    """What Kafka said of the segment."""

    @classmethod
    def parse(cls, body: bytes, key: str, name: CopyName) -> TierManifest:
        """The manifest of the copy ``name`` under ``key``.

        Raises:
            FormatError: it does not parse, names the field and the rule; or it is that of another segment.
        """
        try:
            manifest = cls.model_validate_json(body)
        except ValidationError as error:
            raise FormatError(key, describe(error)) from error
        if manifest.name != name:
            rule = f"describes {manifest.name}, and its key names another segment"
            raise FormatError(key, f"remoteLogSegmentMetadata: {rule}: it was copied or renamed")
        return manifest

    @property
    def name(self) -> CopyName:
        """The name of the copy that it describes."""
        about = self.about
        return CopyName(about.topic, about.topic_id, about.partition, about.start_offset, about.segment_id)

    @property
    def size(self) -> int:
        """The size of the original ``.log``."""
        return self.chunk_index.original_file_size

    @property
    def is_plain(self) -> bool:
        """True if the ``.log`` object is the original log, byte for byte."""
        return not self.compression and self.encryption is None

    def chunks(self, key: str) -> list[Chunk]:
        """All chunks, in order. Raises FormatError under the manifest's ``key`` if their sizes do not parse."""
        step = self.chunk_index.original_chunk_size
        count = -(-self.size // step)
        if count > _MOST_CHUNKS:
            raise FormatError(key, f"chunkIndex: {count} chunks are more than {_MOST_CHUNKS}")
        try:
            stored = self.chunk_index.stored_sizes(count)
        except ValueError as error:
            raise FormatError(key, f"chunkIndex: {error}") from error
        if len(stored) != count:
            raise FormatError(key, f"chunkIndex: has {len(stored)} chunks, and a log of {self.size} has {count}")
        sizes = [min(step, self.size - start) for start in range(0, self.size, step)]
        longer = 0 if self.encryption is None else SEALED_BYTES
        if not self.compression and any(one != size + longer for one, size in zip(stored, sizes, strict=True)):
            raise FormatError(key, "chunkIndex: has other sizes than chunks of this log that are not compressed")
        places = [0, *accumulate(stored)]
        return [Chunk(size, at, taken) for size, at, taken in zip(sizes, places, stored, strict=False)]


def decompressed(frame: bytes, most: int) -> bytes:
    """The content of ``frame``, which has nothing behind it and at most ``most`` bytes in it.

    Raises:
        ValueError: it is no such frame.
        ConfigError: the package that reads it is not installed.
    """
    try:
        import zstandard
    except ImportError as error:
        raise ConfigError("zstandard", [("", "is not installed: pip install 'tidemark-kafka[kafka-tier]'")]) from error
    try:
        stated = zstandard.frame_content_size(frame)
        if stated > most:
            raise ValueError(f"states {stated} bytes, and at most {most} are expected")
        return zstandard.ZstdDecompressor().decompress(frame, max_output_size=most, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise ValueError(f"is no zstd frame: {error}") from error
