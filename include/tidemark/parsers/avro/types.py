"""Avro's types as columns."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from tidemark.decode.schema import TIMESTAMP_TYPE
from tidemark.parsers.avro.resolution import INSTANTS, column_logical
from tidemark.parsers.avro.schema import Type

MAX_PARTS: Final = 10_000
"""The most types in the columns of a table, at all levels: a type may be declared once and used in many places."""

_SIMPLE: Final[dict[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "fixed": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
}


class Types:
    """Translates types. All errors are ValueError with the field's path."""

    def __init__(self) -> None:
        self.parts = 0
        self._open: set[int] = set()

    def record(self, schema: Type) -> list[pa.Field[Any]]:
        """The columns of a record."""
        if schema.kind != "record":
            raise ValueError("schema: must be that of a record")
        made = self.arrow(schema, "schema")
        assert isinstance(made, pa.StructType)
        return list(made)

    def arrow(self, schema: Type, path: str) -> pa.DataType:
        """The type in the table: all times in microseconds, a map as a list of its entries."""
        self.parts += 1
        if self.parts > MAX_PARTS:
            raise ValueError(f"{path}: has more than {MAX_PARTS} parts with those before it")
        if schema.kind == "union":
            return self._union(schema, path)
        if schema.kind == "null":
            raise ValueError(f"{path}: is always null, which cannot be a column")
        if schema.kind == "array":
            return pa.list_(self.arrow(schema.item, f"{path}[]"))
        if schema.kind == "map":
            value = self.arrow(schema.item, f"{path}{{}}")
            return pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", value)]))
        if schema.kind == "record":
            return self._record(schema, path)
        return _simple(schema)

    def _union(self, schema: Type, path: str) -> pa.DataType:
        kinds = [branch for branch in schema.parts if branch.kind != "null"]
        if len(kinds) != 1:
            raise ValueError(f"{path}: a union may be of null and one other type; make it a record with a field each")
        return self.arrow(kinds[0], path)

    def _record(self, schema: Type, path: str) -> pa.DataType:
        if id(schema) in self._open:
            raise ValueError(f"{path}: {schema.name} holds itself, and a table's columns end somewhere")
        if not schema.fields:
            raise ValueError(f"{path}: a record without fields cannot be a column")
        self._open.add(id(schema))
        fields = [pa.field(field.name, self.arrow(field.type, f"{path}.{field.name}")) for field in schema.fields]
        self._open.remove(id(schema))
        return pa.struct(fields)


def _simple(schema: Type) -> pa.DataType:
    logical = column_logical(schema)
    name = logical.name if logical else ""
    if name in INSTANTS:
        return TIMESTAMP_TYPE
    if name == "date":
        return pa.date32()
    if logical and name == "decimal":
        return pa.decimal128(logical.precision, logical.scale)
    return _SIMPLE[schema.kind]
