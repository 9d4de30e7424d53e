"""Compiles Avro schemas to the program that reads them, and to the columns that it fills.

fastavro reads the schemas that have no program; :class:`Unsupported` has the reason. They cannot be read into the
table's, or use rules for evolved schemas beyond added and removed fields and ``int`` that becomes ``long``.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidemark.parsers.avro import kernel as op
from tidemark.parsers.avro.types import DECIMAL_MARK, table_type
from tidemark.parsers.base import Bits, Indices
from tidemark.parsers.slots import BlockReader, Layout, Node, Slots, Unsupported

_MAX_OPERATIONS: Final = 8192
_SIMPLE: Final = {
    ("boolean", pa.bool_()): op.BOOLEAN,
    ("int", pa.int32()): op.INT,
    ("int", pa.date32()): op.INT,
    ("int", pa.int64()): op.LONG,
    ("long", pa.int64()): op.LONG,
    ("long", pa.timestamp("us", "UTC")): op.LONG,
    ("long", pa.timestamp("ms", "UTC")): op.MILLIS,
    ("float", pa.float32()): op.FLOAT,
    ("double", pa.float64()): op.DOUBLE,
    ("bytes", pa.binary()): op.BYTES,
    ("string", pa.string()): op.STRING,
}
_SKIPPED: Final = {
    "boolean": op.BOOLEAN,
    "int": op.LONG,
    "long": op.LONG,
    "float": op.FLOAT,
    "double": op.DOUBLE,
    "bytes": op.BYTES,
    "string": op.STRING,
}
_NAMED: Final = {"record", "enum", "fixed"}


def block_reader(writer: Any, reader: Any, fields: list[pa.Field[Any]]) -> BlockReader:
    """The reader of records of ``writer`` into the table of schema ``reader``; fastavro reads them as ``fields``.

    Both schemas are as fastavro has parsed them.

    Raises:
        Unsupported: fastavro must read them.
    """
    try:
        table = _Table(reader)
        root = table.node(reader, pa.struct(fields), 0, inner=False)
        program = _Program(writer, table, root, evolved=writer is not reader)
        program.value(writer, reader, pa.struct(fields), root)
        program.add(op.END)
        operations = np.array(program.operations, np.int64)
    except (RecursionError, OverflowError) as error:
        raise Unsupported("has more levels, or larger values, than a program") from error

    def loop(data: NDArray[np.uint8], starts: Indices, ends: Indices, slots: Slots, good: Bits) -> int:
        frames = np.zeros((program.depth + 1, op.FRAME_WIDTH), np.int64)
        before = np.zeros(len(table.layout.columns), np.int64)
        level: int = op.read_records(data, starts, ends, operations, frames, before, slots, good)
        return level

    schema = pa.schema([pa.field(field.name, table_type(field.type)) for field in fields])
    return BlockReader(table.layout, root.children, schema, loop)


class DeclaredTypes:
    """A schema, and the types that it declares."""

    def __init__(self, schema: Any) -> None:
        self._named: dict[str, Any] = {}
        self._declare(schema)

    def resolved(self, schema: Any) -> tuple[str, Any]:
        """(kind, declaration) of ``schema``; a union's kind is ``union``.

        Raises:
            Unsupported: it gives a logical type to a type that is declared elsewhere.
        """
        while not isinstance(schema, list):
            kind = schema if isinstance(schema, str) else schema["type"]
            if isinstance(kind, str) and kind not in self._named:
                return kind, schema if isinstance(schema, dict) else {}
            if isinstance(schema, dict) and "logicalType" in schema:
                raise Unsupported("has a logical type of a type that is declared elsewhere")
            schema = self._named[kind] if isinstance(kind, str) else kind
        return "union", schema

    def _declare(self, schema: Any) -> None:
        if isinstance(schema, list):
            for branch in schema:
                self._declare(branch)
        elif isinstance(schema, dict):
            kind = schema["type"]
            if isinstance(kind, str) and kind in _NAMED:
                self._named[schema["name"]] = schema
            elif not isinstance(kind, str):
                self._declare(kind)
            for key in ("items", "values"):
                self._declare(schema.get(key))
            for field in schema.get("fields", ()):
                self._declare(field["type"])


class _Table(DeclaredTypes):
    """The table's schema, and the places of its columns."""

    def __init__(self, schema: Any) -> None:
        super().__init__(schema)
        self.layout = Layout()

    def node(self, schema: Any, kind: pa.DataType, level: int, *, inner: bool = True) -> Node:
        """The column of a value of ``schema``, which is read as ``kind``."""
        name, declared = self.resolved(schema)
        if name == "union":
            return self.node(value_of(declared), kind, level)
        index = self.layout.column(level) if inner else 0
        children: tuple[Node, ...] = ()
        if isinstance(kind, pa.StructType):
            first = self.layout.columns[level]
            fields = zip(declared["fields"], kind, strict=True)
            children = tuple(self.node(inner["type"], field.type, level) for inner, field in fields)
            count = self.layout.columns[level] - first + 1
            return Node(table_type(kind), level, index, count, children)
        if isinstance(kind, pa.ListType):
            children = (self.node(declared["items"], kind.value_type, self.layout.level()),)
        elif isinstance(kind, pa.MapType):
            children = (self._entry(declared["values"], kind.item_type),)
        texts = pa.array(["", *declared["symbols"]], pa.string()) if name == "enum" else None
        return Node(table_type(kind), level, index, 1, children, texts)

    def _entry(self, values: Any, kind: pa.DataType) -> Node:
        level = self.layout.level()
        index = self.layout.column(level)
        key = Node(pa.string(), level, self.layout.column(level))
        value = self.node(values, kind, level)
        entry = pa.struct([pa.field("key", key.type), pa.field("value", value.type)])
        return Node(entry, level, index, 2 + value.count, (key, value))


class _Program(DeclaredTypes):
    """The operations that read values of ``writer``; without a node they fill no column."""

    def __init__(self, writer: Any, table: _Table, root: Node, *, evolved: bool) -> None:
        super().__init__(writer)
        self._table = table
        self._root = root
        self._evolved = evolved
        self.operations: list[list[int]] = []
        self.depth = 0

    def add(self, operation: int, node: Node | None = None, *arguments: int) -> list[int]:
        """Add an operation."""
        if len(self.operations) >= _MAX_OPERATIONS:
            raise Unsupported(f"has more than {_MAX_OPERATIONS} values")
        made = [operation, -1 if node is None else node.index, *arguments]
        self.operations.append(made + [0] * (op.WIDTH - len(made)))
        return self.operations[-1]

    def value(self, writer: Any, reader: Any, kind: pa.DataType | None, node: Node | None) -> None:
        """Read a value into ``node``, or skip it if there is no node."""
        name, declared = self.resolved(writer)
        if name == "union":
            self._union(declared, reader, kind, node)
            return
        if name == "null" and node is None:
            return
        wanted: Any = {}
        if node is not None:
            wanted_name, wanted = self._wanted(reader)
            if self._evolved:
                _check_same(name, declared, wanted_name, wanted)
        if name == "record":
            self._record(declared, wanted, kind, node)
        elif name in {"array", "map"}:
            self._list(name, declared, wanted, kind, node)
        else:
            self._simple(name, declared, kind, node)

    def _wanted(self, reader: Any) -> tuple[str, Any]:
        name, declared = self._table.resolved(reader)
        return self._table.resolved(value_of(declared)) if name == "union" else (name, declared)

    def _union(self, branches: list[Any], reader: Any, kind: pa.DataType | None, node: Node | None) -> None:
        if len(branches) == 2 and "null" in branches:
            null = branches.index("null")
        elif len(branches) == 1:
            null = -1
        else:
            raise Unsupported("has a union of more than null and one other type")
        if node is not None and null >= 0 and self._table.resolved(reader)[0] != "union":
            raise Unsupported("may be null where the table's schema says otherwise")
        [branch] = (number for number in range(len(branches)) if number != null)
        made = self.add(op.UNION, node, null, branch, 0 if node is None else node.count)
        self.value(branches[branch], reader, kind, node)
        made[op.AFTER] = len(self.operations)

    def _record(self, writer: Any, reader: Any, kind: pa.DataType | None, node: Node | None) -> None:
        if node is not None and node is not self._root:
            self.add(op.STRUCT, node)
        _check_distinct(writer)
        fields: dict[str, tuple[Any, pa.DataType | None, Node | None]] = {}
        if node is not None:
            assert isinstance(kind, pa.StructType)
            _check_distinct(reader)
            for declared, field, inner in zip(reader["fields"], kind, node.children, strict=True):
                fields[declared["name"]] = declared, field.type, inner
        for written in writer["fields"]:
            wanted, wanted_kind, child = fields.pop(written["name"], ({"type": None}, None, None))
            self.value(written["type"], wanted["type"], wanted_kind, child)
        for declared, _, missing in fields.values():
            assert missing is not None
            if declared.get("default", 0) is not None or self._table.resolved(declared["type"])[0] != "union":
                raise Unsupported("lacks a field whose default is not null")
            self.add(op.NULLS, missing, missing.count)

    def _list(self, name: str, writer: Any, reader: Any, kind: pa.DataType | None, node: Node | None) -> None:
        level = -1 if node is None else node.children[0].level
        made = self.add(op.ARRAY, node, level)
        self.depth += 1
        key = "items"
        item: Node | None = None if node is None else node.children[0]
        if name == "map":
            key = "values"
            text: Node | None = None
            if item is not None:
                self.add(op.STRUCT, item)
                text, item = item.children
            self.add(op.KEY, text)
        inner = kind.value_type if isinstance(kind, pa.ListType) else getattr(kind, "item_type", None)
        self.value(writer[key], reader.get(key), inner, item)
        made[op.AT_NEXT] = len(self.operations)
        self.add(op.NEXT, node, level)

    def _simple(self, name: str, declared: Any, kind: pa.DataType | None, node: Node | None) -> None:
        decimal = name in {"bytes", "fixed"} and declared.get("logicalType") == DECIMAL_MARK
        if decimal and kind is None:
            raise Unsupported("has a decimal that the table lacks")
        if decimal:
            precision, scale = declared.get("precision"), declared.get("scale", 0)
            if not isinstance(kind, pa.Decimal128Type) or (kind.precision, kind.scale) != (precision, scale):
                raise Unsupported("has a decimal where the table has none")
            if not 0 <= scale <= precision:
                raise Unsupported("has a decimal of an unusual scale")
            limit = 10**precision if precision < 19 else 0
            if name == "fixed":
                self.add(op.FIXED_DECIMAL, node, limit, declared["size"])
            else:
                self.add(op.DECIMAL, node, limit)
        elif name == "fixed" and kind in {None, pa.binary()}:
            self.add(op.FIXED, node, declared["size"])
        elif name == "enum" and kind in {None, pa.string()}:
            self.add(op.ENUM, node, len(declared["symbols"]))
        elif kind is None and name in _SKIPPED:
            self.add(_SKIPPED[name])
        elif (name, kind) in _SIMPLE:
            self.add(_SIMPLE[name, kind], node)
        else:
            raise Unsupported(f"has {name} where the table has {kind}")


def value_of(branches: list[Any]) -> Any:
    """The branch of a union of null and one other type. Raises Unsupported."""
    others = [branch for branch in branches if branch != "null"]
    if len(others) != 1:
        raise Unsupported("has a union of more than null and one other type")
    return others[0]


def _check_same(writer: str, written: Any, reader: str, wanted: Any) -> None:
    """Raise Unsupported unless each value of the written type is read as the wanted type without a change."""
    if writer != reader and (writer, reader) != ("int", "long"):
        raise Unsupported(f"has {writer} where the table's schema has {reader}")
    if "aliases" in wanted or any("aliases" in field for field in wanted.get("fields", ())):
        raise Unsupported("is read by aliases")
    keys = ("name", "size", "symbols", "logicalType", "precision", "scale")
    if any(written.get(key) != wanted.get(key) for key in keys):
        raise Unsupported(f"has another {writer} than the table's schema")


def _check_distinct(record: Any) -> None:
    names = [field["name"] for field in record["fields"]]
    if len(set(names)) < len(names):
        raise Unsupported("has two fields of one name")
