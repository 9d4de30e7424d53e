"""Rewrites v2 record batches without some of their records, as Kafka's compaction does.

Kept records stay verbatim, since the base timestamp does. So do the offsets that a batch accounts for, its producer,
its leader epoch and its codec. A batch without a record left stays as its header: readers miss no batch.

Source: Kafka's ``MemoryRecords.filterTo`` and ``DefaultRecordBatch.writeEmptyHeader``.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Container, Iterator
from struct import Struct
from typing import Final

import cramjam
import lz4.frame  # type: ignore[import-untyped]
import zstandard
from crc32c import crc32c

from tidemark.decode.decompress import DEFAULT_LIMITS, Arena, CorruptRecords, Decompressor
from tidemark.kafka_log.batch import (
    CODEC_MASK,
    DELETE_HORIZON,
    HEADER_SIZE,
    LOG_OVERHEAD,
    BatchHeader,
    Codec,
    read_header,
)

_HEADER: Final = Struct(">qiibIhiqqqhii")
_CRC_AT: Final = 17
_CRC_FROM: Final = 21
_SNAPPY_BLOCK: Final = 32 << 10
_LONGEST_VARINT: Final = 10


class BatchRewriter:
    """Takes records out of batches, one after another. Not for use from several threads."""

    def __init__(self) -> None:
        self._decompressor = Decompressor(DEFAULT_LIMITS.records_bytes)
        self._arena = Arena(1 << 20)

    def without(self, batch: bytes, offsets: Container[int]) -> tuple[bytes, int]:
        """(The v2 data ``batch`` without the records at ``offsets``, how many these are). Its checksum is right.

        They are the very bytes as before if none is gone.

        Raises:
            CorruptRecords: the records cannot be told apart.
        """
        header = read_header(batch, 0, 0)
        records = self._records(header, batch)
        kept: list[bytes] = []
        latest = -1
        for start, end, timestamp_delta, offset_delta in _split(records, header.record_count):
            if header.base_offset + offset_delta not in offsets:
                kept.append(records[start:end])
                latest = max(latest, header.base_timestamp + timestamp_delta)
        gone = header.record_count - len(kept)
        if not gone:
            return batch, 0
        if not kept:
            return _emptied(header), gone
        body = _COMPRESS[header.codec](b"".join(kept))
        if header.timestamp_type == "append":
            latest = header.max_timestamp
        return _sealed(header._replace(max_timestamp=latest, record_count=len(kept)), body), gone

    def _records(self, header: BatchHeader, batch: bytes) -> bytes:
        source = memoryview(batch)[HEADER_SIZE[2] :]
        if header.codec == "none":
            return bytes(source)
        self._arena.shrink()
        size = self._decompressor.append(header.codec, source, self._arena)
        return self._arena.data[:size].tobytes()


def _split(records: bytes, count: int) -> Iterator[tuple[int, int, int, int]]:
    """(start, end, timestamp delta, offset delta) of each record."""
    at = 0
    for number in range(count):
        length, body = _varint(records, at)
        end = body + length
        timestamp_delta, after = _varint(records, body + 1)
        offset_delta, after = _varint(records, after)
        if not body < after <= end <= len(records):
            raise CorruptRecords(f"record {number} of the batch ends outside of it")
        yield at, end, timestamp_delta, offset_delta
        at = end
    if at != len(records):
        raise CorruptRecords("bytes follow the last record of the batch")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """(number, index after it) of a zigzag varint."""
    raw = shift = 0
    for index in range(at, min(at + _LONGEST_VARINT, len(data))):
        byte = data[index]
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (raw >> 1) ^ -(raw & 1), index + 1
        shift += 7
    raise CorruptRecords("a number is cut off, or too long")


def _emptied(header: BatchHeader) -> bytes:
    """The batch without any record. Its producer's state stays in the log by it."""
    return _sealed(
        header._replace(
            attributes=header.attributes & ~(CODEC_MASK | DELETE_HORIZON),
            base_timestamp=header.max_timestamp,
            record_count=0,
        ),
        b"",
    )


def _sealed(header: BatchHeader, records: bytes) -> bytes:
    size = HEADER_SIZE[2] + len(records)
    _, base_offset, _, epoch, magic, _, *rest = header
    data = bytearray(_HEADER.pack(base_offset, size - LOG_OVERHEAD, epoch, magic, 0, *rest) + records)
    data[_CRC_AT:_CRC_FROM] = crc32c(memoryview(data)[_CRC_FROM:]).to_bytes(4, "big")
    return bytes(data)


def _gzip(data: bytes) -> bytes:
    stream = zlib.compressobj(wbits=31)
    return stream.compress(data) + stream.flush()


def _snappy(data: bytes) -> bytes:
    """The framing of snappy-java."""
    blocks = [
        bytes(cramjam.snappy.compress_raw(data[at : at + _SNAPPY_BLOCK])) for at in range(0, len(data), _SNAPPY_BLOCK)
    ]
    framed = (len(block).to_bytes(4, "big") + block for block in blocks)
    return b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01" + b"".join(framed)


def _lz4(data: bytes) -> bytes:
    """A frame of independent blocks: Java's client reads no others."""
    frame: bytes = lz4.frame.compress(
        data, block_size=lz4.frame.BLOCKSIZE_MAX64KB, block_linked=False, store_size=False
    )
    return frame


_COMPRESS: Final[dict[Codec, Callable[[bytes], bytes]]] = {
    "none": bytes,
    "gzip": _gzip,
    "snappy": _snappy,
    "lz4": _lz4,
    "zstd": lambda data: zstandard.ZstdCompressor().compress(data),
}
