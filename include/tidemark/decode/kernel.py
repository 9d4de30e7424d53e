"""The compiled loop over the records of v2 batches: bytes to column buffers.

It runs twice over a chunk. The first pass checks everything and counts, so that the column buffers can be allocated at
their exact sizes; the second fills them. The loop reads no byte outside a record, and no record outside its batch; a
batch that breaks a rule leaves no trace in any column.

Source: Kafka's ``DefaultRecord`` and ``ByteUtils`` (zigzag varints).
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numba import typeof, types
from numpy.typing import NDArray

from tidemark.decode.batch_headers import HEADERS
from tidemark.decode.jit import READ_ONLY_BYTES, copy_bytes, helper, kernel
from tidemark.decode.schema import MAX_MILLISECONDS
from tidemark.decode.wire import is_utf8, replaced_utf8, varint
from tidemark.kafka_log.batch import APPEND_TIME

MIN_RECORD_BYTES: Final = 7
"""A record has at least seven fields of a byte: length, attributes, two deltas, key and value length, header count."""

RULE, RECORD, REPLACES = range(3)
"""Entries of a batch's findings: the broken rule, or 0; the number of the record that breaks it; 1 if a header key is
not UTF-8."""

FINDINGS: Final = 3

_MAX_INT64 = (1 << 63) - 1
_MIN_INT64 = -(1 << 63)
_MAX_INT32 = (1 << 31) - 1

_OK = 0
_LENGTH = 1
_OFFSET = 2
_TIMESTAMP = 3
_KEY = 4
_VALUE = 5
_HEADERS = 6
_TEXT = 7
_LEFT_IN_RECORD = 8
_LEFT_IN_BATCH = 9

RECORD_RULES: Final = {
    _LENGTH: "its length runs out of the batch",
    _OFFSET: "its offset delta does not increase, or exceeds the batch's last",
    _TIMESTAMP: "its timestamp does not fit 64 bits",
    _KEY: "its key runs out of the record",
    _VALUE: "its value runs out of the record",
    _HEADERS: "its headers run out of the record",
    _TEXT: "its header keys, which are not UTF-8, become more text than a column holds",
    _LEFT_IN_RECORD: "its length is longer than its fields",
    _LEFT_IN_BATCH: "there are more bytes in the batch than the record count says",
}


class RecordTotals(NamedTuple):
    """Rows; bytes of keys and values; headers and their bytes; numbers of nulls."""

    rows: int
    key_bytes: int
    value_bytes: int
    headers: int
    header_key_bytes: int
    header_value_bytes: int
    null_timestamps: int
    null_keys: int
    null_values: int
    null_header_values: int


NO_TOTALS: Final = RecordTotals(0, 0, 0, 0, 0, 0, 0, 0, 0, 0)


class Columns(NamedTuple):
    """The buffers that the second pass fills: data, Arrow offsets (one more than rows) and validity bits."""

    offset: NDArray[np.int64]
    timestamp: NDArray[np.int64]
    timestamp_bits: NDArray[np.uint8]
    leader_epoch: NDArray[np.int32]
    key_offsets: NDArray[np.int32]
    key_data: NDArray[np.uint8]
    key_bits: NDArray[np.uint8]
    value_offsets: NDArray[np.int32]
    value_data: NDArray[np.uint8]
    value_bits: NDArray[np.uint8]
    header_offsets: NDArray[np.int32]
    header_key_offsets: NDArray[np.int32]
    header_key_data: NDArray[np.uint8]
    header_value_offsets: NDArray[np.int32]
    header_value_data: NDArray[np.uint8]
    header_value_bits: NDArray[np.uint8]

    @classmethod
    def sized(cls, totals: RecordTotals) -> Columns:
        """Buffers of exactly the sizes in ``totals``."""
        rows, key_bytes, value_bytes, headers, header_key_bytes, header_value_bytes, *_ = totals

        def offsets(count: int) -> NDArray[np.int32]:
            array = np.empty(count + 1, np.int32)
            array[0] = 0
            return array

        def octets(count: int) -> NDArray[np.uint8]:
            # Of Arrow's pool, which keeps what is freed for the next piece. malloc returns it to the kernel if the
            # process has freed nothing larger before, and then fetches it again page by page.
            return np.frombuffer(memoryview(pa.allocate_buffer(count)), np.uint8)

        def bits(count: int) -> NDArray[np.uint8]:
            return np.zeros((count + 7) // 8, np.uint8)

        return cls(
            np.empty(rows, np.int64),
            np.empty(rows, np.int64),
            bits(rows),
            np.empty(rows, np.int32),
            offsets(rows),
            octets(key_bytes),
            bits(rows),
            offsets(rows),
            octets(value_bytes),
            bits(rows),
            offsets(rows),
            offsets(headers),
            octets(header_key_bytes),
            offsets(headers),
            octets(header_value_bytes),
            bits(headers),
        )


@kernel(
    READ_ONLY_BYTES,
    *[types.int64[::1]] * 2,
    HEADERS,
    *[types.int64] * 2,
    types.int64[:, ::1],
    types.boolean,
    typeof(Columns.sized(NO_TOTALS)),  # type: ignore[no-untyped-call]  # numba has no types here
)
def parse_batches(
    memory: NDArray[np.uint8],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    headers: NDArray[Any],
    from_offset: int,
    to_offset: int,
    findings: NDArray[np.int64],
    fill: bool,
    columns: Columns,
) -> RecordTotals:
    """Parse the records of batch k, at ``memory[starts[k]:ends[k]]`` with header ``headers[k]``, for every k.

    Rows with offsets outside [from_offset, to_offset) are checked and left out. The first pass (not ``fill``) sets
    ``findings[k]``; the second must follow on the same memory, and skips batches with an error.
    """
    totals = NO_TOTALS
    for index in range(len(starts)):
        if findings[index, RULE] == _OK:
            rule, record, replaces, after = _parse_batch(
                memory,
                starts[index],
                ends[index],
                headers[index],
                from_offset,
                to_offset,
                fill,
                findings[index, REPLACES] != 0,
                columns,
                totals,
            )
            if rule == _OK:
                totals = after
            findings[index, RULE] = rule
            findings[index, RECORD] = record
            findings[index, REPLACES] = replaces
    return totals


@helper
def _parse_batch(  # noqa: C901  # one pass over the fields as they lie; numba pays for state that goes through calls
    memory: NDArray[np.uint8],
    at: int,
    end: int,
    header: Any,
    from_offset: int,
    to_offset: int,
    fill: bool,
    replaces: bool,
    columns: Columns,
    totals: RecordTotals,
) -> tuple[int, int, bool, RecordTotals]:
    """(the broken rule, the record that breaks it, whether a header key is not UTF-8, ``totals`` with this batch)."""
    rows, keys, values, headers, header_keys, header_values, no_time, no_key, no_value, no_header_value = totals
    append_time = header.attributes & APPEND_TIME != 0
    base_offset, base_timestamp = header.base_offset, header.base_timestamp
    last_delta = -1
    for record in range(header.record_count):
        size, at = varint(memory, at, end, 5)
        if at < 0 or size < MIN_RECORD_BYTES - 1 or size > end - at:
            return _LENGTH, record, replaces, totals
        record_end = at + size
        timestamp_delta, at = varint(memory, at + 1, record_end, 10)  # after the attributes; none of them is in use
        delta, at = varint(memory, at, record_end, 5)
        if at < 0 or delta <= last_delta or delta > header.last_offset_delta:
            return _OFFSET, record, replaces, totals
        last_delta = delta
        milliseconds = header.max_timestamp
        if not append_time:
            # No addition before the check: a signed overflow is undefined for the compiler.
            if timestamp_delta > 0 and base_timestamp > _MAX_INT64 - timestamp_delta:
                return _TIMESTAMP, record, replaces, totals
            if timestamp_delta < 0 and base_timestamp < _MIN_INT64 - timestamp_delta:
                return _TIMESTAMP, record, replaces, totals
            milliseconds = base_timestamp + timestamp_delta
        offset = base_offset + delta
        keep = offset >= from_offset and offset < to_offset
        write = fill and keep

        size, at = varint(memory, at, record_end, 5)
        if at < 0 or size < -1 or size > record_end - at:
            return _KEY, record, replaces, totals
        key_size = max(size, 0)
        if write and size >= 0:
            copy_bytes(columns.key_data, keys, memory, at, size)
            _set_bit(columns.key_bits, rows)
        no_key += keep and size < 0
        at += key_size

        size, at = varint(memory, at, record_end, 5)
        if at < 0 or size < -1 or size > record_end - at:
            return _VALUE, record, replaces, totals
        value_size = max(size, 0)
        if write and size >= 0:
            copy_bytes(columns.value_data, values, memory, at, size)
            _set_bit(columns.value_bits, rows)
        no_value += keep and size < 0
        at += value_size

        count, at = varint(memory, at, record_end, 5)
        if at < 0 or count < 0:
            return _HEADERS, record, replaces, totals
        for _ in range(count):
            size, at = varint(memory, at, record_end, 5)
            if at < 0 or size < 0 or size > record_end - at:
                return _HEADERS, record, replaces, totals
            value_at = at + size
            if not fill and not replaces:
                replaces = not is_utf8(memory, at, value_at)
            if replaces:  # a header key of this batch, or of one of its records above
                size = replaced_utf8(memory, at, value_at, columns.header_key_data, header_keys, write)
            elif write:
                copy_bytes(columns.header_key_data, header_keys, memory, at, size)
            header_value_size, value_at = varint(memory, value_at, record_end, 5)
            if value_at < 0 or header_value_size < -1 or header_value_size > record_end - value_at:
                return _HEADERS, record, replaces, totals
            if write:
                if header_value_size >= 0:
                    copy_bytes(columns.header_value_data, header_values, memory, value_at, header_value_size)
                    _set_bit(columns.header_value_bits, headers)
                columns.header_key_offsets[headers + 1] = header_keys + size
                columns.header_value_offsets[headers + 1] = header_values + max(header_value_size, 0)
            if keep:
                headers += 1
                header_keys += size
                header_values += max(header_value_size, 0)
                no_header_value += header_value_size < 0
            at = value_at + max(header_value_size, 0)
        if header_keys > _MAX_INT32:
            return _TEXT, record, replaces, totals
        if at != record_end:
            return _LEFT_IN_RECORD, record, replaces, totals

        fits = milliseconds <= MAX_MILLISECONDS and milliseconds >= -MAX_MILLISECONDS
        if keep:
            keys += key_size
            values += value_size
            no_time += not fits
        if write:
            columns.offset[rows] = offset
            columns.timestamp[rows] = milliseconds * 1000 if fits else milliseconds
            if fits:
                _set_bit(columns.timestamp_bits, rows)
            columns.leader_epoch[rows] = header.leader_epoch
            columns.key_offsets[rows + 1] = keys
            columns.value_offsets[rows + 1] = values
            columns.header_offsets[rows + 1] = headers
        rows += keep
    if at != end:
        return _LEFT_IN_BATCH, header.record_count, replaces, totals
    return (
        _OK,
        0,
        replaces,
        RecordTotals(
            rows, keys, values, headers, header_keys, header_values, no_time, no_key, no_value, no_header_value
        ),
    )


@helper
def _set_bit(bits: NDArray[np.uint8], index: int) -> None:
    bits[index >> 3] |= np.uint8(1 << (index & 7))
