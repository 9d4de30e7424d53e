"""The ids of a table's columns, by which Iceberg's readers find them in its files.

``dt`` has 1, and each column gets the next number when it is added to the table, followed by its nested fields. A
catalog numbers columns that are added one after the other in this order. The ledger keeps the ids, since the order of
the columns may change both in the Delta log and in the parser.

Source: https://iceberg.apache.org/spec, Column Projection; https://parquet.apache.org, ``SchemaElement.field_id``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import pyarrow as pa

from tidemark.parsers.column_names import check_columns, paths_of
from tidemark.table.topic_columns import DT

_KEY: Final = b"PARQUET:field_id"


def numbered(known: Mapping[str, int], columns: Iterable[pa.Field[Any]]) -> dict[str, int]:
    """Ids by path: the ``known`` ids, and new ids for ``dt`` and the other ``columns``.

    A path is ``price``, ``tags.element`` or ``kafka_headers.element.key``.
    """
    return with_columns(known, (DT, *columns))


def with_columns(known: Mapping[str, int], columns: Iterable[pa.Field[Any]]) -> dict[str, int]:
    """Ids by path: the ``known`` ids, and new ids for the other ``columns``, without ``dt``.

    Raises:
        ValueError: two columns would share an id.
    """
    ids, columns = dict(known), list({column.name: column for column in columns}.values())
    check_columns(columns)
    for column in columns:
        new = [path for path in paths_of(column.name, column.type) if path not in ids]
        first = max(ids.values(), default=0) + 1
        ids |= {path: first + place for place, path in enumerate(new)}
    return ids


def disagree(ids: Mapping[str, int], others: Mapping[str, int]) -> bool:
    """True if a path has two ids, or an id has two paths."""
    paths = {number: path for path, number in others.items()}
    return any(others.get(path, number) != number or paths.get(number, path) != path for path, number in ids.items())


def with_ids(schema: pa.Schema, ids: Mapping[str, int]) -> pa.Schema:
    """``schema`` with the ids of all columns and nested fields, which pyarrow writes to Parquet."""
    return pa.schema([_with_id(field, field.name, ids) for field in schema])


def _with_id(field: pa.Field[Any], path: str, ids: Mapping[str, int]) -> pa.Field[Any]:
    kind = field.type
    if isinstance(kind, pa.StructType):
        kind = pa.struct([_with_id(child, f"{path}.{child.name}", ids) for child in kind])
    elif isinstance(kind, pa.ListType):
        kind = pa.list_(_with_id(kind.value_field.with_name("element"), f"{path}.element", ids))
    return pa.field(field.name, kind, field.nullable, metadata={_KEY: str(ids[path]).encode()})
