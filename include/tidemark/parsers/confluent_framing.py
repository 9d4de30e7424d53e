"""Confluent's wire format: a zero byte, a schema's number in four bytes, and for Protobuf the message's indexes.

Since Confluent Platform 8 a header may name the schema instead, by its GUID: ``__value_schema_id`` has the byte 1, the
GUID's 16 bytes, and the message's indexes; the value is then what the schema wrote, and nothing else. Such a value gets
the frame that it lacks, with a number that stands for the GUID in this process, so that all parsers read one format.

Source: Confluent's documentation, "Schema Registry serializers: wire format", and ``SchemaId`` of its client.
"""

from __future__ import annotations

from collections.abc import Iterator
from threading import Lock
from typing import Any, Final, Literal
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidemark.parsers.base import Indices, bounds, valid_rows
from tidemark.parsers.row_parser import RefusedRecord

HEAD: Final = 5
"""Bytes before those that a schema has written."""

NOT_FRAMED: Final = (
    "does not start with a zero byte and a schema's number, as Confluent's framing does, nor has its header"
)

SCHEMA_HEADERS: Final = {"key": "__key_schema_id", "value": "__value_schema_id"}

MAX_NUMBER: Final = (1 << 31) - 1
"""The last number of a registry; higher ones stand for GUIDs."""

FIRST_MESSAGE: Final = b"\0"
"""The indexes of the first message of a Protobuf file."""

MOST_GUIDS: Final = 1 << 17
"""The most GUIDs that a process tells apart; the records of others are refused, as if nobody knew their schema."""

_FEW_SCHEMAS: Final = 16
"""So many are told apart one after the other, which is faster than to sort the rows."""

MAX_FRAME: Final = (1 << 32) - 1
_GUID: Final = 16

_MAX_VARINT: Final = 5
_MAX_IN_BYTE: Final = 64


_numbers: Final[dict[UUID, int]] = {}
_guids: Final[list[UUID]] = []
_lock: Final = Lock()
"""The GUIDs that this process has met, in the order of the numbers that stand for them. The lock guards both."""


def _number_of(guid: UUID) -> int:
    with _lock:
        if guid not in _numbers and len(_guids) == MOST_GUIDS:
            return MAX_FRAME
        if guid not in _numbers:
            _numbers[guid] = MAX_NUMBER + 1 + len(_guids)
            _guids.append(guid)
        return _numbers[guid]


def guid_of(number: int) -> UUID | None:
    """The GUID that ``number`` stands for; None if it is a number of a registry, or of nothing."""
    with _lock:
        at = number - MAX_NUMBER - 1
        return _guids[at] if 0 <= at < len(_guids) else None


def framed_values(rows: pa.RecordBatch, column: Literal["key", "value"], *, indexes: bytes = b"") -> pa.Array[Any]:
    """The binary keys or values of ``rows``, with a frame where a header names the schema.

    ``indexes`` follow the number if the header has none: for Protobuf those of the first message. Of several such
    headers the last one counts.
    """
    values: pa.Array[Any] = rows.column(f"kafka_{column}")
    named = _named_by_headers(rows.column("kafka_headers"), SCHEMA_HEADERS[column])
    frames = {header: _frame_of(header, indexes) for header in {*named.values()}}
    by_row = {row: frame for row, header in named.items() if (frame := frames[header]) is not None}
    if not by_row:
        return values
    texts: list[bytes | None] = values.to_pylist()
    for row, frame in by_row.items():
        text = texts[row]
        texts[row] = None if text is None else frame + text
    return pa.array(texts, pa.binary())


def _named_by_headers(headers: Any, key: str) -> dict[int, bytes]:
    """The last value of the header ``key`` of each row that has one."""
    entries = headers.flatten()
    if not len(entries):
        return {}
    keys: pa.Array[Any] = pc.struct_field(entries, "key")
    at = np.flatnonzero(pc.equal(keys, pa.scalar(key)).to_numpy(zero_copy_only=False))
    if not len(at):
        return {}
    rows = pc.list_parent_indices(headers).to_numpy()[at].tolist()
    found = pc.struct_field(entries, "value").take(pa.array(at)).to_pylist()
    return {row: value for row, value in zip(rows, found, strict=True) if value is not None}


def _frame_of(header: bytes, indexes: bytes) -> bytes | None:
    """The frame that says what ``header`` says; None if it names no schema."""
    if header[:1] == b"\x01" and len(header) > _GUID:
        number = _number_of(UUID(bytes=header[1 : _GUID + 1]))
        return bytes(1) + number.to_bytes(4, "big") + (header[_GUID + 1 :] or indexes if indexes else b"")
    if header[:1] == b"\0" and len(header) >= HEAD:
        return header[:HEAD] + (header[HEAD:] or indexes if indexes else b"")
    return None


def split_frame(value: bytes) -> tuple[int, bytes]:
    """(number of the schema, the bytes that it wrote). Raises RefusedRecord."""
    if len(value) < HEAD or value[0] != 0:
        raise RefusedRecord(NOT_FRAMED)
    return int.from_bytes(value[1:HEAD], "big"), value[HEAD:]


def rows_by_schema(values: pa.Array[Any]) -> dict[int, Indices]:
    """The rows of binary ``values`` by the number of the schema that they name; the most rows first, then the lower."""
    rows, numbers = numbered(values)
    distinct, counts = np.unique(numbers, return_counts=True)
    order = np.lexsort((distinct, -counts))
    if len(distinct) <= _FEW_SCHEMAS:
        return {number: rows[numbers == number] for number in distinct[order].tolist()}
    parts = np.split(rows[np.argsort(numbers, kind="stable")], np.cumsum(counts)[:-1])
    return {int(distinct[place]): parts[place] for place in order.tolist()}


def numbered(values: pa.Array[Any]) -> tuple[Indices, Indices]:
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
    bad = np.flatnonzero(valid_rows(values) & ~good)
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


def of_message(values: pa.Array[Any], indexes: tuple[int, ...]) -> Iterator[tuple[Indices, int]]:
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
