"""Parsers with a library that is called once for each record: from its answers to Arrow, in pieces of bounded size.

A parser may have a second reader, a compiled loop for whole blocks of values (:func:`parse_in_blocks`). The loop reads
a value only as the library would, and leaves all others to it. So rows may share a block with any others, and the
library alone gives the reason for a refusal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple, cast

import numpy as np
import pyarrow as pa

from tidemark.decode.schema import array
from tidemark.parsers.base import Indices, Parsed, bisected, bounds, event_time_of, joined, shortened
from tidemark.parsers.settings import EventTime
from tidemark.parsers.slots import BlockReader, value_places
from tidemark.parsers.unknown_fields import summed

PIECE_ROWS: Final = 4096
PIECE_BYTES: Final = 4 << 20
"""The most rows, and bytes of values, that are Python objects at a time: a byte may become 100 bytes of objects."""


class RefusedRecord(ValueError):
    """A record that cannot be read; the message is the reason."""


class ParsedRecord(NamedTuple):
    """A library's reading of a record: its fields, and the names of its unknown fields."""

    fields: dict[str, Any]
    unknown: Collection[str] = ()


class RowsRead(NamedTuple):
    """Columns, the reasons of refused rows, and the number of other rows with each field that no column takes."""

    columns: pa.RecordBatch
    refused: dict[int, str]
    unknown: Mapping[str, int]


def read_rows(
    values: pa.Array[Any], read: Callable[[bytes], ParsedRecord], raw: pa.Schema, columns: pa.Schema
) -> RowsRead:
    """Read each of ``values`` that is not null with ``read``, which raises RefusedRecord.

    The fields that it returns are those of ``raw``, and are cast to ``columns``, of the same names.
    """
    refused: dict[int, str] = {}
    unknown: dict[str, int] = {}
    batches: list[pa.RecordBatch] = []
    for start, end in _cut(values):
        parsed, wrong, names = _piece(values.slice(start, end - start), start, read, raw, columns)
        batches += parsed
        refused |= wrong
        unknown = summed((unknown, names))
    table = pa.Table.from_batches(batches, columns).combine_chunks()
    [batch] = table.to_batches() or [pa.RecordBatch.from_pylist([], schema=columns)]
    return RowsRead(batch, refused, unknown)


def _cut(values: pa.Array[Any]) -> list[tuple[int, int]]:
    """Starts and ends of pieces: each has at most PIECE_ROWS and, but for its last row, less than PIECE_BYTES."""
    starts, _ = bounds(values)
    pieces = []
    start = 0
    while start < len(values):
        full = int(np.searchsorted(starts, int(starts[start]) + PIECE_BYTES))
        end = min(max(full, start + 1), start + PIECE_ROWS, len(values))
        pieces.append((start, end))
        start = end
    return pieces


def _piece(
    values: pa.Array[Any], first: int, read: Callable[[bytes], ParsedRecord], raw: pa.Schema, columns: pa.Schema
) -> tuple[list[pa.RecordBatch], dict[int, str], Mapping[str, int]]:
    """(columns, refused rows, unknown fields) of ``values``, whose first row is ``first``; see :class:`RowsRead`."""
    records: list[dict[str, Any] | None] = []
    refused: dict[int, str] = {}
    unknown: dict[int, Collection[str]] = {}
    for row, value in enumerate(values.to_pylist(), first):
        try:
            record = None if value is None else read(value)
        except RefusedRecord as error:
            refused[row] = shortened(str(error))
            record = None
        records.append(record and record.fields)
        if record and record.unknown:
            unknown[row] = record.unknown
    kind = pa.struct(list(raw))
    target = pa.struct(list(columns))

    def made(start: int, end: int) -> pa.Array[Any]:
        try:
            return pa.array(records[start:end], kind).cast(target)
        except (ArithmeticError, TypeError) as error:
            raise ValueError(str(error)) from error

    def alone(row: int) -> pa.Array[Any]:
        try:
            return made(row, row + 1)
        except ValueError as error:
            refused[first + row] = shortened(f"its values do not fit the table: {error}")
            return pa.nulls(1, target)

    batches = [_columns(structs, columns) for _, _, structs in bisected(len(records), made, alone)]
    names = (name for row, names in unknown.items() if row not in refused for name in names)
    return batches, refused, Counter(names)


def _columns(structs: pa.Array[Any], columns: pa.Schema) -> pa.RecordBatch:
    """The fields of ``structs``, null where a struct is null."""
    batch = pa.RecordBatch.from_struct_array(cast("pa.StructArray", structs))
    if not structs.null_count:
        return batch
    valid: Any = structs.is_valid().to_numpy(zero_copy_only=False)
    bits = np.packbits(valid, bitorder="little")
    taken = batch.take(array(pa.int64(), np.arange(len(batch)), bits))
    return pa.RecordBatch.from_arrays(taken.columns, schema=columns)


FEWEST: Final = 8
"""The fewest rows for which the loop is worth calling."""


class Group(NamedTuple):
    """Rows with values that one loop reads, and the number of bytes at the start of each that it skips."""

    reader: BlockReader
    rows: Indices
    skipped: int


def parse_in_blocks(
    values: pa.Array[Any],
    groups: Iterable[Group],
    read_rows: Callable[[pa.Array[Any]], RowsRead],
    columns: pa.Schema,
    event_time: EventTime | None,
) -> Parsed:
    """Read binary ``values``: the readers of ``groups`` first, then ``read_rows`` all that is left and not null."""
    data, starts, ends = value_places(values)
    left = np.asarray(values.is_valid().to_numpy(zero_copy_only=False), np.bool_).copy()
    blocks = []
    unknown: list[Mapping[str, int]] = []
    for group in groups:
        rows = group.rows[left[group.rows]]
        if len(rows) >= FEWEST:
            for block in group.reader.read(data, starts[rows] + group.skipped, ends[rows]):
                blocks.append((rows[block.rows], block.columns))
                left[rows[block.rows]] = False
                unknown.append(block.unknown)
    refused: dict[int, str] = {}
    if left.any():
        rows = np.flatnonzero(left)
        read = read_rows(values if len(rows) == len(values) else values.take(array(pa.int64(), rows)))
        refused = {int(rows[row]): reason for row, reason in read.refused.items()}
        blocks.append((rows, read.columns))
        unknown.append(read.unknown)
    batch = joined(blocks, len(values), columns)
    return Parsed(batch, refused, None, event_time_of(batch, event_time), summed(unknown))
