"""The columns by which a table is partitioned beside ``dt``, as the rows of a run have them.

A column's values are listed in the settings, see :mod:`tidemark.formats.partitioning`. A row with another value is
refused like one that does not fit its column's type; with ``misfits: land`` its column is null, and counted by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.decode.schema import array
from tidemark.errors import ConfigError
from tidemark.formats.partitioning import HOUR, Folder, PartitionColumn, folder_name
from tidemark.parsers.base import Indices, Parsed, Parser, shortened, without
from tidemark.parsers.factory import parser_of
from tidemark.parsers.settings import BytesParser, FunctionParser, JsonParser, ParserSettings
from tidemark.topics import TopicSettings

HOUR_COLUMN: Final = pa.field(HOUR, pa.int32())

_MILLISECONDS: Final = 3_600_000
_HOURS: Final = 24


def topic_parser(topic: TopicSettings) -> Parser:
    """The parser of ``topic``, which refuses rows that have no partition.

    Raises:
        ConfigError: the parser cannot be made, or its columns cannot be those of ``partition_by``.
    """
    where = f"{topic.cluster}/{topic.topic}"
    parser = parser_of(topic.parser, where)
    if problems := list(_problems(topic.partition_by[1:], parser.columns)):
        raise ConfigError(f"topic {where}", [("partition_by", one) for one in problems])
    listed = [one for one in topic.partition_by if one.values]
    return _Bounded(parser, topic.parser, listed) if listed else parser


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


class RowPartitions:
    """Sorts rows into the partitions of a date, by ``columns`` without ``dt``."""

    def __init__(self, columns: Sequence[PartitionColumn], parsed: pa.Schema) -> None:
        self._columns = columns
        self._values = _value_sets(columns, parsed)
        self._paths: dict[int, str] = {}

    @property
    def has_hour(self) -> bool:
        """Whether the table has the column ``hour``."""
        return any(one.column == HOUR for one in self._columns)

    def sorted(
        self, by_date: Iterable[tuple[Folder, Indices]], hours: Indices, parsed: pa.RecordBatch
    ) -> list[tuple[Folder, Indices]]:
        """Rows ``by_date``, each date's by its partitions; ``hours`` and ``parsed`` are those of all rows."""
        numbers, found = self._numbers(hours, parsed), []
        for folder, rows in by_date:
            order = np.argsort(numbers[rows], kind="stable")
            ordered, chosen = numbers[rows][order], rows[order]
            cuts = [0, *(np.flatnonzero(np.diff(ordered)) + 1).tolist(), len(rows)]
            for start, end in pairwise(cuts):
                found.append((folder._replace(below=self._path(int(ordered[start]))), chosen[start:end]))
        return found

    def _numbers(self, hours: Indices, parsed: pa.RecordBatch) -> Indices:
        """The number of each row's partition."""
        numbers = np.zeros(len(hours), np.int64)
        for one in self._columns:
            known = len(one.texts)
            found = hours if one.column == HOUR else _places(parsed, one.column, self._values)
            numbers = numbers * (known + 1) + np.where(found < 0, known, found)
        return numbers

    def _path(self, number: int) -> str:
        """The folders of a partition, below that of its date."""
        if number not in self._paths:
            names, left = [], number
            for one in reversed(self._columns):
                left, place = divmod(left, len(one.texts) + 1)
                names.append(folder_name(one.column, one.texts[place] if place < len(one.texts) else None))
            self._paths[number] = "/".join(reversed(names))
        return self._paths[number]


def hours_of(local: Indices) -> Indices:
    """The hour of each local time, in milliseconds since 1970."""
    return local // _MILLISECONDS % _HOURS


def hour_column(hours: Indices) -> pa.Array[Any]:
    """The column ``hour``."""
    return array(pa.int32(), hours.astype(np.int32))


class _Bounded:
    """``parser``, whose ``columns`` have no other values than those that are listed."""

    def __init__(self, parser: Parser, settings: ParserSettings, columns: Sequence[PartitionColumn]) -> None:
        self._parser, self._settings = parser, settings
        self._values = _value_sets(columns, parser.columns)
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
            unlisted = np.asarray(valid, np.bool_) & (_places(found.columns, name, self._values) < 0)
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


def _value_sets(columns: Iterable[PartitionColumn], parsed: pa.Schema) -> dict[str, pa.Array[Any]]:
    """The values of each of the parser's columns among ``columns``."""
    return {one.column: values_of(one.texts, parsed.field(one.column).type) for one in columns if one.column != HOUR}


def _places(rows: pa.RecordBatch, name: str, values: Mapping[str, pa.Array[Any]]) -> Indices:
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
