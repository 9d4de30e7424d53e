"""The parsers of the tables that readers are asked about. A record's value is its row's number.

A value that begins with ``n`` has only what fits the narrower types.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import pyarrow as pa

from tests.readers.truth import COLUMNS, FOLDERS, NARROW, Column, value_of
from tidemark.parsers.settings import column_type
from tidemark.parsers.type_conversion import arrow_type

SETS: Final[Mapping[str, Mapping[str, Column]]] = {
    "usual": COLUMNS,
    "few": {name: column for place, (name, column) in enumerate(COLUMNS.items()) if place % 2},
    "narrow": {name: NARROW.get(name, column) for name, column in COLUMNS.items()},
    "folders": {**FOLDERS, "i64": COLUMNS["i64"], "text": COLUMNS["text"]},
}
"""The columns of each parser."""


def row_of(value: bytes, columns: Mapping[str, Column]) -> dict[str, Any]:
    """The values of a row in ``columns``."""
    narrow, number = value.startswith(b"n"), int(value.removeprefix(b"n"))
    return {
        name: value_of(NARROW.get(name, column) if narrow else column, name, number) for name, column in columns.items()
    }


def _parsed(columns: Mapping[str, Column], rows: pa.RecordBatch) -> pa.RecordBatch:
    values: list[Any] = rows.column("kafka_value").to_pylist()
    found = [row_of(value, columns) for value in values]
    schema = pa.schema([(name, arrow_type(column_type(column.type))) for name, column in columns.items()])
    return pa.RecordBatch.from_pylist(found, schema)


usual, few, narrow, folders = (partial(_parsed, columns) for columns in SETS.values())


def settings(name: str) -> str:
    """The lines of a topic for the parser ``name``."""
    columns = ", ".join(f"{{name: {column}, type: '{one.type}'}}" for column, one in SETS[name].items())
    return f"parser: {{kind: function, function: 'tests.readers.parsing:{name}', columns: [{columns}]}}"
