"""The columns of a parser by which a table is partitioned beside ``dt``.

A column's values are listed in the settings, see :mod:`tidemark.formats.partitioning`. A row with another value is
refused like one that does not fit its column's type; with ``misfits: land`` its column is null, and counted by name.
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
from tidemark.formats.partitioning import HOUR, PartitionColumn
from tidemark.parsers.base import Indices, Parsed, Parser, shortened, without
from tidemark.parsers.factory import parser_of
from tidemark.parsers.settings import BytesParser, FunctionParser, JsonParser, ParserSettings


def partitioned_parser(settings: ParserSettings, partition_by: Sequence[PartitionColumn], topic: str) -> Parser:
    """The parser that ``settings`` describe, which refuses rows that have no partition.

    Raises:
        ConfigError: it cannot be made, or a table of its columns cannot be partitioned so; names ``topic``.
    """
    parser = parser_of(settings, topic)
    if problems := list(_problems(partition_by[1:], parser.columns)):
        raise ConfigError(f"topic {topic}", [("partition_by", one) for one in problems])
    listed = [one for one in partition_by if one.values]
    return _Bounded(parser, settings, listed) if listed else parser


def typed(text: str, kind: pa.DataType) -> str | int | date:
    """The value of a partition column of type ``kind`` that Delta writes as ``text``.

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
    if again != text:
        raise ValueError(f"is written {again}")
    try:
        pa.array([value], kind)
    except pa.ArrowException as error:
        raise ValueError(str(error)) from error
    return value


def values_of(texts: Iterable[str], kind: pa.DataType) -> pa.Array[Any]:
    """The values of a partition column of type ``kind``, from their texts."""
    return pa.array([typed(one, kind) for one in texts], kind)


class _Bounded:
    """``parser``, whose ``columns`` have no other values than those that are listed."""

    def __init__(self, parser: Parser, settings: ParserSettings, columns: Sequence[PartitionColumn]) -> None:
        self._parser, self._settings = parser, settings
        self._values = value_sets(columns, parser.columns)
        lands = not isinstance(settings, BytesParser | FunctionParser) and settings.misfits == "land"
        declared = settings.columns if isinstance(settings, JsonParser) else ()
        required = {one.name for one in declared if one.required}
        self._land = {one.column for one in columns if lands and one.column not in required}
        self.columns, self.version = parser.columns, parser.version

    def parse(self, rows: pa.RecordBatch) -> Parsed:
        """See :meth:`tidemark.parsers.base.Parser.parse`."""
        found = self._parser.parse(rows)
        for name in self._values:
            valid = found.columns.column(name).is_valid().to_numpy(zero_copy_only=False)
            unlisted = np.asarray(valid, np.bool_) & (places_of(found.columns, name, self._values) < 0)
            unlisted[list(found.refused)] = False
            if found.filtered is not None:
                unlisted &= ~found.filtered
            if unlisted.any():
                found = self._without(found, name, np.flatnonzero(unlisted))
        return found

    def _without(self, found: Parsed, name: str, rows: Indices) -> Parsed:
        """``found`` without the values of ``rows`` that are not listed, or without these rows."""
        if name in self._land and not isinstance(self._settings, BytesParser):
            return without(found, rows, {name}, self._settings.event_time)
        values = found.columns.column(name).take(array(pa.int64(), rows)).to_pylist()
        rule = "is not one of the values that partition_by lists"
        reasons = (shortened(f"{name}: {value!r} {rule}") for value in values)
        return replace(found, refused={**found.refused, **dict(zip(rows.tolist(), reasons, strict=True))})


def value_sets(columns: Iterable[PartitionColumn], parsed: pa.Schema) -> dict[str, pa.Array[Any]]:
    """The values of each of the parser's columns among ``columns``."""
    return {one.column: values_of(one.texts, parsed.field(one.column).type) for one in columns if one.column != HOUR}


def places_of(rows: pa.RecordBatch, name: str, values: Mapping[str, pa.Array[Any]]) -> Indices:
    """Where each value of a column is among those that it may have; -1 for null and for others."""
    found: Any = pc.index_in(rows.column(name), value_set=values[name])
    return np.asarray(pc.fill_null(found, -1).to_numpy(zero_copy_only=False), np.int64)


def _problems(columns: Sequence[PartitionColumn], parsed: pa.Schema) -> Iterator[str]:
    """Why the parser's columns cannot be those by which the table is partitioned."""
    names = ", ".join(parsed.names) or "none"
    for one in columns:
        if one.column == HOUR:
            if same := [name for name in parsed.names if name.casefold() == HOUR]:
                yield f"hour: the parser has a column {same[0]}; give that another name, or leave out hour"
        elif one.column not in parsed.names:
            yield f"{one.column}: is not a column of the parser, which has: {names}"
        else:
            yield from _wrong_values(one, parsed.field(one.column).type)


def _wrong_values(one: PartitionColumn, kind: pa.DataType) -> Iterator[str]:
    if pa.types.is_boolean(kind):
        if one.values:
            yield f"{one.column}: a boolean column needs no values"
    elif not (pa.types.is_string(kind) or pa.types.is_integer(kind) or pa.types.is_date(kind)):
        yield f"{one.column}: is {kind}; a partition column must be a string, an integer, a boolean or a date"
    elif not one.values:
        yield f"{one.column}: needs values, all that it may have, so that the table's partitions are bounded"
    else:
        for text in one.values:
            try:
                typed(text, kind)
            except ValueError as error:
                yield f"{one.column}: {text!r} is not a value of {kind}: {error}"
