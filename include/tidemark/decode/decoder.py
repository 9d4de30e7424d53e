"""Decodes record batches of all of Kafka's formats to Arrow.

Promises: one row for every data record of the selected batches, in the order of the log; memory bounded by
:class:`DecodeLimits` and the largest batch. Any bytes make rows, or an error that names file, byte, offset and rule.

The formats before Kafka 0.11 (v0 and v1), which brokers still serve from disk, are decoded message by message, which is
not fast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from struct import Struct
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidemark.decode.batch_headers import Headers, as_array, scan_headers
from tidemark.decode.decompress import (
    DEFAULT_LIMITS,
    Arena,
    Chunk,
    CorruptRecords,
    DecodeLimits,
    Decompressor,
    Refuse,
    chunks,
)
from tidemark.decode.kernel import FINDINGS, NO_TOTALS, RECORD_RULES, RULE, Columns, RecordTotals, parse_batches
from tidemark.decode.schema import SCHEMA, TIMESTAMP_TYPE, array, constant_text, headers_column, representable, variable
from tidemark.errors import SegmentError
from tidemark.kafka_log.batch import APPEND_TIME, CONTROL, MAX_BATCH_BYTES, MAX_RELATIVE_OFFSET, BatchHeader, Buffer
from tidemark.kafka_log.indexes import MAX_OFFSET

_MAX_CHUNK_BYTES = (1 << 31) - 1

OnRefused = Callable[[BatchHeader, SegmentError], None]
"""Called for a batch that cannot be decoded, with the reason; the batch then has no row."""

_LEGACY_LENGTH = Struct(">i")
_LEGACY_KEY_AT = (18, 26)
"""Index of the key's length in an entry, by magic."""


def decode_batches(
    segment: Buffer | NDArray[np.uint8],
    headers: Headers,
    *,
    name: str,
    partition: int,
    incarnation: int,
    select: NDArray[np.bool_] | None = None,
    from_offset: int = 0,
    to_offset: int = MAX_OFFSET,
    position: int = 0,
    on_refused: OnRefused | None = None,
    limits: DecodeLimits = DEFAULT_LIMITS,
) -> Iterator[pa.RecordBatch]:
    """The records of the batches in ``headers``, as Arrow record batches of :data:`tidemark.decode.schema.SCHEMA`.

    :func:`scan_headers` has read ``headers`` from ``segment``, with the same ``position``; ``headers`` may be a part of
    its result. Control batches are skipped, and those outside the mask ``select``. Only offsets in
    [from_offset, to_offset) become rows.

    Raises :class:`SegmentError` for a batch that breaks a rule, or, with ``on_refused``, calls that for each and
    continues; a batch is refused as a whole. What is not UTF-8 in a header key becomes U+FFFD, as
    Kafka's own client reads it.
    """
    if limits.arena_bytes + max(limits.records_bytes, MAX_BATCH_BYTES) > _MAX_CHUNK_BYTES:
        raise ValueError(f"{limits} would let a chunk grow beyond what Arrow's 32-bit offsets can address")
    buffer = as_array(segment)
    mask = (headers["attributes"] & CONTROL == 0) & (headers["record_count"] != 0)
    mask &= headers["base_offset"] + headers["last_offset_delta"] >= from_offset
    mask &= (headers["base_offset"] < to_offset) | (headers["magic"] < 2)  # a v0/v1 wrapper's base is its last offset
    if select is not None:
        mask &= select

    def refuse(row: Headers, rule: str) -> None:
        header = BatchHeader(*row.item())
        error = SegmentError(name, header.position, header.base_offset, rule)
        if on_refused is None:
            raise error
        on_refused(header, error)

    for run in _runs(headers[mask]):
        timestamp_type = BatchHeader(*run[0].item()).timestamp_type
        if run["magic"][0] < 2:
            rows = decode_legacy(buffer, run, position, from_offset, to_offset, limits, refuse)
        else:
            rows = _decode_v2(buffer, run, position, from_offset, to_offset, limits, refuse)
        for columns, totals in rows:
            yield _record_batch(columns, totals, partition, incarnation, timestamp_type)


def _runs(headers: Headers) -> list[Headers]:
    """Cut ``headers`` where the format (v0/v1 or v2) or the timestamp type changes."""
    kind = (headers["magic"] < 2) * 2 + (headers["attributes"] & APPEND_TIME != 0)
    return [run for run in np.split(headers, np.flatnonzero(np.diff(kind)) + 1) if len(run)]


def _decode_v2(
    buffer: NDArray[np.uint8],
    headers: Headers,
    position: int,
    from_offset: int,
    to_offset: int,
    limits: DecodeLimits,
    refuse: Refuse,
) -> Iterator[tuple[Columns, RecordTotals]]:
    arena = Arena(limits.arena_bytes)
    for chunk in chunks(buffer, headers, position, limits, arena, refuse):
        columns, totals = _columns(chunk, from_offset, to_offset, refuse)
        del chunk
        arena.shrink()  # free the memory of a large batch before its rows are used
        if totals.rows:
            yield columns, totals
            del columns


def _columns(chunk: Chunk, from_offset: int, to_offset: int, refuse: Refuse) -> tuple[Columns, RecordTotals]:
    findings = np.zeros((len(chunk.headers), FINDINGS), np.int64)
    totals = parse_batches(*chunk, from_offset, to_offset, findings, False, Columns.sized(NO_TOTALS))
    for index in np.flatnonzero(findings[:, RULE]):
        rule, record, _ = findings[index].tolist()
        refuse(chunk.headers[index], f"record {record} of the batch: {RECORD_RULES[rule]}")
    columns = Columns.sized(totals)
    if totals.rows:
        parse_batches(*chunk, from_offset, to_offset, findings, True, columns)
    return columns, totals


def _record_batch(
    columns: Columns, totals: RecordTotals, partition: int, incarnation: int, timestamp_type: str
) -> pa.RecordBatch:
    """Columns as Arrow, without a copy; validity bits only for columns with nulls."""
    rows = totals.rows
    header_keys = variable(pa.string(), columns.header_key_offsets, columns.header_key_data)
    header_values = variable(
        pa.binary(),
        columns.header_value_offsets,
        columns.header_value_data,
        columns.header_value_bits if totals.null_header_values else None,
    )
    arrays = {
        "kafka_incarnation": array(pa.int32(), np.full(rows, incarnation, np.int32)),
        "kafka_partition": array(pa.int32(), np.full(rows, partition, np.int32)),
        "kafka_offset": array(pa.int64(), columns.offset),
        "kafka_timestamp": array(
            TIMESTAMP_TYPE, columns.timestamp, columns.timestamp_bits if totals.null_timestamps else None
        ),
        "kafka_timestamp_type": constant_text(timestamp_type, rows),
        "kafka_key": variable(
            pa.binary(), columns.key_offsets, columns.key_data, columns.key_bits if totals.null_keys else None
        ),
        "kafka_value": variable(
            pa.binary(), columns.value_offsets, columns.value_data, columns.value_bits if totals.null_values else None
        ),
        "kafka_headers": headers_column(columns.header_offsets, header_keys, header_values),
        "kafka_leader_epoch": array(pa.int32(), columns.leader_epoch),
    }
    return pa.RecordBatch.from_arrays([arrays[name] for name in SCHEMA.names], schema=SCHEMA)


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
    """Decode the messages of these entries with offsets in [from_offset, to_offset), like the v2 decoder.

    A compressed message wraps a message set. Its inner offsets are absolute in v0. In v1 they are relative to a base
    that follows from the wrapper's offset, which is that of the last inner message. The set is scanned like a segment,
    with checksums.

    Source: Kafka's ``AbstractLegacyRecordBatch.DeepRecordsIterator``, KIP-31, KIP-32, KAFKA-3160.
    """
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
                    yield _legacy_columns(messages)
                    messages, size = [], 0
    if messages:
        yield _legacy_columns(messages)


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
    key, at = _field(entry, _LEGACY_KEY_AT[magic])
    value, at = _field(entry, at)
    if at != len(entry):
        raise CorruptRecords("a message is longer than its key and value")
    return key, value


def _field(entry: memoryview, at: int) -> tuple[bytes | None, int]:
    """Read a field after its length: (bytes or null, index after them)."""
    if at + _LEGACY_LENGTH.size > len(entry):
        raise CorruptRecords("a message ends inside its key or value")
    (size,) = _LEGACY_LENGTH.unpack_from(entry, at)
    at += _LEGACY_LENGTH.size
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


def _legacy_columns(messages: list[LegacyMessage]) -> tuple[Columns, RecordTotals]:
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
