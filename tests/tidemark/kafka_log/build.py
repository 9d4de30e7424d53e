"""Segments made by hand: kafka-python builds the records, this sets what brokers and other clients do differently."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple
from zlib import crc32

import cramjam
import lz4.frame  # type: ignore[import-untyped]
import zstandard
from crc32c import crc32c
from kafka.record.default_records import DefaultRecordBatchBuilder
from kafka.record.legacy_records import LegacyRecordBatchBuilder

HEADER = struct.Struct(">qiibIhiqqqhii")
FIELDS = [
    "base_offset",
    "length",
    "leader_epoch",
    "magic",
    "crc",
    "attributes",
    "last_offset_delta",
    "base_timestamp",
    "max_timestamp",
    "producer_id",
    "producer_epoch",
    "base_sequence",
    "record_count",
]
CODEC_IDS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
T0 = 1_770_000_000_000
"""2026-02-02, in milliseconds."""


class Record(NamedTuple):
    """A record to build; ``delta`` is its offset less the batch's."""

    delta: int
    timestamp: int = T0
    key: bytes | None = b"k"
    value: bytes | None = b"v"
    headers: Sequence[tuple[str, bytes | None]] = ()


def reseal(raw: bytes, **fields: int) -> bytes:
    """A v2 batch with header fields changed, and with the length and checksum that belong to it (unless given)."""
    values = dict(zip(FIELDS, HEADER.unpack_from(raw), strict=True))
    values["length"] = len(raw) - 12
    values |= fields
    changed = bytearray(HEADER.pack(*values.values()) + raw[HEADER.size :])
    if "crc" not in fields:
        struct.pack_into(">I", changed, 17, crc32c(bytes(changed[21:])))
    return bytes(changed)


def with_records(raw: bytes, records: bytes, **fields: int) -> bytes:
    """A v2 batch with other bytes where its records are."""
    return reseal(raw[: HEADER.size] + records, **fields)


def compressed(raw: bytes, codec: str, compress: Callable[[bytes], bytes] | None = None) -> bytes:
    """An uncompressed v2 batch compressed as a Java client does it, or by ``compress``."""
    attributes = HEADER.unpack_from(raw)[5] | CODEC_IDS[codec]
    return with_records(raw, (compress or JAVA_LIKE[codec])(raw[HEADER.size :]), attributes=attributes)


def batch(base: int, records: Iterable[Record], codec: str = "none", attributes: int = 0, **fields: int) -> bytes:
    """A v2 batch at offset ``base``; its attributes are ``attributes`` and the codec's."""
    builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1 << 30)
    for record in records:
        builder.append(record.delta, record.timestamp, record.key, record.value, list(record.headers))
    defaults = {"base_offset": base, "leader_epoch": 3, "attributes": attributes}
    return compressed(reseal(bytes(builder.build()), **(defaults | fields)), codec)


def simple(base: int, count: int = 3, codec: str = "none", **fields: int) -> bytes:
    """A v2 batch of ``count`` small records at consecutive offsets."""
    return batch(base, [Record(i, T0 + i, b"key-%d" % i, b"value-%d" % i) for i in range(count)], codec, **fields)


def empty(base: int, last_offset_delta: int, attributes: int = 0, **fields: int) -> bytes:
    """What compaction leaves of the last batch of a producer: a header."""
    raw = simple(base, 1)[: HEADER.size]
    gone = {"record_count": 0, "last_offset_delta": last_offset_delta, "base_timestamp": -1, "max_timestamp": -1}
    return reseal(raw, attributes=attributes, **(gone | fields))


def transactional(base: int, producer_id: int, count: int, *, epoch: int = 0, codec: str = "none") -> bytes:
    """A v2 batch of a transaction."""
    return simple(base, count, codec, attributes=0x10, producer_id=producer_id, producer_epoch=epoch, base_sequence=0)


def marker(base: int, producer_id: int, *, commit: bool, epoch: int = 0) -> bytes:
    """The control batch that ends a transaction."""
    record = Record(0, T0, struct.pack(">hh", 0, int(commit)), struct.pack(">hi", 0, 1))
    return batch(base, [record], attributes=0x30, producer_id=producer_id, producer_epoch=epoch)


def legacy(magic: int, base: int, count: int = 3, codec: str = "none", attributes: int = 0, gap: int = 1) -> bytes:
    """v0 or v1 messages at offsets ``base``, ``base + gap``, …, wrapped in one if there is a codec."""
    offsets = [base + gap * i for i in range(count)]
    if codec != "none":
        builder = LegacyRecordBatchBuilder(magic=magic, compression_type=CODEC_IDS[codec], batch_size=1 << 30)
        for i, offset in enumerate(offsets):
            inner = offset if magic == 0 else offset - base
            builder.append(inner, timestamp=T0 + i, key=b"key-%d" % i, value=b"value-%d" % i)
        return reseal_legacy(bytes(builder.build()), offsets[-1], attributes)
    messages = b""
    for i, offset in enumerate(offsets):
        builder = LegacyRecordBatchBuilder(magic=magic, compression_type=0, batch_size=1 << 30)
        builder.append(0, timestamp=T0 + i, key=b"key-%d" % i, value=b"value-%d" % i)
        messages += reseal_legacy(bytes(builder.build()), offset, attributes)
    return messages


def reseal_legacy(raw: bytes, offset: int, attributes: int = 0) -> bytes:
    """A v0 or v1 entry at another offset, with more attributes, and the length and checksum that belong to it."""
    changed = bytearray(raw)
    changed[17] |= attributes
    struct.pack_into(">qi", changed, 0, offset, len(raw) - 12)
    struct.pack_into(">I", changed, 12, crc32(bytes(changed[16:])))
    return bytes(changed)


def snappy_java(data: bytes) -> bytes:
    """The framing of snappy-java: blocks of 32 KiB."""
    blocks = [bytes(cramjam.snappy.compress_raw(data[i : i + 32768])) for i in range(0, len(data), 32768)]
    header = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    return header + b"".join(struct.pack(">i", len(block)) + block for block in blocks)


def snappy_raw(data: bytes) -> bytes:
    """One block, as librdkafka writes it."""
    return bytes(cramjam.snappy.compress_raw(data))


def lz4_java(data: bytes) -> bytes:
    """Independent blocks of 64 KiB, no content size."""
    frame: bytes = lz4.frame.compress(
        data, block_size=lz4.frame.BLOCKSIZE_MAX64KB, block_linked=False, store_size=False
    )
    return frame


def zstd_java(data: bytes) -> bytes:
    """A frame without content size."""
    stream = zstandard.ZstdCompressor(level=3, write_content_size=False).compressobj()
    return stream.compress(data) + stream.flush()


JAVA_LIKE: dict[str, Callable[[bytes], bytes]] = {
    "none": bytes,
    "gzip": lambda data: gzip.compress(data, 6),
    "snappy": snappy_java,
    "lz4": lz4_java,
    "zstd": zstd_java,
}
