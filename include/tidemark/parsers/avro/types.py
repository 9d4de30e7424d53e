"""Avro's types as columns. A logical type of time stays a number while it is read, and becomes a time in Arrow."""

from __future__ import annotations

from decimal import Context, Decimal
from typing import Any, Final

import pyarrow as pa
from fastavro.read import LOGICAL_READERS

from tidemark.decode.schema import TIMESTAMP_TYPE

_SIMPLE: Final[dict[str, pa.DataType]] = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_TIMES: Final[dict[str, pa.DataType]] = {
    "timestamp-millis": pa.timestamp("ms", "UTC"),
    "timestamp-micros": TIMESTAMP_TYPE,
    "date": pa.date32(),
}
DECIMAL_MARK: Final = "tidemark-decimal"
"""Logical type of a ``decimal`` for fastavro; its own takes time by the square of a value's bytes, and rounds."""

_MAX_DECIMAL_BYTES: Final = 32
_MAX_SCALE: Final = 100
_EXACT: Final = Context(prec=120)


class Types:
    """Translates a schema, and remembers its named types. All errors are ValueError with the field's path."""

    def __init__(self) -> None:
        self._named: dict[str, Any] = {}
        self._open: list[str] = []

    def record(self, schema: Any) -> list[pa.Field[Any]]:
        """The fields of a record, as they are read."""
        kind = self.arrow(schema, "", "schema")
        if not isinstance(kind, pa.StructType):
            raise ValueError("schema: must be that of a record")  # noqa: TRY004 - the file is wrong, not a call
        return list(kind)

    def arrow(self, schema: Any, space: str, path: str) -> pa.DataType:
        """The type of ``schema``; names in it without a namespace are in ``space``."""
        if isinstance(schema, list):
            return self._union(schema, space, path)
        if isinstance(schema, str):
            return self._name(schema, space, path)
        if not isinstance(schema, dict) or "type" not in schema:
            raise ValueError(f"{path}: {schema!r} is not a valid Avro schema")
        kind = schema["type"]
        if not isinstance(kind, str) or kind in self._named:
            return self.arrow(kind, space, path)
        if kind in {"record", "enum", "fixed"}:
            return self._declared(schema, kind, space, path)
        if kind == "array":
            return pa.list_(self.arrow(schema["items"], space, f"{path}[]"))
        if kind == "map":
            value = self.arrow(schema["values"], space, f"{path}{{}}")
            return pa.map_(pa.string(), value)
        return self._logical(schema) or self._name(kind, space, path)

    def _union(self, schema: list[Any], space: str, path: str) -> pa.DataType:
        kinds = [branch for branch in schema if branch != "null"]
        if len(kinds) != 1:
            raise ValueError(f"{path}: a union may be of null and one other type; make it a record with a field each")
        return self.arrow(kinds[0], space, path)

    def _name(self, name: str, space: str, path: str) -> pa.DataType:
        if name in _SIMPLE:
            if name == "null":
                raise ValueError(f"{path}: is always null, which cannot be a column")
            return _SIMPLE[name]
        full = name if "." in name or not space else f"{space}.{name}"
        full = full if full in self._named else name
        if full in self._open:
            raise ValueError(f"{path}: {full} holds itself, and a table's columns end somewhere")
        if full not in self._named:
            raise ValueError(f"{path}: {name} is not a known type")
        known: pa.DataType = self._named[full]
        return known

    def _declared(self, schema: dict[str, Any], kind: str, space: str, path: str) -> pa.DataType:
        name = str(schema.get("name", ""))
        space = name.rpartition(".")[0] if "." in name else str(schema.get("namespace", space) or "")
        full = name if "." in name or not space else f"{space}.{name}"
        if kind == "enum":
            column_type: pa.DataType = pa.string()
        elif kind == "fixed":
            column_type = self._logical(schema) or pa.binary()
        else:
            self._open.append(full)
            fields = [
                pa.field(field["name"], self.arrow(field["type"], space, f"{path}.{field['name']}"))
                for field in schema["fields"]
            ]
            self._open.pop()
            if not fields:
                raise ValueError(f"{path}: a record without fields cannot be a column")
            column_type = pa.struct(fields)
        self._named[full] = column_type
        return column_type

    @staticmethod
    def _logical(schema: dict[str, Any]) -> pa.DataType | None:
        name = schema.get("logicalType")
        if name == "decimal":
            return pa.decimal128(schema.get("precision", 0), schema.get("scale", 0))
        time_type: pa.DataType | None = _TIMES.get(str(name))
        return time_type


def table_type(kind: pa.DataType) -> pa.DataType:
    """The type in the table: all times in microseconds, a map as a list of its entries."""
    if pa.types.is_timestamp(kind):
        return TIMESTAMP_TYPE
    if isinstance(kind, pa.StructType):
        return pa.struct([pa.field(field.name, table_type(field.type)) for field in kind])
    if isinstance(kind, pa.MapType):
        return pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", table_type(kind.item_type))]))
    if isinstance(kind, pa.ListType):
        return pa.list_(table_type(kind.value_type))
    return kind


def plain_types(schema: Any) -> Any:
    """``schema`` with decimals for :func:`_decimal` to read, and without other logical types."""
    if isinstance(schema, list):
        return [plain_types(branch) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    # Keys that start with two underscores mark a schema as parsed for fastavro.
    kept = {key: value for key, value in schema.items() if key != "logicalType" and not key.startswith("__")}
    if schema.get("logicalType") == "decimal":
        kept["logicalType"] = DECIMAL_MARK
    for key in ("type", "items", "values"):
        if key in kept:
            kept[key] = plain_types(kept[key])
    if isinstance(kept.get("fields"), list):
        kept["fields"] = [{**field, "type": plain_types(field["type"])} for field in kept["fields"]]
    return kept


def _decimal(data: bytes, writer: Any, reader: Any = None) -> Decimal:
    """The exact value. Raises ValueError for values beyond any column."""
    scale = writer.get("scale", 0)
    if len(data) > _MAX_DECIMAL_BYTES or not isinstance(scale, int) or not 0 <= scale <= _MAX_SCALE:
        raise ValueError(f"a decimal of {len(data)} bytes and scale {scale}")
    return Decimal(int.from_bytes(data, "big", signed=True)).scaleb(-scale, _EXACT)


LOGICAL_READERS[f"bytes-{DECIMAL_MARK}"] = LOGICAL_READERS[f"fixed-{DECIMAL_MARK}"] = _decimal
