"""The parser of a topic, from its settings."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from tidemark.errors import ConfigError
from tidemark.parsers.base import Parsed, Parser, check_event_type
from tidemark.parsers.settings import (
    AvroParser,
    BytesParser,
    FunctionParser,
    JsonParser,
    ParserSettings,
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


def parser_of(settings: ParserSettings, topic: str) -> Parser:
    """The parser of ``settings``; a library is loaded only for the kind that needs it.

    Raises:
        ConfigError: a schema cannot become columns of a table, or a function cannot be imported; names ``topic``.
    """
    try:
        parser = _made(settings)
        if not isinstance(settings, BytesParser):
            check_names(parser.columns.names)
            check_event_type(parser.columns, settings.event_time)
    except ValueError as error:
        raise ConfigError(f"topic {topic}", [(f"parser.{settings.kind}", str(error))]) from error
    return parser


def _made(settings: ParserSettings) -> Parser:
    followed = followed_by(settings)
    if followed is not None:
        rule = "was adopted yet: a run of ingest.py asks the registry"
        raise ValueError(f"schema: no schema of the subject {followed.subject} {rule}")
    if isinstance(settings, BytesParser):
        return NoColumns()
    if isinstance(settings, JsonParser):
        from tidemark.parsers.json.batch import JsonColumns

        return JsonColumns(settings)
    if isinstance(settings, AvroParser):
        from tidemark.parsers.avro.parser import AvroColumns

        return AvroColumns(settings)
    if isinstance(settings, FunctionParser):
        from tidemark.parsers.function import FunctionColumns

        return FunctionColumns(settings)
    from tidemark.parsers.protobuf.parser import ProtobufColumns

    return ProtobufColumns(settings)
