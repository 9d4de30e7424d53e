"""The columns of a topic's table by its settings, and their comparison with those of an existing table."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from tidemark.decode.schema import SCHEMA
from tidemark.errors import ConfigError
from tidemark.formats.table.base_columns import IDENTITY, PREFIX
from tidemark.formats.table.partitioning import HOUR, names_of
from tidemark.parsers.base import Parser
from tidemark.parsers.partition_columns import partitioned_parser
from tidemark.table.delta_table import TopicTable
from tidemark.topics import TopicSettings

if TYPE_CHECKING:  # workers make no table, and need no delta-rs
    from deltalake import DeltaTable, Field, Schema

DT: Final = pa.field("dt", pa.date32())
HOUR_COLUMN: Final = pa.field(HOUR, pa.int32())

_WIDER: Final = (("byte", "short", "integer", "long"), ("float", "double"))
_DECIMAL: Final = re.compile(r"decimal\((\d+),(\d+)\)")

_ONLY: Final = "columns are added, or made wider; anything else needs a table of another name"
_WIDEN: Final = "it is made wider when all dates are rebuilt: rebuild.py --all"


def table_schema(topic: TopicSettings, parser: Parser | None = None) -> pa.Schema:
    """Columns of a data file: Kafka's columns that the topic keeps, the parser's, and ``hour``. The writer adds ``dt``.

    Raises:
        ConfigError: the topic's parser cannot be made, or its layout or partitioning does not fit its columns.
    """
    names = {*IDENTITY, *(f"{PREFIX}{column}" for column in topic.keep)}
    where = f"{topic.cluster}/{topic.topic}"
    parser = parser or partitioned_parser(topic.parser, topic.partition_by, where)
    hour = [HOUR_COLUMN] if HOUR in names_of(topic.partition_by) else []
    schema = pa.schema([*(field for field in SCHEMA if field.name in names), *parser.columns, *hour])
    flat = [field.name for field in schema if not pa.types.is_nested(field.type)]
    rule = f"is not a column of the table with one value in a row: these are {', '.join(flat)}"
    problems = [(f"parquet.{name}", f"{column} {rule}") for name, column in topic.parquet.unknown(flat)]
    types = {field.name: str(field.type) for field in schema}
    problems += [(f"parquet.{name}", problem) for name, problem in topic.parquet.unsuited(types)]
    if problems:
        raise ConfigError(where, problems)
    return schema


def delta_schema(table: TopicTable) -> pa.Schema:
    """Columns of the table: the files' columns and ``dt``, all nullable, so that columns can be added later."""
    fields = [field.with_nullable(True) for field in table_schema(table.topic)]
    return pa.schema([*fields, DT])


def check_columns(table: TopicTable, delta: DeltaTable, *, whole: bool = False) -> list[Field]:
    """The parser's columns that ``table`` lacks and that can be added.

    Raises:
        ConfigError: the topic partitions the table in another way, or keeps a Kafka column that the table lacks, or a
        parser's column has another type or is missing. The type may be a wider one if the ``whole`` table is rebuilt.
    """
    from deltalake import Schema

    _check_partitioning(table, delta)
    wanted = {field.name: field for field in Schema.from_arrow(delta_schema(table)).fields}
    existing = {field.name: field for field in delta.schema().fields}
    missing = [field for name, field in wanted.items() if name not in existing]
    kafka = sorted(field.name for field in missing if field.name.startswith(PREFIX))
    problems = []
    if kafka:
        rule = f"the table was made without {', '.join(kafka)}; leave it out, or name another table"
        problems.append(("keep", rule))
    for name, field in existing.items():
        if name not in wanted and not name.startswith(PREFIX):
            problems.append(("parser", f"the table has a column {name}, but the parser does not: {_ONLY}"))
        elif name in wanted and wanted[name].type != field.type:
            wider = is_wider(_type(field), _type(wanted[name]))
            if not (wider and whole):
                change = f"column {name} is {_type(field)} in the table, and {_type(wanted[name])} by the parser"
                problems.append(("parser", f"{change}: {_WIDEN if wider else _ONLY}"))
    folded = {name.casefold(): name for name in existing}
    problems += [
        (
            "parser",
            f"column {field.name}: the table has {folded[field.name.casefold()]}, which engines do not tell apart",
        )
        for field in missing
        if field.name.casefold() in folded
    ]
    if problems:
        raise ConfigError(f"topic {table.topic.cluster}/{table.topic.topic}", problems)
    return missing


def _check_partitioning(table: TopicTable, delta: DeltaTable) -> None:
    wanted, existing = names_of(table.topic.partition_by), delta.metadata().partition_columns
    if wanted != existing:
        rule = (
            f"the table is partitioned by {', '.join(existing)}, and not by {', '.join(wanted)}: a table that has "
            f"files cannot be partitioned in another way. Write [{', '.join(existing)}] again, or give the topic "
            "another table (or lake), which is made from all that raw still has"
        )
        raise ConfigError(f"topic {table.topic.cluster}/{table.topic.topic}", [("partition_by", rule)])


def widened(table: TopicTable, delta: DeltaTable) -> Schema | None:
    """Schema of ``table`` with the parser's current column types, or None when the table has them already."""
    from deltalake import Schema

    wanted = {field.name: field for field in Schema.from_arrow(delta_schema(table)).fields}
    existing = delta.schema().fields
    fields = [wanted.get(field.name, field) for field in existing]
    return Schema(fields) if [field.type for field in fields] != [field.type for field in existing] else None


def schema_change(table: TopicTable, delta: DeltaTable) -> list[str]:
    """Descriptions of the allowed changes to the columns of ``table``: new columns and wider types."""
    from deltalake import Schema

    existing = {field.name: field for field in delta.schema().fields}
    wanted = Schema.from_arrow(delta_schema(table)).fields
    changes = [f"{field.name}: {_type(field)}, new" for field in wanted if field.name not in existing]
    wider = (field for field in wanted if field.name in existing and existing[field.name].type != field.type)
    return changes + [f"{field.name}: {_type(existing[field.name])} becomes {_type(field)}" for field in wider]


def is_wider(before: Any, after: Any) -> bool:
    """True if the column type ``after`` holds each value of ``before``: the same, a longer number, or a list or struct.

    A struct may have more fields, behind the others.

    Types are those of Delta's schema in JSON (https://github.com/delta-io/delta, PROTOCOL.md, Schema Serialization
    Format).
    """
    if before == after:
        return True
    if isinstance(before, dict) and isinstance(after, dict) and before["type"] == after["type"]:
        if before["type"] == "array":
            return is_wider(before["elementType"], after["elementType"])
        if before["type"] == "struct":
            return _are_wider(before["fields"], after["fields"])
    if not (isinstance(before, str) and isinstance(after, str)):
        return False
    if any(before in row and after in row and row.index(before) < row.index(after) for row in _WIDER):
        return True
    old, new = _DECIMAL.fullmatch(before), _DECIMAL.fullmatch(after)
    if old is None or new is None:
        return False
    digits, scale = int(new[1]), int(new[2])
    return scale >= int(old[2]) and digits - scale >= int(old[1]) - int(old[2])


def _are_wider(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> bool:
    same = [field["name"] for field in before] == [field["name"] for field in after[: len(before)]]
    return same and all(is_wider(field["type"], other["type"]) for field, other in zip(before, after, strict=False))


def _type(field: Field) -> Any:
    return json.loads(field.to_json())["type"]
