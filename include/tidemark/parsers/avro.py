"""Avro: each record by fastavro, from the schema that wrote it into the table's."""

from __future__ import annotations

import io
import json
from typing import Any, Final

import fastavro
import pyarrow as pa
from fastavro.schema import SchemaParseException

from tidemark.parsers.avro_types import Types, table_type, without_times
from tidemark.parsers.base import Parsed
from tidemark.parsers.by_row import RefusedRecord, parse_by_row
from tidemark.parsers.framing import split_frame
from tidemark.parsers.registry import SchemaFiles, SchemaRegistry, Schemas
from tidemark.parsers.settings import AvroParser

_UNREADABLE: Final = (
    *(EOFError, ValueError, TypeError, LookupError, ArithmeticError, RecursionError),
    *(fastavro.read.SchemaResolutionError, SchemaParseException),
)
"""What fastavro raises for bytes that the schema cannot have written, and for schemas that do not go together."""


class AvroColumns:
    """The parser of kind ``avro``."""

    version: Final = "avro/1"

    def __init__(self, settings: AvroParser) -> None:
        self._settings = settings
        document = json.loads(settings.schema_file.data)
        fields = Types().record(document)
        self._raw: pa.Schema = pa.schema(fields)
        self.columns: pa.Schema = pa.schema([pa.field(one.name, table_type(one.type)) for one in fields])
        try:
            self._reader: Any = fastavro.parse_schema(without_times(document))
        except (SchemaParseException, LookupError, TypeError) as error:
            raise ValueError(f"schema: {settings.schema_file.path}: {error}") from error
        self._schemas = _schemas(settings)
        self._writers: dict[int, Any] = {}

    def parse(self, rows: pa.RecordBatch) -> Parsed:
        """See :class:`tidemark.parsers.base.Parser`."""
        values = rows.column(f"kafka_{self._settings.columns_from}")
        self._writers = {number: one for number, one in self._writers.items() if one is not None}
        return parse_by_row(values, self._read, self._raw, self.columns, self._settings.event_time)

    def _read(self, value: bytes) -> dict[str, Any]:
        writer, data = self._reader, value
        if self._schemas is not None:
            number, data = split_frame(value)
            writer = self._writer(number, self._schemas)
        source = io.BytesIO(data)
        try:
            found = fastavro.schemaless_reader(source, writer, None if writer is self._reader else self._reader)
        except _UNREADABLE as error:
            raise RefusedRecord(f"is not of its Avro schema: {type(error).__name__} {error}") from error
        if not isinstance(found, dict):
            raise RefusedRecord("its Avro schema is not that of a record")
        left = len(data) - source.tell()
        if left:
            raise RefusedRecord(f"has {left} more bytes than its Avro schema says")
        return found

    def _writer(self, number: int, schemas: Schemas) -> Any:
        if number not in self._writers:
            found = schemas.find(number)
            self._writers[number] = None if found is None else _parsed(found, number)
        if self._writers[number] is None:
            raise RefusedRecord(f"names schema {number}, which is unknown")
        return self._writers[number]


def _parsed(schema: Any, number: int) -> Any:
    try:
        return fastavro.parse_schema(without_times(schema))
    except _UNREADABLE as error:
        raise RefusedRecord(f"names schema {number}, which is no Avro schema: {error}") from error


def _schemas(settings: AvroParser) -> Schemas | None:
    if settings.registry:
        return SchemaRegistry(settings.registry.url)
    return SchemaFiles(settings.schemas) if settings.schemas else None
