"""The parser of a topic, from its settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa

from tidemark.errors import ConfigError
from tidemark.parsers.base import Parsed, Parser, check_event_type
from tidemark.parsers.column_names import check_columns, check_struct_names
from tidemark.parsers.settings import (
    AvroParser,
    BytesParser,
    FunctionParser,
    JsonParser,
    ParserSettings,
    ProtobufParser,
    check_names,
    followed_by,
)


class NoColumns:
    """The parser of kind ``bytes``: keys, values and headers stay as they are."""

    version: Final = "bytes/1"
    columns: Final = pa.schema([])

    def parse(self, rows: pa.RecordBatch) -> Parsed:
        """See :class:`tidemark.parsers.base.Parser`; no row is ever refused."""
        return Parsed(rows.select([]))


def _json(settings: JsonParser) -> Parser:
    from tidemark.parsers.json.batch import JsonColumns

    return JsonColumns(settings)


def _avro(settings: AvroParser) -> Parser:
    from tidemark.parsers.avro.parser import AvroColumns

    return AvroColumns(settings)


def _protobuf(settings: ProtobufParser) -> Parser:
    from tidemark.parsers.protobuf.parser import ProtobufColumns

    return ProtobufColumns(settings)


def _function(settings: FunctionParser) -> Parser:
    from tidemark.parsers.function import FunctionColumns

    return FunctionColumns(settings)


PARSERS: Final[dict[str, Callable[[Any], Parser]]] = {
    "bytes": lambda _settings: NoColumns(),
    "json": _json,
    "avro": _avro,
    "protobuf": _protobuf,
    "function": _function,
}
"""Functions that make a parser from its settings, by the kind of :data:`tidemark.parsers.settings.ParserSettings`."""


def parser_of(settings: ParserSettings, topic: str) -> Parser:
    """The parser of ``settings``; a library is loaded only for the kind that needs it.

    Raises:
        ConfigError: a schema cannot become columns of a table, or a function cannot be imported; names ``topic``.
    """
    name, followed = f"topic {topic}", followed_by(settings)
    if followed is not None:
        rule = (
            f"schema: no schema of the subject {followed.subject} was adopted yet: a run of ingest.py asks the registry"
        )
        raise ConfigError(name, [(f"parser.{settings.kind}", rule)])
    try:
        parser = PARSERS[settings.kind](settings)
        if not isinstance(settings, BytesParser):
            check_names(parser.columns.names)
            for column in parser.columns:
                check_struct_names(column.type, column.name)
            check_columns(parser.columns)
            check_event_type(parser.columns, settings.event_time)
    except ValueError as error:
        raise ConfigError(name, [(f"parser.{settings.kind}", str(error))]) from error
    return parser
