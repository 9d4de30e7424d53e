"""Decodes messages of the formats before Kafka 0.11 (v0 and v1), which brokers still serve from disk; not fast.

A compressed message wraps a message set. Its inner offsets are absolute in v0. In v1 they are relative to a base that
follows from the wrapper's offset, which is that of the last inner message. The set is scanned like a segment, with
checksums.

Source: Kafka's ``AbstractLegacyRecordBatch.DeepRecordsIterator``, KIP-31, KIP-32, KAFKA-3160.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tidemark.decode.batch_headers import Headers, scan_headers
from tidemark.decode.decompress import Arena, CorruptRecords, Decompressor
from tidemark.decode.kernel import NO_TOTALS, Columns, RecordTotals
from tidemark.decode.schema import representable
from tidemark.decode.uncompressed_runs import DecodeLimits, Refuse
from tidemark.errors import SegmentError
from tidemark.kafka_log.batch import MAX_RELATIVE_OFFSET, BatchHeader

_LENGTH = Struct(">i")
_KEY_AT = (18, 26)
"""Index of the key's length in an entry, by magic."""


class LegacyMessage(NamedTuple):
    """A plain message; ``timestamp`` is in milliseconds since 1970, -1 in v0."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None


def decode_legacy(
    buffer: NDArray[np.uint8],
    headers: Headers,
    position: int,
    from_offset: int,
    to_offset: int,
    limits: DecodeLimits,
    refuse: Refuse,
) -> Iterator[tuple[Columns, RecordTotals]]:
    """Decode the messages of these entries with offsets in [from_offset, to_offset), like the v2 decoder."""
    view = buffer.data
    messages: list[LegacyMessage] = []
    size, next_offset = 0, 0
    for row in headers:
        header = BatchHeader(*row.item())
        at = header.position - position
        try:
            decoded = read_messages(view[at : at + header.size], header, next_offset, limits.records_bytes)
        except CorruptRecords as error:
            refuse(row, str(error))
            continue
        next_offset = header.next_offset
        for message in decoded:
            if from_offset <= message.offset < to_offset:
                messages.append(message)
                size += len(message.key or b"") + len(message.value or b"")
                if size >= limits.arena_bytes or len(messages) >= limits.rows:
                    yield _to_columns(messages)
                    messages, size = [], 0
    if messages:
        yield _to_columns(messages)


def read_messages(entry: memoryview, header: BatchHeader, next_offset: int, max_bytes: int) -> list[LegacyMessage]:
    """The messages of an entry, itself one or a wrapper of several, at ``next_offset`` or later.

    Raises :class:`CorruptRecords`; ``max_bytes`` bounds the decompressed content of a wrapper.
    """
    key, value = _key_and_value(entry, header.magic)
    if header.codec == "none":
        return [LegacyMessage(header.base_offset, header.max_timestamp, key, value)]
    arena = Arena(4096)
    compressed = memoryview(value or b"")
    if header.magic == 0 and header.codec == "lz4":
        compressed = memoryview(_mend_lz4_header(bytes(compressed)))
    Decompressor(max_bytes).append(header.codec, compressed, arena)
    inner_set = arena.data.data[: arena.used]
    lowest = max(0, header.base_offset - MAX_RELATIVE_OFFSET)
    try:
        inners = [BatchHeader(*row) for row in scan_headers(inner_set, "inner message", lowest, expected=0).tolist()]
    except SegmentError as error:
        raise CorruptRecords(str(error)) from error
    if not inners:
        raise CorruptRecords("the wrapped message set is empty")
    shift = header.base_offset - inners[-1].base_offset if header.magic == 1 else 0
    messages = []
    for inner in inners:
        if inner.magic != header.magic or inner.codec != "none":
            raise CorruptRecords("a wrapped message is of another format, or is compressed again")
        timestamp = header.max_timestamp if header.timestamp_type == "append" else inner.max_timestamp
        inner_entry = inner_set[inner.position : inner.end]
        messages.append(LegacyMessage(inner.base_offset + shift, timestamp, *_key_and_value(inner_entry, inner.magic)))
    if messages[0].offset < next_offset or messages[-1].offset != header.base_offset:
        raise CorruptRecords("the wrapped offsets do not end at the wrapper's, or start before they may")
    return messages


def _key_and_value(entry: memoryview, magic: int) -> tuple[bytes | None, bytes | None]:
    key, at = _field(entry, _KEY_AT[magic])
    value, at = _field(entry, at)
    if at != len(entry):
        raise CorruptRecords("a message is longer than its key and value")
    return key, value


def _field(entry: memoryview, at: int) -> tuple[bytes | None, int]:
    """Read a field after its length: (bytes or null, index after them)."""
    if at + _LENGTH.size > len(entry):
        raise CorruptRecords("a message ends inside its key or value")
    (size,) = _LENGTH.unpack_from(entry, at)
    at += _LENGTH.size
    if size == -1:
        return None, at
    if not 0 <= size <= len(entry) - at:
        raise CorruptRecords("a key or value runs out of its message")
    return bytes(entry[at : at + size]), at + size


def _mend_lz4_header(frame: bytes) -> bytes:
    """Correct the checksum of an lz4 frame's header: v0 clients included the frame's magic in it (KAFKA-3160)."""
    size = 15 if len(frame) > 4 and frame[4] & 0x08 else 7  # with the content's size or without
    if len(frame) < size:
        return frame
    return frame[: size - 1] + bytes([_xxh32_short(frame[4 : size - 1]) >> 8 & 0xFF]) + frame[size:]


def _xxh32_short(data: bytes) -> int:
    """XXH32, seed 0, of less than 16 bytes."""
    mask = 0xFFFFFFFF
    value = 374761393 + len(data)
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        value = (value + int.from_bytes(data[at : at + 4], "little") * 3266489917) & mask
        value = (value << 17 | value >> 15) * 668265263 & mask
    for byte in data[whole:]:
        value = (value + byte * 374761393) & mask
        value = (value << 11 | value >> 21) * 2654435761 & mask
    value = (value ^ value >> 15) * 2246822519 & mask
    value = (value ^ value >> 13) * 3266489917 & mask
    return value ^ value >> 16


def _to_columns(messages: list[LegacyMessage]) -> tuple[Columns, RecordTotals]:
    keys = [message.key for message in messages]
    values = [message.value for message in messages]
    milliseconds = np.array([message.timestamp for message in messages], np.int64)
    fits = representable(milliseconds)
    columns = Columns.sized(NO_TOTALS)._replace(
        offset=np.array([message.offset for message in messages], np.int64),
        timestamp=np.where(fits, milliseconds * 1000, milliseconds),
        timestamp_bits=_bits(fits.tolist()),
        leader_epoch=np.full(len(messages), -1, np.int32),
        key_offsets=_offsets(keys),
        key_data=_data(keys),
        key_bits=_bits([key is not None for key in keys]),
        value_offsets=_offsets(values),
        value_data=_data(values),
        value_bits=_bits([value is not None for value in values]),
        header_offsets=np.zeros(len(messages) + 1, np.int32),
    )
    totals = NO_TOTALS._replace(
        rows=len(messages),
        key_bytes=len(columns.key_data),
        value_bytes=len(columns.value_data),
        null_timestamps=int(np.count_nonzero(~fits)),
        null_keys=keys.count(None),
        null_values=values.count(None),
    )
    return columns, totals


def _offsets(fields: list[bytes | None]) -> NDArray[np.int32]:
    return np.cumsum([0, *(len(field or b"") for field in fields)], dtype=np.int32)


def _data(fields: list[bytes | None]) -> NDArray[np.uint8]:
    return np.frombuffer(b"".join(field or b"" for field in fields), np.uint8)


def _bits(valid: list[bool]) -> NDArray[np.uint8]:
    return np.packbits(valid, bitorder="little")
