"""The parser's columns that partition a table, beside ``dt``.

A column's values are listed in the settings, see :mod:`tidemark.formats.table.partitioning`. A row with another value
is refused like one that does not fit its column's type; with ``misfits: land`` its column is null, and counted by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.decode.schema import array
from tidemark.errors import ConfigError
from tidemark.formats.table.partitioning import HOUR, PartitionColumn
from tidemark.parsers.base import Indices, Parsed, Parser, shortened, valid_rows, without
from tidemark.parsers.factory import parser_of
from tidemark.parsers.settings import BytesParser, FunctionParser, JsonParser, ParserSettings


def partitioned_parser(settings: ParserSettings, partition_by: Sequence[PartitionColumn], topic: str) -> Parser:
    """The parser of ``settings``, which refuses rows that have no partition.

    Raises:
        ConfigError: it cannot be made, or a table of its columns cannot be partitioned so; names ``topic``.
    """
    parser = parser_of(settings, topic)
    if problems := list(_problems(partition_by[1:], parser.columns)):
        raise ConfigError(f"topic {topic}", [("partition_by", problem) for problem in problems])
    listed = [column for column in partition_by if column.values]
    return _Bounded(parser, settings, listed) if listed else parser


def typed(text: str, kind: pa.DataType) -> str | int | date:
    """The value of type ``kind`` that Delta writes as ``text``.

    Raises:
        ValueError: the type has no such value, or it is written in another way.
    """
    if pa.types.is_string(kind):
        return text
    value: int | date
    if pa.types.is_boolean(kind):
        value, again = text == "true", "true" if text == "true" else "false"
    elif pa.types.is_date(kind):
        value, again = date.fromisoformat(text), date.fromisoformat(text).isoformat()
    else:
        value, again = int(text), str(int(text))
        limits: np.iinfo[Any] = np.iinfo(str(kind))
        if not limits.min <= value <= limits.max:
            raise ValueError(f"is no {kind}")
    if again != text:
        raise ValueError(f"is written {again}")
    return value


def values_of(texts: Iterable[str], kind: pa.DataType) -> pa.Array[Any]:
    """The values of a partition column of type ``kind``, from their texts."""
    return pa.array([typed(text, kind) for text in texts], kind)


class _Bounded:
    """A parser that lets only listed values into ``columns``."""

    def __init__(self, parser: Parser, settings: ParserSettings, columns: Sequence[PartitionColumn]) -> None:
        self._parser, self._settings = parser, settings
        self._values = value_sets(columns, parser.columns)
        lands = not isinstance(settings, BytesParser | FunctionParser) and settings.misfits == "land"
        declared = settings.columns if isinstance(settings, JsonParser) else ()
        required = {column.name for column in declared if column.required}
        self._land = {column.column for column in columns if lands and column.column not in required}
        self.columns, self.version = parser.columns, parser.version

    def parse(self, rows: pa.RecordBatch) -> Parsed:
        """See :meth:`tidemark.parsers.base.Parser.parse`."""
        parsed = self._parser.parse(rows)
        for name in self._values:
            unlisted = valid_rows(parsed.columns.column(name)) & (places_of(parsed.columns, name, self._values) < 0)
            unlisted[list(parsed.refused)] = False
            if parsed.filtered is not None:
                unlisted &= ~parsed.filtered
            if unlisted.any():
                parsed = self._without(parsed, name, np.flatnonzero(unlisted))
        return parsed

    def _without(self, parsed: Parsed, name: str, rows: Indices) -> Parsed:
        """``parsed`` without the unlisted values of ``rows``, or without these rows."""
        if name in self._land and not isinstance(self._settings, BytesParser):
            return without(parsed, rows, {name}, self._settings.event_time)
        values = parsed.columns.column(name).take(array(pa.int64(), rows)).to_pylist()
        rule = "is not one of the values that partition_by lists"
        reasons = (shortened(f"{name}: {value!r} {rule}") for value in values)
        return replace(parsed, refused={**parsed.refused, **dict(zip(rows.tolist(), reasons, strict=True))})


def value_sets(columns: Iterable[PartitionColumn], parsed: pa.Schema) -> dict[str, pa.Array[Any]]:
    """The values of each of the parser's columns among ``columns``."""
    own = [column for column in columns if column.column != HOUR]
    return {column.column: values_of(column.texts, parsed.field(column.column).type) for column in own}


def places_of(rows: pa.RecordBatch, name: str, values: Mapping[str, pa.Array[Any]]) -> Indices:
    """The places of a column's values in its list of values; -1 for null and for others."""
    places: Any = pc.index_in(rows.column(name), value_set=values[name])
    return np.asarray(pc.fill_null(places, -1).to_numpy(zero_copy_only=False), np.int64)


def _problems(columns: Sequence[PartitionColumn], parsed: pa.Schema) -> Iterator[str]:
    """The reasons why the parser's columns cannot partition the table."""
    names = ", ".join(parsed.names) or "none"
    for column in columns:
        if column.column == HOUR:
            if same := [name for name in parsed.names if name.casefold() == HOUR]:
                yield f"hour: the parser has a column {same[0]}; give that another name, or leave out hour"
        elif column.column not in parsed.names:
            yield f"{column.column}: is not a column of the parser, which has: {names}"
        else:
            yield from _wrong_values(column, parsed.field(column.column).type)


def _wrong_values(column: PartitionColumn, kind: pa.DataType) -> Iterator[str]:
    if pa.types.is_boolean(kind):
        if column.values:
            yield f"{column.column}: a boolean column needs no values"
    elif not (pa.types.is_string(kind) or pa.types.is_integer(kind) or pa.types.is_date(kind)):
        yield f"{column.column}: is {kind}; a partition column must be a string, an integer, a boolean or a date"
    elif not column.values:
        yield f"{column.column}: needs values, all that it may have, so that the table's partitions are bounded"
    else:
        for text in column.values:
            try:
                typed(text, kind)
            except ValueError as error:
                yield f"{column.column}: {text!r} is not a value of {kind}: {error}"
