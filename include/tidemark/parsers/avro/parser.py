"""Avro: records from the schema that wrote them into the table's, by a compiled loop or else by an interpreter.

Rows are grouped by the schema that wrote them. ``resolution`` says how each of its records is read, and both follow it.

A field is unknown if the schema that wrote a record has it and the table's has not, by name or alias. Every row of such
a schema counts, even if the field, or the record or the list around it, is null or empty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import islice
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from tidemark.parsers.avro.bounds import UnboundedSchema, check_bounded
from tidemark.parsers.avro.interpreter import reader_of
from tidemark.parsers.avro.program import block_reader
from tidemark.parsers.avro.resolution import ItemsStep, RecordStep, Step, UnionStep, resolved
from tidemark.parsers.avro.schema import Type, parsed, same
from tidemark.parsers.avro.types import Types
from tidemark.parsers.base import Bits, Indices, Parsed
from tidemark.parsers.confluent_framing import HEAD, by_frequency, framed_values, guid_of, numbered, split_frame
from tidemark.parsers.row_parser import ParsedRecord, RefusedRecord, read_rows
from tidemark.parsers.schema_registry import SchemaFiles, SchemaRegistry, Schemas, Unreadable, Written
from tidemark.parsers.settings import AvroParser, SettingsFile
from tidemark.parsers.slots import FEWEST, BlockReader, Group, Unsupported, parse_in_blocks
from tidemark.parsers.unknown_fields import field_name, summed

MAX_IN_VAIN: Final = 4096
MAX_TEXT: Final = 32 << 20
_AT_ONCE: Final = 64

_MOST_FIELDS: Final = 100_000
"""The most fields that are looked at: a type may be declared once and used in many places."""


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
        self._writers = None if schemas is None else AvroWriters(schemas, self._reader)
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

    def _groups(self, named: _Named, writers: AvroWriters) -> list[Group]:
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

    def _counted(self, named: _Named, writers: AvroWriters, landing: Bits) -> dict[str, int]:
        """The number of ``landing`` rows that have each field unknown to the table."""
        counts = []
        for number in named.distinct:
            resolution = self._by_number(number, writers)
            if resolution is not None and resolution.unknown:
                rows = int(landing[named.rows[named.numbers == number]].sum())
                counts.append({name: rows * count for name, count in resolution.unknown.items() if rows})
        return summed(counts)

    def _by_number(self, number: int, writers: AvroWriters) -> _Resolution | None:
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


def parsed_schema(texts: Sequence[str | bytes]) -> Type:
    """The schema in the last of ``texts``; the others declare types that it refers to.

    Raises:
        ValueError: the text is no Avro schema, or the schema's values are not bounded by a record's bytes.
    """
    try:
        found = parsed(texts)
    except UnboundedSchema:
        raise
    except ValueError as error:
        raise ValueError(f"is not a valid Avro schema: {error}") from error
    check_bounded(found)
    return found


class AvroWriters:
    """The schemas that wrote the records of a task: found, judged once each, and bounded in number and size.

    ``reader`` is the table's schema, parsed. A record may name any of 2^32 numbers, so a task has a budget: it looks up
    MAX_IN_VAIN numbers without a readable schema, and reads MAX_TEXT characters of schemas. Beyond either, a number
    that it has not looked up yet refuses its records with that reason. The numbers that most records of a batch name
    come first, then lower ones, so the numbers of producers precede those of noise. A replay of the quarantine has a
    budget of its own.
    """

    def __init__(self, schemas: Schemas, reader: Type) -> None:
        self._schemas = schemas
        self._reader = reader
        self._known: dict[int, Type] = {}
        self._in_vain: dict[int, str] = {}
        self._text = 0

    def learn(self, numbers: Sequence[int]) -> None:
        """Look up the new ones of ``numbers``. Raises the errors of ``schema_registry.Schemas.find``."""
        new = [number for number in numbers if number not in self._known and number not in self._in_vain]
        while new and self._exhausted is None:
            group, new = new[:_AT_ONCE], new[_AT_ONCE:]
            for number, answer in self._schemas.find(group).items():
                self._add(number, answer)

    def get(self, number: int) -> Type:
        """The schema of a number that was learnt. Raises RefusedRecord."""
        if number in self._known:
            return self._known[number]
        reason = self._in_vain.get(number, f"is not looked up: {self._exhausted}; a replay looks again")
        raise RefusedRecord(f"names schema {guid_of(number) or number}, which {reason}")

    @property
    def _exhausted(self) -> str | None:
        if len(self._in_vain) >= MAX_IN_VAIN:
            return f"the task has looked up {len(self._in_vain)} others without success"
        if self._text >= MAX_TEXT:
            return f"the task has read {self._text} characters of schemas"
        return None

    def _add(self, number: int, answer: Written | Unreadable) -> None:
        if isinstance(answer, Unreadable):
            self._in_vain[number] = answer.reason
            return
        self._text += answer.size
        try:
            found = parsed_schema(answer.texts)
        except ValueError as error:
            self._in_vain[number] = str(error)
        else:
            self._known[number] = self._reader if same(found, self._reader) else found


def unknown_fields(step: Step) -> dict[str, int]:
    """Each field that the records have and the table does not take, counted as for one row.

    All branches of a writer's union count.
    """
    return summed({field_name(*path): 1} for path in set(islice(_unknown_paths(step), _MOST_FIELDS)))


def _unknown_paths(step: Step, *path: str) -> Iterator[tuple[str, ...]]:
    if isinstance(step, UnionStep):
        for branch in step.branches:
            yield from _unknown_paths(branch, *path)
    elif isinstance(step, ItemsStep):
        yield from _unknown_paths(step.item, *path, *(("value",) if step.keys else ()))
    elif isinstance(step, RecordStep):
        for field in step.fields:
            if field.place >= 0:
                yield from _unknown_paths(field.step, *path, step.names[field.place])
            else:
                yield (*path, field.name)
