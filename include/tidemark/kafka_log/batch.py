"""The header of a record batch, and the rules that every batch of a segment must keep.

Promises: :func:`read_header` reads the header of an entry of any message format that a broker of today may still hold
on disk (magic 0, 1 and 2), and :func:`check_prefix` and :func:`check_header` name the first rule that it breaks.
Nothing here reads records. All integers in a segment are big-endian.

:func:`is_same` tells whether two batches at the same offsets are one. Compaction removes records from a batch, or the
whole batch. Of a batch that is left, offsets, epoch, producer and base sequence stay (``MemoryRecords.filterTo`` of
Kafka 4.3.1), and its checksum, times and number of records change. An erasure changes the same in a stored batch. So a
difference is told only if no rewriting explains it.

Source: Kafka's ``DefaultRecordBatch`` (magic 2, KIP-98), ``LegacyRecord`` and ``AbstractLegacyRecordBatch`` (magic 0
and 1, KIP-32), ``LogSegment.append`` (offsets relative to the segment's base fit 31 bits).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from enum import IntEnum
from struct import Struct
from typing import Final, Literal, NamedTuple, TypeVar

Buffer = bytes | bytearray | memoryview

LOG_OVERHEAD: Final = 12
"""Bytes before the part that a batch's length field counts: base offset (8) and the length itself (4)."""

PREFIX_SIZE: Final = 17
"""Bytes that every message format shares up to and including the magic byte."""

HEADER_SIZE: Final = (26, 34, 61)
"""Smallest entry by magic: in v0 and v1 with an empty key and value, in v2 with no records."""

CRC_START: Final = (16, 16, 21)
"""First byte under the checksum, by magic; CRC-32 for 0 and 1, CRC-32C for 2."""

MAX_BATCH_BYTES: Final = 1 << 30
"""A longer length field is taken for damage: a batch never exceeds its segment, which is 1 GiB by default."""

MAX_RELATIVE_OFFSET: Final = (1 << 31) - 1
"""Offsets in a segment are at most this far above its base (``LogSegment.ensureOffsetInRange``)."""

CODEC_MASK: Final = 0x07
APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
DELETE_HORIZON: Final = 0x40

Codec = Literal["none", "gzip", "snappy", "lz4", "zstd"]
TimestampType = Literal["create", "append"]

CODECS: Final[tuple[Codec, ...]] = ("none", "gzip", "snappy", "lz4", "zstd")

_PREFIX = Struct(">qiib")
_V2 = Struct(">qiibIhiqqqhii")
_V0 = Struct(">qiIbb")
_V1 = Struct(">qiIbbq")


class Rule(IntEnum):
    """Rules that a segment can break, in the order in which they are checked."""

    NONE = 0
    TRUNCATED = 1
    ZEROED = 2
    MAGIC = 3
    LENGTH = 4
    OFFSET = 5
    DELTA = 6
    RANGE = 7
    COUNT = 8
    CODEC = 9
    EPOCH = 10
    CRC = 11

    def text(self, value: int) -> str:
        """The rule in words; ``value`` is the field that breaks it."""
        return _TEXTS[self].format(value=value)


_TEXTS: Final = {
    Rule.NONE: "no rule is broken",
    Rule.TRUNCATED: "the bytes end inside this record batch",
    Rule.ZEROED: "zeros stand where a record batch should start",
    Rule.MAGIC: "magic {value} is not 0, 1 or 2: written by a newer Kafka than this version knows, or damaged",
    Rule.LENGTH: "the length field {value} is too small for a batch header, or too large for a batch",
    Rule.OFFSET: "base offset {value} is lower than the offset that must come next",
    Rule.DELTA: "last offset delta {value} is negative",
    Rule.RANGE: "last offset is {value} above the segment's base, and at most 2147483647 is possible",
    Rule.COUNT: "record count {value} is negative, or larger than last offset delta + 1",
    Rule.CODEC: "compression codec {value} is unknown to this message format",
    Rule.EPOCH: "leader epoch {value} is below -1, which stands for unknown",
    Rule.CRC: "the checksum is not {value:#010x} as the header says: damaged",
}


class BatchHeader(NamedTuple):
    """Header of one entry of a segment: a v2 record batch, or a v0/v1 message.

    A v0/v1 message is a single message, or, when compressed, wraps others. A wrapper's header holds the offset of its
    LAST inner message and neither the first offset nor the count: ``base_offset`` is then that last offset, and
    ``record_count`` is -1 (it is 1 for a plain message). ``last_offset_delta`` is 0 for both.

    A named tuple because a scan makes one per batch: a frozen dataclass takes five times as long to make.
    """

    position: int
    """Byte of the segment file where the batch starts."""
    base_offset: int
    size: int
    """Bytes of the whole batch, including the 12 that its length field leaves out."""
    leader_epoch: int
    """-1 where unknown, as in v0 and v1."""
    magic: int
    crc: int
    """As stored, unsigned: CRC-32C in v2, CRC-32 in v0 and v1."""
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    """Milliseconds since 1970. With :attr:`has_delete_horizon` it is that horizon and no record's time. v0: -1."""
    max_timestamp: int
    """Milliseconds since 1970; -1 for none. v1: the header's only timestamp. v0: -1."""
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def last_offset(self) -> int:
        """Offset of the last record that the batch ever had; compaction keeps it."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """The offset after the batch."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def end(self) -> int:
        """Byte of the segment file after the batch."""
        return self.position + self.size

    @property
    def codec(self) -> Codec:
        """Compression of the records."""
        return CODECS[self.attributes & CODEC_MASK]

    @property
    def timestamp_type(self) -> TimestampType:
        """``append``: every record has the time ``max_timestamp``, set by the broker. ``create``: set by producers."""
        return "append" if self.attributes & APPEND_TIME else "create"

    @property
    def is_transactional(self) -> bool:
        """True if the batch belongs to a transaction of ``producer_id``, as data or as its marker."""
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        """True if the batch is a marker written by a broker, not data."""
        return bool(self.attributes & CONTROL)

    @property
    def is_marker(self) -> bool:
        """True if the batch is the marker that commits or aborts a transaction."""
        return self.is_transactional and self.is_control

    @property
    def has_delete_horizon(self) -> bool:
        """True if compaction has set the time from which the batch's tombstones may be removed (KIP-534)."""
        return bool(self.attributes & DELETE_HORIZON)


def check_prefix(buffer: Buffer, at: int, max_batch_bytes: int = MAX_BATCH_BYTES) -> tuple[Rule, int] | None:
    """Check the prefix, which gives the format and the length: 17 bytes in ``buffer`` from index ``at``."""
    base_offset, length, epoch_or_crc, magic = _PREFIX.unpack_from(buffer, at)
    if not (base_offset or length or epoch_or_crc or magic):
        return Rule.ZEROED, 0
    if not 0 <= magic <= 2:
        return Rule.MAGIC, magic
    if not HEADER_SIZE[magic] <= length + LOG_OVERHEAD <= max_batch_bytes:
        return Rule.LENGTH, length
    return None


def read_header(buffer: Buffer, at: int, position: int) -> BatchHeader:
    """Read the header at index ``at``. Its prefix is sound, and ``buffer`` has HEADER_SIZE[magic] bytes of it.

    ``position`` is the byte of the segment file at which the batch starts.
    """
    magic = buffer[at + PREFIX_SIZE - 1]
    if magic == 2:
        base_offset, length, *rest = _V2.unpack_from(buffer, at)
        return BatchHeader(position, base_offset, length + LOG_OVERHEAD, *rest)
    if magic == 1:
        offset, length, crc, _, attributes, timestamp = _V1.unpack_from(buffer, at)
    else:
        offset, length, crc, _, attributes = _V0.unpack_from(buffer, at)
        timestamp = -1
    attributes &= CODEC_MASK | (APPEND_TIME if magic == 1 else 0)  # no other bit has a meaning before v2
    count = -1 if attributes & CODEC_MASK else 1
    return BatchHeader(
        position, offset, length + LOG_OVERHEAD, -1, magic, crc, attributes, 0, timestamp, timestamp, -1, -1, -1, count
    )


def header_bytes(header: BatchHeader) -> bytes:
    """The bytes from which :func:`read_header` reads ``header``."""
    length = header.size - LOG_OVERHEAD
    if header.magic == 2:
        return _V2.pack(header.base_offset, length, *header[3:])
    old = header.base_offset, length, header.crc, header.magic, header.attributes
    return _V1.pack(*old, header.max_timestamp) if header.magic == 1 else _V0.pack(*old)


def check_header(header: BatchHeader, base_offset: int, expected: int) -> tuple[Rule, int] | None:
    """Check every rule that the header alone can break.

    The segment's base is ``base_offset``; ``expected`` is the lowest offset that may come next.
    """
    if header.base_offset < expected:
        return Rule.OFFSET, header.base_offset
    delta = header.last_offset_delta
    if delta < 0:
        return Rule.DELTA, delta
    if header.base_offset + delta - base_offset > MAX_RELATIVE_OFFSET:
        return Rule.RANGE, header.base_offset + delta - base_offset
    if header.magic == 2 and not 0 <= header.record_count <= delta + 1:
        return Rule.COUNT, header.record_count
    codec = header.attributes & CODEC_MASK
    if codec > (4 if header.magic == 2 else 3):
        return Rule.CODEC, codec
    if header.leader_epoch < -1:  # no checksum covers it, and NO_PARTITION_LEADER_EPOCH is the lowest of Kafka's
        return Rule.EPOCH, header.leader_epoch
    return None


_KIND: Final = APPEND_TIME | TRANSACTIONAL | CONTROL
"""The attributes that every rewriting keeps."""

_END_OF_TIME: Final = 253_402_300_800_000
"""The year 10,000, in milliseconds since 1970: producers state any time."""

One = TypeVar("One")
Other = TypeVar("Other")


def is_same(one: BatchHeader, other: BatchHeader) -> bool | None:
    """True if two batches that share an offset are one, False if they are not; None if rewriting hides it."""
    if one.magic != other.magic:
        return False
    if one.magic < 2:  # a message of its own, or a wrapper, which compaction makes smaller
        if one.crc == other.crc and one.base_offset == other.base_offset:
            return True
        return None if (one.attributes | other.attributes) & CODEC_MASK else False
    if _identity(one) != _identity(other):
        return False
    if one.crc == other.crc:
        return True
    return None if _may_be_rewritten(one) or _may_be_rewritten(other) else False


def overlapping(
    ones: Iterable[One],
    others: Iterable[Other],
    header_of_one: Callable[[One], BatchHeader],
    header_of_other: Callable[[Other], BatchHeader],
) -> Iterator[tuple[One, Other]]:
    """The pairs that share an offset, of two logs in the order of offsets. A batch may be in several pairs."""
    ours, theirs = iter(ones), iter(others)
    mine, other = next(ours, None), next(theirs, None)
    while mine is not None and other is not None:
        left, right = header_of_one(mine), header_of_other(other)
        if left.base_offset <= right.last_offset and right.base_offset <= left.last_offset:
            yield mine, other
        if left.last_offset <= right.last_offset:
            mine = next(ours, None)
        if right.last_offset <= left.last_offset:
            other = next(theirs, None)


def described(header: BatchHeader | None) -> str:
    """What a log has at some offsets, in words."""
    if header is None:
        return "nothing there"
    sane = 0 <= header.max_timestamp < _END_OF_TIME
    moment = f" of {datetime.fromtimestamp(header.max_timestamp / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC" if sane else ""
    return f"a batch from {header.base_offset} to {header.last_offset} under epoch {header.leader_epoch}{moment}"


def _identity(header: BatchHeader) -> tuple[int, ...]:
    producer = header.producer_id, header.producer_epoch, header.base_sequence
    return header.base_offset, header.last_offset, header.leader_epoch, header.attributes & _KIND, *producer


def _may_be_rewritten(header: BatchHeader) -> bool:
    """True if records may be missing: a producer's batch has one for each of its offsets."""
    return header.has_delete_horizon or header.record_count <= header.last_offset_delta
