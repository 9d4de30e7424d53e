"""The contract of a parser, and functions that all parsers share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Final, Protocol, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidemark.decode.schema import TIMESTAMP_TYPE, array, octets
from tidemark.parsers.settings import EventTime

MAX_REASON: Final = 300
"""The most characters of a reason; a library's message may quote a whole record."""

MICROSECONDS: Final = {"s": 1_000_000, "ms": 1_000, "us": 1}
_DAY: Final = 86_400_000_000
MAX_INT64: Final = (1 << 63) - 1

BLOCK_BYTES: Final = 4 << 20
"""About so many bytes of values are read at once."""

BLOCK_ROWS: Final = 1 << 14

MOST_FIELDS: Final = 4096
"""The most fields of a schema, at all levels, that become columns: definitions that hold one another may multiply."""

Bits = NDArray[np.bool_]
Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Parsed:
    """The result of parsing a batch of rows.

    ``columns`` has as many rows as the batch, null where a row is refused or has no bytes to parse. ``refused`` has the
    reasons, by row. ``filtered`` marks the rows that the parser leaves out on purpose, if any. ``event_time`` is int64,
    microseconds since 1970, null if a row has none; numbers out of int64's range are its ends.

    ``unknown`` are fields that no column takes: for each name, the number of rows with it that are not refused. The
    name is the path of the topmost such field, ``customer.vip``; the fields below it are not counted. A list is passed
    through: a row counts once, however many items have the field. In a map's values the path is that of the table's
    columns, ``prices.value.vat``. Names are bounded, see :mod:`tidemark.parsers.unknown_fields`. Each kind of parser
    defines its fields.
    """

    columns: pa.RecordBatch
    refused: Mapping[int, str] = field(default_factory=dict)
    filtered: Bits | None = None
    event_time: pa.Array[Any] | None = None
    unknown: Mapping[str, int] = field(default_factory=dict)


class Parser(Protocol):
    """A pure function of its settings and of the rows. Made once for each task; memory is bounded by the rows'."""

    @property
    def columns(self) -> pa.Schema:
        """The columns that it adds to Kafka's own; all may be null."""
        ...

    @property
    def version(self) -> str:
        """Kind and number, such as ``json/1``, as recorded with a refused row."""
        ...

    def parse(self, rows: pa.RecordBatch) -> Parsed:
        """Parse rows with Kafka's columns.

        Raises:
            ParserError: the parser itself is at fault; no row is to blame.
            RegistryUnavailable: a schema could not be fetched for now.
            ConfigError: a registry cannot be asked before its settings, or the environment, are corrected.
        """
        ...


def shortened(reason: str) -> str:
    """``reason`` in one line of at most MAX_REASON characters."""
    text = " ".join(reason.split())
    return text if len(text) <= MAX_REASON else f"{text[: MAX_REASON - 3]}..."


def event_time_of(columns: pa.RecordBatch, wanted: EventTime | None) -> pa.Array[Any] | None:
    """The event time of ``columns``, in whole microseconds; its field may lie within structs: ``meta.at``."""
    if wanted is None:
        return None
    column = column_at(columns, wanted.field)
    valid = valid_rows(column)
    kind = column.type
    if pa.types.is_date(kind):
        values, factor = _integers(column.cast(pa.int32()).cast(pa.int64())), _DAY
    elif pa.types.is_timestamp(kind):
        values, factor = _integers(column.cast(TIMESTAMP_TYPE).view(pa.int64())), 1
    else:
        values = _integers(column.cast(pa.int64()))
        factor = MICROSECONDS.get(wanted.unit or "us", 0)
    scaled = values // 1000 if factor == 0 else _multiplied(values, factor)
    return array(pa.int64(), scaled, np.packbits(valid, bitorder="little"))


def without(parsed: Parsed, rows: Indices, names: Collection[str], wanted: EventTime | None) -> Parsed:
    """``parsed`` with nulls in the columns ``names`` of ``rows``; the values lost count as unknown fields."""
    counted = np.zeros(len(parsed.columns), np.bool_)
    counted[rows] = True
    cut = nulled(parsed.columns.select(sorted(names)), ~counted)
    counted[list(parsed.refused)] = False
    columns, unknown = [], dict(parsed.unknown)
    for name, column in zip(parsed.columns.schema.names, parsed.columns.columns, strict=True):
        columns.append(cut.column(name) if name in names else column)
        if name in names and (lost := int((counted & valid_rows(column)).sum())):
            unknown[name] = unknown.get(name, 0) + lost
    batch = pa.RecordBatch.from_arrays(columns, schema=parsed.columns.schema)
    return replace(parsed, columns=batch, unknown=unknown, event_time=event_time_of(batch, wanted))


def nulled(rows: pa.RecordBatch, kept: Bits) -> pa.RecordBatch:
    """``rows`` with all columns null in those that are not ``kept``."""
    taken = rows.take(array(pa.int64(), np.arange(len(kept)), np.packbits(kept, bitorder="little")))
    return pa.RecordBatch.from_arrays(taken.columns, schema=rows.schema)


def valid_rows(column: pa.Array[Any]) -> Bits:
    """True for each row that is not null."""
    valid: Bits = column.is_valid().to_numpy(zero_copy_only=False)
    return valid


def column_at(columns: pa.RecordBatch, path: str) -> pa.Array[Any]:
    """The column under ``path``. Its points lead into structs unless a column has them in its name.

    Raises:
        ValueError: there is no such column.
    """
    if path in columns.schema.names:
        return columns.column(path)
    name, *inner = path.split(".")
    if name not in columns.schema.names:
        raise ValueError(f"there is no column {name}")
    column: pa.Array[Any] = columns.column(name)
    for key in inner:
        if not pa.types.is_struct(column.type) or column.type.get_field_index(key) < 0:
            raise ValueError(f"there is no {key} in {path}")
        column = pc.struct_field(column, key)
    return column


def check_event_type(columns: pa.Schema, wanted: EventTime | None) -> None:
    """Raise ValueError unless ``wanted`` is the path of a time in ``columns``, or of a number with a unit."""
    if wanted is None:
        return
    kind = column_at(no_rows(columns, 0), wanted.field).type
    if pa.types.is_integer(kind):
        if wanted.unit is None:
            raise ValueError(f"event_time.unit: {wanted.field} is a number, so its unit is needed")
    elif not (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
        raise ValueError(f"event_time.field: {wanted.field} is {kind}, neither a time nor a whole number")
    elif wanted.unit is not None:
        raise ValueError(f"event_time.unit: {wanted.field} has the type of a time, which states its unit")


def bounds(values: pa.Array[Any]) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    """The starts of the binary ``values`` and the end of the last one; and their bytes."""
    if not len(values):
        return np.zeros(1, np.int32), np.empty(0, np.uint8)
    _, offsets, data = values.buffers()
    starts = octets(offsets).view(np.int32)[values.offset : values.offset + len(values) + 1]
    return starts, octets(data)


def blocks(sizes: NDArray[Any]) -> list[tuple[int, int]]:
    """Starts and ends of blocks of values of these sizes: BLOCK_ROWS at most, and about BLOCK_BYTES."""
    if not len(sizes):
        return []
    number = np.maximum((np.cumsum(sizes, dtype=np.int64) - 1) // BLOCK_BYTES, np.arange(len(sizes)) // BLOCK_ROWS)
    cuts = [0, *(np.flatnonzero(np.diff(number)) + 1).tolist(), len(sizes)]
    return list(pairwise(cuts))


def no_rows(columns: pa.Schema, rows: int) -> pa.RecordBatch:
    """``rows`` rows of nulls. ``from_pylist`` would import pandas."""
    return pa.RecordBatch.from_arrays([pa.nulls(rows, field.type) for field in columns], schema=columns)


def joined(blocks: list[tuple[NDArray[np.int64], pa.RecordBatch]], rows: int, columns: pa.Schema) -> pa.RecordBatch:
    """A row for each of ``rows``; null if no block has it. Each block has the numbers of its rows."""
    if len(blocks) and len(blocks[0][0]) == rows:
        return blocks[0][1]
    place = np.full(rows, -1, np.int64)
    at = np.concatenate([numbers for numbers, _ in blocks]) if blocks else np.empty(0, np.int64)
    place[at] = np.arange(len(at))
    table = pa.Table.from_batches([batch for _, batch in blocks], columns).combine_chunks()
    [batch] = table.to_batches() or [no_rows(columns, 0)]
    if len(at) == rows and (np.diff(at) == 1).all():
        return batch
    return batch.take(array(pa.int64(), place, np.packbits(place >= 0, bitorder="little")))


Made = TypeVar("Made")


def bisected(
    rows: int, attempt: Callable[[int, int], Made], alone: Callable[[int], Made], *, smallest: int = 1
) -> list[tuple[int, int, Made]]:
    """Cut ``[0, rows)`` so that ``attempt`` succeeds on each piece, in order: (start, end, result).

    A piece that fails is halved; at ``smallest`` rows or fewer, ``alone`` makes them one by one. A failure is a
    ValueError: ``attempt`` raises it for every error that means a bad value, since not all of Arrow's errors are one.
    """
    made: list[tuple[int, int, Made]] = []
    waiting = [(0, rows)] if rows else []
    while waiting:
        start, end = waiting.pop()
        try:
            made.append((start, end, attempt(start, end)))
        except ValueError:
            if end - start <= smallest:
                made += [(row, row + 1, alone(row)) for row in range(start, end)]
            else:
                middle = (start + end) // 2
                waiting += [(middle, end), (start, middle)]
    return made


def _integers(column: pa.Array[Any]) -> NDArray[np.int64]:
    if not len(column):
        return np.empty(0, np.int64)
    data = octets(column.buffers()[1])
    return np.frombuffer(data, np.int64, len(column), column.offset * 8)


def _multiplied(values: NDArray[np.int64], factor: int) -> NDArray[np.int64]:
    """The products, clipped to the range of int64."""
    low, high = -(MAX_INT64 // factor), MAX_INT64 // factor
    product: NDArray[np.int64] = np.clip(values, low, high) * np.int64(factor)
    product[values > high] = MAX_INT64
    product[values < low] = -MAX_INT64
    return product
