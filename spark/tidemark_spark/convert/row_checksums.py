"""Counts and hashes of rows: two sets of rows with equal accounts are equal, whatever their order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from tidemark import decode
from tidemark.decode import SCHEMA
from tidemark.decode.schema import headers_column
from tidemark.formats.raw.hashsum import combine
from tidemark.formats.table.base_columns import HASHED, IDENTITY
from tidemark_spark.convert.date_partitioner import Numbers, numbers


class Cells(NamedTuple):
    """Disjoint ranges of offsets, ascending, each from an element of ``starts`` to the one of ``ends``."""

    starts: tuple[int, ...]
    ends: tuple[int, ...]

    def numbers(self, offsets: Numbers) -> Numbers:
        """Number of each offset's cell; -1 outside."""
        if not self.starts:
            return np.full(len(offsets), -1, np.int64)
        cells = np.searchsorted(np.array(self.starts, np.int64), offsets, "right") - 1
        cells[offsets >= np.array(self.ends, np.int64)[cells]] = -1
        return cells


@dataclass(slots=True)
class Account:
    """Number of rows, the sum of their hashes as in evidence, and the sum over the columns that the table keeps.

    ``columns`` has, for each column outside of the hash, the number of rows that have it and the sum of their hashes.
    """

    rows: int = 0
    hash128: int = 0
    kept128: int = 0
    columns: dict[str, tuple[int, int]] = field(default_factory=dict)
    files: set[str] = field(default_factory=set)

    def add(self, other: Account) -> None:
        """Add the rows of ``other`` to this account."""
        self.rows += other.rows
        self.hash128 = combine(self.hash128, other.hash128)
        self.kept128 = combine(self.kept128, other.kept128)
        for name, (rows, total) in other.columns.items():
            before = self.columns.get(name, (0, 0))
            self.columns[name] = before[0] + rows, combine(before[1], total)
        self.files |= other.files


def account_of_records(rows: pa.RecordBatch, names: Sequence[str]) -> Account:
    """The account of decoded ``rows``, of which the table keeps the columns ``names``."""
    total = decode.row_hash_sum(rows)
    kept = total if set(HASHED) <= set(names) else decode.row_hash_sum(_hashable(rows, names))
    return Account(len(rows), total, kept, _column_sums(rows, names))


def account_of_file(rows: pa.RecordBatch, names: Sequence[str]) -> Account:
    """The account of ``rows`` in a file with the columns ``names``; missing columns count as null."""
    total = hash_of_file(rows, names)
    return Account(len(rows), total, total, _column_sums(rows, names))


def hash_of_file(rows: pa.RecordBatch, names: Sequence[str]) -> int:
    """The hash of ``rows`` in a file with the columns ``names``; missing columns count as null."""
    return decode.row_hash_sum(_hashable(rows, names))


def _column_sums(rows: pa.RecordBatch, names: Sequence[str]) -> dict[str, tuple[int, int]]:
    others = [name for name in names if name not in HASHED and name not in IDENTITY]
    return {name: (len(rows), _column_sum(rows, name)) for name in others}


def _hashable(rows: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
    """``rows`` with Kafka's columns; columns outside of ``names`` are null."""
    present = set(rows.schema.names) & set(names) | set(IDENTITY)
    return _shaped(rows, {name: rows.column(name) for name in present if name in SCHEMA.names})


def _column_sum(rows: pa.RecordBatch, name: str) -> int:
    """The sum of the hashes of a column's values, each with its row's offset."""
    identity = {column: rows.column(column) for column in IDENTITY}
    return decode.row_hash_sum(_shaped(rows, {**identity, "kafka_value": as_bytes(rows.column(name))}))


def as_bytes(column: pa.Array[Any]) -> pa.Array[Any]:
    """Values of a column as bytes; equal values of a type have equal bytes."""
    if isinstance(column.type, pa.StructType | pa.ListType):
        values = [None if value is None else repr(value).encode() for value in column.to_pylist()]
        return pa.array(values, pa.binary())
    if pa.types.is_binary(column.type):
        return column
    return column.cast(pa.string()).cast(pa.binary())


def have_equal_values(one: pa.Table, other: pa.Table) -> bool:
    """True if both tables have the same columns and values, as Arrow compares them, or as their bytes: NaN is NaN."""
    return bool(one.equals(other)) or (
        one.schema.equals(other.schema)
        and len(one) == len(other)
        and all(
            bool(left.equals(right)) or as_bytes(left.combine_chunks()).equals(as_bytes(right.combine_chunks()))
            for left, right in zip(one.columns, other.columns, strict=True)
        )
    )


def _shaped(rows: pa.RecordBatch, columns: dict[str, pa.Array[Any]]) -> pa.RecordBatch:
    missing = {
        field.name: _no_headers(len(rows)) if field.name == "kafka_headers" else _nothing(field, len(rows))
        for field in SCHEMA
        if field.name not in columns
    }
    columns = {**missing, **columns}
    return pa.RecordBatch.from_arrays([columns[name] for name in SCHEMA.names], schema=_NULLABLE)


_NULLABLE: Final = pa.schema([field.with_nullable(True) for field in SCHEMA])


def _no_headers(rows: int) -> pa.Array[Any]:
    return headers_column(np.zeros(rows + 1, np.int32), pa.nulls(0, pa.string()), pa.nulls(0, pa.binary()))


def _nothing(field: pa.Field[Any], rows: int) -> pa.Array[Any]:
    nulls: pa.Array[Any] = pa.nulls(rows, field.type)
    return nulls


def by_cell(rows: pa.RecordBatch, cells: Cells) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Adjacent rows of each cell; their offsets may come in any order."""
    cell_of = cells.numbers(numbers(rows.column("kafka_offset")))
    edges = (np.flatnonzero(np.diff(cell_of)) + 1).tolist()
    for start, end in zip([0, *edges], [*edges, len(rows)], strict=True):
        if end > start:
            yield int(cell_of[start]), rows.slice(start, end - start)
