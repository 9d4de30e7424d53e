"""Confluent's wire format: a zero byte, a schema's number in four bytes, and for Protobuf which message it is.

By Confluent's documentation, "Schema Registry serializers: wire format".
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from tidemark.parsers.base import bounds
from tidemark.parsers.row_parser import RefusedRecord

_HEAD: Final = 5
_MAX_VARINT: Final = 5


def split_frame(value: bytes) -> tuple[int, bytes]:
    """(number of the schema, what it wrote). Raises RefusedRecord."""
    if len(value) < _HEAD or value[0] != 0:
        raise RefusedRecord("does not start with a zero byte and the number of a schema, as Confluent's framing does")
    return int.from_bytes(value[1:_HEAD], "big"), value[_HEAD:]


def schema_numbers(values: pa.Array[Any]) -> list[int]:
    """The numbers of schemas that binary ``values`` name, those of most values first, then lower ones first."""
    starts, data = bounds(values)
    at = starts[:-1][np.diff(starts) >= _HEAD]
    at = at[data[at] == 0]
    numbers = sum((data[at + place].astype(np.int64) << 8 * (4 - place) for place in range(1, _HEAD)), np.int64(0))
    found, counts = np.unique(numbers, return_counts=True)
    ordered: list[int] = found[np.lexsort((found, -counts))].tolist()
    return ordered


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


def _varint(value: bytes, at: int) -> tuple[int, int]:
    """A zigzag varint and where it ends."""
    found = 0
    for place, byte in enumerate(value[at : at + _MAX_VARINT]):
        found |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return (found >> 1) ^ -(found & 1), at + place + 1
    raise RefusedRecord("does not tell which message it is")
