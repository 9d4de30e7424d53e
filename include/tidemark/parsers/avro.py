"""Avro: each record by fastavro, from the schema that wrote it into the table's."""

from __future__ import annotations

import io
import json
from typing import Any, Final

import fastavro
import pyarrow as pa

from tidemark.parsers.avro_bounds import UnboundedSchema, check_levels
from tidemark.parsers.avro_types import Types, table_type
from tidemark.parsers.avro_writers import Writers, WriterSchema, parsed_schema
from tidemark.parsers.base import Parsed
from tidemark.parsers.confluent_framing import schema_numbers, split_frame
from tidemark.parsers.row_parser import RefusedRecord, parse_by_row
from tidemark.parsers.schema_registry import SchemaFiles, SchemaRegistry, Schemas
from tidemark.parsers.settings import AvroParser, SettingsFile

_UNREADABLE: Final = (
    *(EOFError, ValueError, TypeError, LookupError, ArithmeticError, RecursionError),
    fastavro.read.SchemaResolutionError,
)
"""What fastavro raises for bytes that the schema cannot have written, and for schemas that do not go together."""


class AvroColumns:
    """The parser of kind ``avro``."""

    version: Final = "avro/1"

    def __init__(self, settings: AvroParser) -> None:
        self._settings = settings
        fields, self._reader = _table(settings.schema_file)
        self._raw: pa.Schema = pa.schema(fields)
        self.columns: pa.Schema = pa.schema([pa.field(one.name, table_type(one.type)) for one in fields])
        schemas = _schemas(settings)
        self._writers = None if schemas is None else Writers(schemas, self._reader)

    def parse(self, rows: pa.RecordBatch) -> Parsed:
        """Decode each value by the schema that wrote it; one that this cannot read is refused with the reason."""
        values = rows.column(f"kafka_{self._settings.columns_from}")
        if self._writers is not None:
            self._writers.learn(schema_numbers(values))
        return parse_by_row(values, self._read, self._raw, self.columns, self._settings.event_time)

    def _read(self, value: bytes) -> dict[str, Any]:
        (writer, blind), data = WriterSchema(self._reader), value
        if self._writers is not None:
            number, data = split_frame(value)
            writer, blind = self._writers.get(number)
        source = io.BytesIO(data)
        try:
            if blind:
                fastavro.schemaless_reader(io.BytesIO(data), writer, None)
            found = fastavro.schemaless_reader(source, writer, None if writer is self._reader else self._reader)
        except _UNREADABLE as error:
            raise RefusedRecord(f"does not match its Avro schema: {_told(error)}") from error
        if not isinstance(found, dict):
            raise RefusedRecord("its Avro schema is not that of a record")
        left = len(data) - source.tell()
        if left:
            raise RefusedRecord(f"has {left} more bytes than its Avro schema says")
        return found


def _told(error: Exception) -> str:
    """Why fastavro does not read a record, always in the same words: files with reasons are compared byte by byte."""
    return "ends too early" if isinstance(error, EOFError) else f"{type(error).__name__} {error}"


def _table(content: SettingsFile) -> tuple[list[pa.Field[Any]], Any]:
    """The table's schema as the fields of a record and as fastavro reads into it. Raises ValueError."""
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
