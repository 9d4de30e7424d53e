"""Hashes of rows and keys by XXH64; a sum of row hashes is evidence that two sets of rows are equal.

The sum does not depend on the order of the rows. It is computed only from Arrow columns, so that Parquet yields it
again after the raw segments are gone. It detects accidents, not forgery.

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

XXH64 is compiled, and hashes with two seeds in one pass.

Source: the xxHash specification, https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
from numba import types
from numpy.typing import NDArray

from tidemark.decode.jit import READ_ONLY_BYTES, READ_ONLY_INT32, helper, kernel, load_u64, type_of
from tidemark.decode.schema import HEADERS_TYPE, TIMESTAMP_TYPE, octets
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

_P1 = np.uint64(0x9E3779B185EBCA87)
_P2 = np.uint64(0xC2B2AE3D27D4EB4F)
_P3 = np.uint64(0x165667B19E3779F9)
_P4 = np.uint64(0x85EBCA77C2B2AE63)
_P5 = np.uint64(0x27D4EB2F165667C5)
_BITS = np.uint64(64)
# Shifts as uint64: numba turns a uint64 with a signed number into a float.
_1, _7, _11, _12, _18, _23, _27, _29, _31, _32, _33 = (
    np.uint64(bits) for bits in (1, 7, 11, 12, 18, 23, 27, 29, 31, 32, 33)
)

_ZERO = np.uint64(0)


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


@helper
def xxh64_pair(
    data: NDArray[np.uint8], at: int, size: int, low: np.uint64, high: np.uint64
) -> tuple[np.uint64, np.uint64]:
    """XXH64 of ``data[at : at + size]`` with the seed ``low``, and with ``high``.

    One pass for both reads each word once and multiplies it once, and neither waits for the other. NOT checked: the
    caller guarantees that the bytes are there.
    """
    end = at + size
    if size >= 32:
        a, b, c, d = low + _P1 + _P2, low + _P2, low, low - _P1
        e, f, g, h = high + _P1 + _P2, high + _P2, high, high - _P1
        while at <= end - 32:
            word = load_u64(data, at) * _P2
            a, e = _stirred(a, word), _stirred(e, word)
            word = load_u64(data, at + 8) * _P2
            b, f = _stirred(b, word), _stirred(f, word)
            word = load_u64(data, at + 16) * _P2
            c, g = _stirred(c, word), _stirred(g, word)
            word = load_u64(data, at + 24) * _P2
            d, h = _stirred(d, word), _stirred(h, word)
            at += 32
        low, high = _converged(a, b, c, d), _converged(e, f, g, h)
    else:
        low, high = low + _P5, high + _P5
    low, high = low + np.uint64(size), high + np.uint64(size)
    while at <= end - 8:
        word = _stirred(np.uint64(0), load_u64(data, at) * _P2)
        low, high = _rotate(low ^ word, _27) * _P1 + _P4, _rotate(high ^ word, _27) * _P1 + _P4
        at += 8
    if at <= end - 4:
        word = np.uint64(0)
        for index in range(4):
            word |= np.uint64(data[at + index]) << np.uint64(8 * index)
        word *= _P1
        low, high = _rotate(low ^ word, _23) * _P2 + _P3, _rotate(high ^ word, _23) * _P2 + _P3
        at += 4
    while at < end:
        word = np.uint64(data[at]) * _P5
        low, high = _rotate(low ^ word, _11) * _P1, _rotate(high ^ word, _11) * _P1
        at += 1
    return _finished(low), _finished(high)


@helper
def _rotate(value: np.uint64, bits: np.uint64) -> np.uint64:
    return (value << bits) | (value >> (_BITS - bits))


@helper
def _stirred(lane: np.uint64, product: np.uint64) -> np.uint64:
    """A round of ``lane`` with a word; ``product`` is the word times the second prime."""
    return _rotate(lane + product, _31) * _P1


@helper
def _converged(a: np.uint64, b: np.uint64, c: np.uint64, d: np.uint64) -> np.uint64:
    value = _rotate(a, _1) + _rotate(b, _7) + _rotate(c, _12) + _rotate(d, _18)
    return _merge(_merge(_merge(_merge(value, a), b), c), d)


@helper
def _merge(value: np.uint64, lane: np.uint64) -> np.uint64:
    return (value ^ _stirred(np.uint64(0), lane * _P2)) * _P1 + _P4


@helper
def _finished(value: np.uint64) -> np.uint64:
    value = (value ^ (value >> _33)) * _P2
    value = (value ^ (value >> _29)) * _P3
    return value ^ (value >> _32)


def key_hashes(keys: pa.Array[Any]) -> NDArray[np.uint64]:
    """The hash of each of the binary ``keys``, of which none is null.

    It is XXH64 with the seed 0, by which state tables divide their keys.

    Raises:
        ValueError: the keys have another type than binary.
    """
    if keys.type != pa.binary():
        raise ValueError(f"keys of type {keys.type} have no hash: cast them to binary")
    hashes = np.empty(len(keys), np.uint64)
    if len(keys):
        _, offsets, data = keys.buffers()
        starts = octets(offsets).view(np.int32)[keys.offset : keys.offset + len(keys) + 1]
        _hash(starts, octets(data), hashes)
    return hashes


@kernel(READ_ONLY_INT32, READ_ONLY_BYTES, type_of(np.empty(0, np.uint64)))
def _hash(starts: NDArray[np.int32], data: NDArray[np.uint8], hashes: NDArray[np.uint64]) -> None:
    """Set ``hashes``. NOT checked: ``starts`` ascend, and lie within ``data``."""
    for row in range(len(starts) - 1):
        low, _ = xxh64_pair(data, starts[row], starts[row + 1] - starts[row], _ZERO, _ZERO)
        hashes[row] = low
