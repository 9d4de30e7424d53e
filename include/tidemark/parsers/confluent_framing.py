"""Confluent's wire format: a zero byte, a schema's number in four bytes, and for Protobuf the message's indexes.

Source: Confluent's documentation, "Schema Registry serializers: wire format".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidemark.parsers.base import bounds
from tidemark.parsers.row_parser import RefusedRecord

HEAD: Final = 5
"""Bytes before those that a schema has written."""

NOT_FRAMED: Final = "does not start with a zero byte and the number of a schema, as Confluent's framing does"

_MAX_VARINT: Final = 5
_MAX_IN_BYTE: Final = 64


def split_frame(value: bytes) -> tuple[int, bytes]:
    """(number of the schema, the bytes that it wrote). Raises RefusedRecord."""
    if len(value) < HEAD or value[0] != 0:
        raise RefusedRecord(NOT_FRAMED)
    return int.from_bytes(value[1:HEAD], "big"), value[HEAD:]


def by_frequency(numbers: NDArray[np.int64]) -> list[int]:
    """The distinct numbers of schemas, the most frequent first, then the lower first."""
    distinct, counts = np.unique(numbers, return_counts=True)
    ordered: list[int] = distinct[np.lexsort((distinct, -counts))].tolist()
    return ordered


def numbered(values: pa.Array[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(rows of binary ``values`` that have a frame, see :func:`split_frame`; the numbers of schemas that they name)."""
    starts, data = bounds(values)
    rows = np.flatnonzero(np.diff(starts) >= HEAD)
    rows = rows[data[starts[rows]] == 0]
    at = starts[rows]
    numbers = np.zeros(len(rows), np.int64)
    for place in range(1, HEAD):
        numbers = numbers << 8 | data[at + place]
    return rows, numbers


def unframed(values: pa.Array[Any]) -> tuple[pa.Array[Any], dict[int, str]]:
    """(binary ``values`` without their frames, null if one has none; the reasons for that, by row)."""
    framed, _ = numbered(values)
    starts, data = bounds(values)
    good = np.zeros(len(values), np.bool_)
    good[framed] = True
    lengths = np.where(good, np.diff(starts) - HEAD, 0)
    kept = np.zeros(len(data), np.bool_)
    kept[starts[0] : starts[-1]] = True
    for place in range(HEAD):
        kept[starts[framed] + place] = False
    for row in np.flatnonzero(~good).tolist():
        kept[starts[row] : starts[row + 1]] = False
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    buffers: list[NDArray[Any]] = [np.packbits(good, bitorder="little"), offsets, data[kept]]
    contents = pa.Array.from_buffers(pa.binary(), len(values), [pa.py_buffer(buffer.data) for buffer in buffers])
    bad = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False) & ~good)
    return contents, dict.fromkeys(bad.tolist(), NOT_FRAMED)


def split_message(value: bytes) -> tuple[tuple[int, ...], bytes]:
    """(indexes from the file's messages inward, the message). Raises RefusedRecord."""
    count, at = _varint(value, 0)
    if count < 0 or count > len(value) - at:
        raise RefusedRecord(f"names its message by {count} indexes")
    indexes = []
    for _ in range(count):
        index, at = _varint(value, at)
        indexes.append(index)
    return tuple(indexes) or (0,), value[at:]


def of_message(values: pa.Array[Any], indexes: tuple[int, ...]) -> Iterator[tuple[NDArray[np.int64], int]]:
    """(rows of binary ``values`` that name the message of ``indexes`` as serializers do, bytes before the message)."""
    rows, _ = numbered(values)
    starts, data = bounds(values)
    frames = [bytes(2 * index for index in (len(indexes), *indexes))] if max(indexes) < _MAX_IN_BYTE else []
    for frame in [*frames, b"\0"] if indexes == (0,) else frames:
        named = rows[np.diff(starts)[rows] >= HEAD + len(frame)]
        for place, byte in enumerate(frame, HEAD):
            named = named[data[starts[named] + place] == byte]
        yield named, HEAD + len(frame)


def _varint(value: bytes, at: int) -> tuple[int, int]:
    """A zigzag varint and its end."""
    raw = 0
    for place, byte in enumerate(value[at : at + _MAX_VARINT]):
        raw |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return (raw >> 1) ^ -(raw & 1), at + place + 1
    raise RefusedRecord("does not tell which message it is")
