"""Parsers with a library that is called once for each record: from its answers to Arrow, in pieces of bounded size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, NamedTuple, cast

import numpy as np
import pyarrow as pa

from tidemark.parsers.base import bisected, bounds, nulled, shortened, valid_rows
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


def read_rows(
    values: pa.Array[Any], read: Callable[[bytes], ParsedRecord], columns: pa.Schema
) -> tuple[pa.RecordBatch, dict[int, str], Mapping[str, int]]:
    """Read each of ``values`` that is not null into ``columns`` with ``read``, which raises RefusedRecord.

    Returns columns, the reasons of refused rows, and the number of other rows with each field that no column takes.
    """
    refused: dict[int, str] = {}
    unknown: dict[str, int] = {}
    batches: list[pa.RecordBatch] = []
    for start, end in _cut(values):
        parsed, wrong, names = _piece(values.slice(start, end - start), start, read, columns)
        batches += parsed
        refused |= wrong
        unknown = summed((unknown, names))
    table = pa.Table.from_batches(batches, columns).combine_chunks()
    [batch] = table.to_batches() or [pa.RecordBatch.from_pylist([], schema=columns)]
    return batch, refused, unknown


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
    values: pa.Array[Any], first: int, read: Callable[[bytes], ParsedRecord], columns: pa.Schema
) -> tuple[list[pa.RecordBatch], dict[int, str], Mapping[str, int]]:
    """(columns, refused rows, unknown fields) of ``values``, whose first row is ``first``, as of :func:`read_rows`."""
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
    kind = pa.struct(list(columns))

    def made(start: int, end: int) -> pa.Array[Any]:
        try:
            return pa.array(records[start:end], kind)
        except (ArithmeticError, TypeError) as error:
            raise ValueError(str(error)) from error

    def alone(row: int) -> pa.Array[Any]:
        try:
            return made(row, row + 1)
        except ValueError as error:
            refused[first + row] = shortened(f"its values do not fit the table: {error}")
            return pa.nulls(1, kind)

    batches = [_columns(structs) for _, _, structs in bisected(len(records), made, alone)]
    names = (name for row, names in unknown.items() if row not in refused for name in names)
    return batches, refused, Counter(names)


def _columns(structs: pa.Array[Any]) -> pa.RecordBatch:
    """The fields of ``structs``, null where a struct is null."""
    batch = pa.RecordBatch.from_struct_array(cast("pa.StructArray", structs))
    return nulled(batch, valid_rows(structs)) if structs.null_count else batch
