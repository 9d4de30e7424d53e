"""Evidence that two sets of rows are equal: a sum of row hashes, independent of the order of the rows.

It is computed only from Arrow columns, so that Parquet yields it again after the raw segments are gone. It detects
accidents, not forgery.

The hash of a row has two lanes, of the seeds 0 and 0x9E3779B97F4A7C15. In each, with H(bytes, seed) = XXH64:

    h = H(fixed, seed)      where fixed is, little-endian: incarnation int32, partition int32, offset int64,
                            timestamp int64 (microseconds; 0 if null), number of headers uint32,
                            nulls uint32 (1: timestamp, 2: key, 4: value)
    h = H(key, h)           a null key or value as an empty one, from which ``nulls`` distinguishes it
    h = H(value, h)
    h = H(header key, h)    and then, for each header in its order,
    h = H(header value, h)  a null header value instead: h = H("", h XOR 0xFFFFFFFFFFFFFFFF)

Each hash is the seed of the next and lengths are part of XXH64, so moving a byte from one field to another changes it.
The sum of a set of rows is that of each lane modulo 2^64, written as one number: lane 1 * 2^64 + lane 0. No rows: 0.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
from numba import types
from numpy.typing import NDArray

from tidemark.decode.jit import READ_ONLY_BYTES, READ_ONLY_INT32, helper, kernel
from tidemark.decode.schema import HEADERS_TYPE, TIMESTAMP_TYPE, octets
from tidemark.decode.xxh64 import xxh64_pair
from tidemark.formats.raw.hashsum import LANE_MASK

SEEDS: Final = (0, 0x9E3779B97F4A7C15)

_LOW_SEED, _HIGH_SEED = (np.uint64(seed) for seed in SEEDS)
_ALL_ONES = np.uint64(LANE_MASK)
_FIXED: Final = np.dtype(
    [
        ("incarnation", "<i4"),
        ("partition", "<i4"),
        ("offset", "<i8"),
        ("timestamp", "<i8"),
        ("headers", "<i4"),
        ("nulls", "<i4"),
    ]
)
"""The fields of a row that have a fixed size, as they are hashed."""
_FIXED_BYTES: Final = _FIXED.itemsize


Number = TypeVar("Number", np.int32, np.int64)


class _Variable(NamedTuple):
    """A binary or string column: ``bits`` is empty without nulls, and its first bit has the number ``first``."""

    offsets: NDArray[np.int32]
    data: NDArray[np.uint8]
    bits: NDArray[np.uint8]
    first: int


def row_hash_sum(rows: pa.RecordBatch) -> int:
    """The sum (128 bits) over ``rows``; the hashed columns are found by name, and others are ignored.

    Raises ValueError for a column of another type than in :data:`tidemark.decode.schema.SCHEMA`: cast it first.
    """
    fixed = np.zeros(len(rows), _FIXED)
    timestamp = _column(rows, "kafka_timestamp", TIMESTAMP_TYPE)
    key = _column(rows, "kafka_key", pa.binary())
    value = _column(rows, "kafka_value", pa.binary())
    headers = _column(rows, "kafka_headers", HEADERS_TYPE)
    header_offsets = _numbers(headers, np.int32, len(rows) + 1)
    fixed["incarnation"] = _fixed(rows, "kafka_incarnation", pa.int32(), np.int32)
    fixed["partition"] = _fixed(rows, "kafka_partition", pa.int32(), np.int32)
    fixed["offset"] = _fixed(rows, "kafka_offset", pa.int64(), np.int64)
    fixed["timestamp"] = np.where(_valid(timestamp), _numbers(timestamp, np.int64, len(rows)), 0)
    fixed["headers"] = np.diff(header_offsets)
    fixed["nulls"] = ~_valid(timestamp) * 1 + ~_valid(key) * 2 + ~_valid(value) * 4
    entries: pa.StructArray = headers.values  # type: ignore[attr-defined]  # the stubs know lists only by their class
    arguments = (
        fixed.view(np.uint8),
        _variable(key),
        _variable(value),
        header_offsets,
        _variable(entries.field(0)),
        _variable(entries.field(1)),
    )
    low, high = _sum(*arguments)
    return int(high) << 64 | int(low)


_VARIABLE = types.NamedTuple(  # type: ignore[no-untyped-call]  # numba has no types here
    [READ_ONLY_INT32, READ_ONLY_BYTES, READ_ONLY_BYTES, types.int64], _Variable
)


@kernel(types.uint8[::1], _VARIABLE, _VARIABLE, READ_ONLY_INT32, _VARIABLE, _VARIABLE)
def _sum(
    fixed: NDArray[np.uint8],
    key: _Variable,
    value: _Variable,
    header_offsets: NDArray[np.int32],
    header_key: _Variable,
    header_value: _Variable,
) -> tuple[np.uint64, np.uint64]:
    """The sums of both lanes."""
    key_offsets, key_data, key_bits, key_first = key
    value_offsets, value_data, value_bits, value_first = value
    header_key_offsets, header_key_data, _, _ = header_key
    header_value_offsets, header_value_data, header_value_bits, header_value_first = header_value
    low_sum, high_sum = np.uint64(0), np.uint64(0)
    for row in range(len(header_offsets) - 1):
        low, high = xxh64_pair(fixed, row * _FIXED_BYTES, _FIXED_BYTES, _LOW_SEED, _HIGH_SEED)
        low, high = _hash_item(key_offsets, key_data, _is_valid(key_bits, key_first + row), row, low, high)
        low, high = _hash_item(value_offsets, value_data, _is_valid(value_bits, value_first + row), row, low, high)
        for header in range(header_offsets[row], header_offsets[row + 1]):
            low, high = _hash_item(header_key_offsets, header_key_data, True, header, low, high)
            valid = _is_valid(header_value_bits, header_value_first + header)
            if not valid:
                low, high = low ^ _ALL_ONES, high ^ _ALL_ONES
            low, high = _hash_item(header_value_offsets, header_value_data, valid, header, low, high)
        low_sum, high_sum = low_sum + low, high_sum + high
    return low_sum, high_sum


@helper
def _hash_item(
    offsets: NDArray[np.int32], data: NDArray[np.uint8], valid: bool, index: int, low: np.uint64, high: np.uint64
) -> tuple[np.uint64, np.uint64]:
    start = int(offsets[index])
    size = int(offsets[index + 1]) - start if valid else 0
    return xxh64_pair(data, start, size, low, high)


@helper
def _is_valid(bits: NDArray[np.uint8], index: int) -> bool:
    return len(bits) == 0 or (bits[index >> 3] >> (index & 7)) & 1 == 1


def _column(rows: pa.RecordBatch, name: str, dtype: pa.DataType) -> pa.Array[Any]:
    column = rows.column(name)
    if not column.type.equals(dtype):
        raise ValueError(f"{name} is {column.type}, not {dtype}")
    return column


def _fixed(rows: pa.RecordBatch, name: str, dtype: pa.DataType, numbers: type[Number]) -> NDArray[Number]:
    column = _column(rows, name, dtype)
    if column.null_count:
        raise ValueError(f"{name} has nulls")
    return _numbers(column, numbers, len(rows))


def _numbers(column: pa.Array[Any], dtype: type[Number], count: int) -> NDArray[Number]:
    """Read ``count`` numbers of a column's values or offsets, from the start of the column's slice."""
    if not len(column):
        return octets(pa.py_buffer(bytes(count * np.dtype(dtype).itemsize))).view(dtype)
    return octets(column.buffers()[1]).view(dtype)[column.offset : column.offset + count]


def _valid(column: pa.Array[Any]) -> NDArray[np.bool_]:
    if not column.null_count:
        return np.ones(len(column), np.bool_)
    bits = np.unpackbits(octets(column.buffers()[0]), bitorder="little", count=column.offset + len(column))
    return bits[column.offset :].astype(np.bool_)


def _variable(column: pa.Array[Any]) -> _Variable:
    offsets = _numbers(column, np.int32, len(column) + 1)
    data = octets(column.buffers()[2] if len(column) else None)
    if offsets[0] < 0 or offsets[-1] > len(data) or (np.diff(offsets) < 0).any():
        raise ValueError("offsets of a column point outside its data")
    return _Variable(offsets, data, octets(column.buffers()[0] if column.null_count else None), column.offset)
