"""Avro: records from the schema that wrote them into the table's, by a compiled loop or else by fastavro.

Rows are grouped by the schema that wrote them. ``avro_program`` decides if the loop can read a schema.

A field is unknown if the schema that wrote a record has it and the table's has not, by name or alias. Every row of such
a schema counts, even if the field, or the record or the list around it, is null or empty.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

import fastavro
import numpy as np
import pyarrow as pa

from tidemark.parsers.avro.bounds import UnboundedSchema, check_levels
from tidemark.parsers.avro.misfits import fitting
from tidemark.parsers.avro.program import block_reader
from tidemark.parsers.avro.types import Types, table_type
from tidemark.parsers.avro.unknown import unknown_fields
from tidemark.parsers.avro.writers import Writers, WriterSchema, parsed_schema
from tidemark.parsers.base import Bits, Indices, Parsed
from tidemark.parsers.block_parser import FEWEST, Group, parse_in_blocks
from tidemark.parsers.confluent_framing import HEAD, by_frequency, framed_values, numbered, split_frame
from tidemark.parsers.row_parser import ParsedRecord, RefusedRecord, read_rows
from tidemark.parsers.schema_registry import SchemaFiles, SchemaRegistry, Schemas
from tidemark.parsers.settings import AvroParser, SettingsFile
from tidemark.parsers.slots import BlockReader, Unsupported
from tidemark.parsers.unknown_fields import summed

_UNREADABLE: Final = (
    *(EOFError, ValueError, TypeError, LookupError, ArithmeticError, RecursionError),
    fastavro.read.SchemaResolutionError,
)
"""Errors of fastavro for bytes that the schema cannot have written, and for schemas that do not match each other."""


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
        fields, self._reader = _table(settings.schema_file)
        self._raw: pa.Schema = pa.schema(fields)
        self.columns: pa.Schema = pa.schema([pa.field(field.name, table_type(field.type)) for field in fields])
        schemas = _schemas(settings)
        self._writers = None if schemas is None else Writers(schemas, self._reader)
        self._loop = self._loop_by(self._reader)
        self._loops: dict[int, BlockReader | None] = {}
        self._unknown: dict[int, Mapping[str, int]] = {}
        self._fitting: dict[int, Any] = {}

    def parse(self, rows: pa.RecordBatch) -> Parsed:
        """Decode each value with the schema that wrote it; a value that cannot be read is refused with the reason."""
        return self.parse_by(rows, vectorised=True)

    def parse_by(self, rows: pa.RecordBatch, *, vectorised: bool) -> Parsed:
        """Decode like :meth:`parse`, in blocks if that is possible, or row by row."""
        values = rows.column(f"kafka_{self._settings.columns_from}")
        if self._writers is None:
            groups = [] if self._loop is None else [Group(self._loop, np.arange(len(values)), 0)]
            return self._parsed(values, groups if vectorised else [])
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
            lambda left: read_rows(left, self._read, self._raw, self.columns),
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
            loop = self._loop_of(number, writers)
            if loop is not None:
                groups.append(Group(loop, rows, HEAD))
        return groups

    def _counted(self, named: _Named, writers: Writers, landing: Bits) -> dict[str, int]:
        """The number of ``landing`` rows that have each field unknown to the table."""
        counts = []
        for number in named.distinct:
            if fields := self._unknown_of(number, writers):
                rows = int(landing[named.rows[named.numbers == number]].sum())
                counts.append({name: rows * count for name, count in fields.items() if rows})
        return summed(counts)

    def _unknown_of(self, number: int, writers: Writers) -> Mapping[str, int]:
        """The fields of this schema that the table lacks; none if its records are refused."""
        if number not in self._unknown:
            try:
                writer = writers.get(number).parsed
            except RefusedRecord:
                return {}
            reader = self._reader_of(number, writer)
            self._unknown[number] = {} if writer is self._reader else unknown_fields(writer, reader)
        return self._unknown[number]

    def _loop_of(self, number: int, writers: Writers) -> BlockReader | None:
        """The loop for this schema; None if its records are refused, or for fastavro."""
        if number not in self._loops:
            try:
                writer = writers.get(number).parsed
            except RefusedRecord:
                return None
            self._loops[number] = self._loop if writer is self._reader else self._loop_by(writer)
            if self._reader_of(number, writer) is not self._reader:
                self._loops[number] = None
        return self._loops[number]

    def _reader_of(self, number: int, writer: Any) -> Any:
        """The table's schema; without the fields that ``writer`` does not fit, if misfits land."""
        if self._settings.misfits == "quarantine" or writer is self._reader:
            return self._reader
        if number not in self._fitting:
            self._fitting[number] = fitting(writer, self._reader)
        return self._fitting[number]

    def _loop_by(self, writer: Any) -> BlockReader | None:
        try:
            return block_reader(writer, self._reader, list(self._raw))
        except Unsupported:
            return None

    def _read(self, value: bytes) -> ParsedRecord:
        (writer, blind), data, reader = WriterSchema(self._reader), value, self._reader
        if self._writers is not None:
            number, data = split_frame(value)
            writer, blind = self._writers.get(number)
            reader = self._reader_of(number, writer)
        source = io.BytesIO(data)
        try:
            if blind:
                fastavro.schemaless_reader(source, writer, None)
                source.seek(0)
            fields = fastavro.schemaless_reader(source, writer, None if writer is reader else reader)
        except _UNREADABLE as error:
            raise RefusedRecord(f"does not match its Avro schema: {_broken_rule(error, source)}") from error
        if not isinstance(fields, dict):
            raise RefusedRecord("its Avro schema is not that of a record")
        left = len(data) - source.tell()
        if left:
            raise RefusedRecord(f"has {left} more bytes than its Avro schema says")
        return ParsedRecord(fields)


def _landing(values: pa.Array[Any], refused: Mapping[int, str]) -> Bits:
    """A mask of the ``values`` that are neither null nor refused."""
    landing = np.asarray(values.is_valid().to_numpy(zero_copy_only=False), np.bool_).copy()
    landing[list(refused)] = False
    return landing


def _broken_rule(error: Exception, source: io.BytesIO) -> str:
    """The reason why fastavro cannot read a record, in fixed words: files with reasons are compared byte by byte.

    fastavro looks up the number of a union's branch or of an enum's symbol in a list, and the next byte of a number
    that ends too early as well. Each byte of a number but its last one has the highest bit.
    """
    data = source.getvalue()
    if isinstance(error, IndexError) and data and not (data[-1] & 0x80 and not source.read(1)):
        return "names a branch of a union, or a symbol of an enum, that the schema does not have"
    if isinstance(error, EOFError | IndexError):
        return "ends too early"
    if isinstance(error, UnicodeDecodeError):
        return "has a string that is not valid UTF-8"
    if isinstance(error, RecursionError):
        return "is nested too deeply"
    return f"fastavro says: {error}"


def _table(content: SettingsFile) -> tuple[list[pa.Field[Any]], Any]:
    """The table's schema as the fields of a record, and as fastavro parses it. Raises ValueError."""
    try:
        check_levels(content.data)
        fields = Types().record(json.loads(content.data))
        return fields, parsed_schema([content.data]).parsed
    except UnboundedSchema as error:
        raise ValueError(f"schema: {content.path}: {error}") from error
    except (LookupError, TypeError) as error:
        problem = f"is not a valid Avro schema: {type(error).__name__} {error}"
        raise ValueError(f"schema: {content.path}: {problem}") from error


def _schemas(settings: AvroParser) -> Schemas | None:
    if settings.registry:
        return SchemaRegistry(settings.registry)
    return SchemaFiles(settings.schemas) if settings.schemas else None
