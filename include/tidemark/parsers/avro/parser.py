"""Avro: records from the schema that wrote them into the table's, by a compiled loop or else by an interpreter.

Rows are grouped by the schema that wrote them. ``resolution`` says how each of its records is read, and both follow it.

A field is unknown if the schema that wrote a record has it and the table's has not, by name or alias. Every row of such
a schema counts, even if the field, or the record or the list around it, is null or empty.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from tidemark.parsers.avro.bounds import check_bounded
from tidemark.parsers.avro.interpreter import reader_of
from tidemark.parsers.avro.program import block_reader
from tidemark.parsers.avro.resolution import Step, resolved
from tidemark.parsers.avro.schema import Type, parsed
from tidemark.parsers.avro.types import Types
from tidemark.parsers.avro.unknown import unknown_fields
from tidemark.parsers.avro.writers import Writers
from tidemark.parsers.base import Bits, Indices, Parsed
from tidemark.parsers.block_parser import FEWEST, Group, parse_in_blocks
from tidemark.parsers.confluent_framing import HEAD, by_frequency, framed_values, numbered, split_frame
from tidemark.parsers.row_parser import ParsedRecord, RefusedRecord, read_rows
from tidemark.parsers.schema_registry import SchemaFiles, SchemaRegistry, Schemas
from tidemark.parsers.settings import AvroParser, SettingsFile
from tidemark.parsers.slots import BlockReader, Unsupported
from tidemark.parsers.unknown_fields import summed


class _Resolution:
    """The ways to read records of one schema, made when they are needed."""

    def __init__(self, step: Step, fields: list[pa.Field[Any]]) -> None:
        self._step, self._fields = step, fields

    @cached_property
    def loop(self) -> BlockReader | None:
        """The loop; None if the interpreter must read the records."""
        try:
            return block_reader(self._step, self._fields)
        except Unsupported:
            return None

    @cached_property
    def read(self) -> Callable[[bytes], dict[str, Any]]:
        """See :func:`tidemark.parsers.avro.interpreter.reader_of`."""
        return reader_of(self._step)

    @cached_property
    def unknown(self) -> Mapping[str, int]:
        """The fields that the table lacks."""
        return unknown_fields(self._step)


class _Named(NamedTuple):
    """The rows that name a schema, the numbers that they name, and each number once, the most frequent first."""

    rows: Indices
    numbers: Indices
    distinct: list[int]


class AvroColumns:
    """The parser of kind ``avro``."""

    version: Final = "avro/1"

    def __init__(self, settings: AvroParser) -> None:
        self._settings = settings
        assert isinstance(settings.schema_file, SettingsFile), "a schema that is followed was adopted"
        self._reader, self._fields = _table(settings.schema_file)
        self.columns: pa.Schema = pa.schema(self._fields)
        schemas = _schemas(settings)
        self._writers = None if schemas is None else Writers(schemas, self._reader)
        self._own = self._resolution(self._reader)
        self._resolutions: dict[int, _Resolution] = {}

    def parse(self, rows: pa.RecordBatch) -> Parsed:
        """Decode each value with the schema that wrote it; a value that cannot be read is refused with the reason."""
        return self.parse_by(rows, vectorised=True)

    def parse_by(self, rows: pa.RecordBatch, *, vectorised: bool) -> Parsed:
        """Decode like :meth:`parse`, in blocks if that is possible, or row by row."""
        values = rows.column(f"kafka_{self._settings.columns_from}")
        if self._writers is None:
            loop = self._own.loop if vectorised else None
            return self._parsed(values, [] if loop is None else [Group(loop, np.arange(len(values)), 0)])
        values = framed_values(rows, self._settings.columns_from)
        framed, numbers = numbered(values)
        named = _Named(framed, numbers, by_frequency(numbers))
        self._writers.learn(named.distinct)
        parsed = self._parsed(values, self._groups(named, self._writers) if vectorised else [])
        return replace(parsed, unknown=self._counted(named, self._writers, _landing(values, parsed.refused)))

    def _parsed(self, values: pa.Array[Any], groups: list[Group]) -> Parsed:
        return parse_in_blocks(
            values,
            groups,
            lambda left: read_rows(left, self._read, self.columns, self.columns),
            self.columns,
            self._settings.event_time,
        )

    def _groups(self, named: _Named, writers: Writers) -> list[Group]:
        """The rows of each schema that a loop can read."""
        groups: list[Group] = []
        for number in named.distinct:
            rows = named.rows[named.numbers == number]
            if len(rows) < FEWEST:
                break  # the next numbers are less frequent
            resolution = self._by_number(number, writers)
            if resolution is not None and resolution.loop is not None:
                groups.append(Group(resolution.loop, rows, HEAD))
        return groups

    def _counted(self, named: _Named, writers: Writers, landing: Bits) -> dict[str, int]:
        """The number of ``landing`` rows that have each field unknown to the table."""
        counts = []
        for number in named.distinct:
            resolution = self._by_number(number, writers)
            if resolution is not None and resolution.unknown:
                rows = int(landing[named.rows[named.numbers == number]].sum())
                counts.append({name: rows * count for name, count in resolution.unknown.items() if rows})
        return summed(counts)

    def _by_number(self, number: int, writers: Writers) -> _Resolution | None:
        """How records of this schema are read; None if they are refused."""
        if number not in self._resolutions:
            try:
                writer = writers.get(number)
            except RefusedRecord:
                return None
            self._resolutions[number] = self._own if writer is self._reader else self._resolution(writer)
        return self._resolutions[number]

    def _resolution(self, writer: Type) -> _Resolution:
        return _Resolution(resolved(writer, self._reader, land=self._settings.misfits == "land"), self._fields)

    def _read(self, value: bytes) -> ParsedRecord:
        if self._writers is None:
            return ParsedRecord(self._own.read(value))
        number, data = split_frame(value)
        resolution = self._by_number(number, self._writers)
        if resolution is None:
            self._writers.get(number)
        assert resolution is not None, "its schema was found"
        return ParsedRecord(resolution.read(data))


def _landing(values: pa.Array[Any], refused: Mapping[int, str]) -> Bits:
    """A mask of the ``values`` that are neither null nor refused."""
    landing = np.asarray(values.is_valid().to_numpy(zero_copy_only=False), np.bool_).copy()
    landing[list(refused)] = False
    return landing


def _table(content: SettingsFile) -> tuple[Type, list[pa.Field[Any]]]:
    """The table's schema, and its columns. Raises ValueError."""
    schema = parsed([content.data])
    fields = Types().record(schema)
    check_bounded(schema)
    return schema, fields


def _schemas(settings: AvroParser) -> Schemas | None:
    if settings.registry:
        return SchemaRegistry(settings.registry)
    return SchemaFiles(settings.schemas) if settings.schemas else None
