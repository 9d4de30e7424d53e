"""Compiles a message's descriptor to the tables that read it, and to the columns that it fills.

A message that has extensions, groups, or required fields within a map has no tables: :class:`Unsupported` has the
reason, and Google's library reads it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from numpy.typing import NDArray

from tidemark.parsers.base import Bits, Indices
from tidemark.parsers.protobuf import kernel as op
from tidemark.parsers.protobuf.differences import WRAPPERS, enum_names
from tidemark.parsers.slots import BlockReader, Layout, Node, Slots, Unsupported
from tidemark.parsers.unknown_fields import field_name, summed

_F: Final = FieldDescriptor
_KINDS: Final = {
    _F.TYPE_INT64: (op.INT64, op.VARINT),
    _F.TYPE_UINT64: (op.INT64, op.VARINT),
    _F.TYPE_INT32: (op.INT32, op.VARINT),
    _F.TYPE_UINT32: (op.UINT32, op.VARINT),
    _F.TYPE_BOOL: (op.BOOL, op.VARINT),
    _F.TYPE_SINT32: (op.SINT32, op.VARINT),
    _F.TYPE_SINT64: (op.SINT64, op.VARINT),
    _F.TYPE_ENUM: (op.ENUM, op.VARINT),
    _F.TYPE_FIXED64: (op.FIXED64, op.EIGHT),
    _F.TYPE_SFIXED64: (op.FIXED64, op.EIGHT),
    _F.TYPE_DOUBLE: (op.FIXED64, op.EIGHT),
    _F.TYPE_FIXED32: (op.FIXED32, op.FOUR),
    _F.TYPE_SFIXED32: (op.SFIXED32, op.FOUR),
    _F.TYPE_FLOAT: (op.FIXED32, op.FOUR),
    _F.TYPE_STRING: (op.STRING, op.LENGTH),
    _F.TYPE_BYTES: (op.BYTES, op.LENGTH),
}
_MAX_LOOKUP: Final = 1024
_MAX_DEPTH: Final = 64
"""The most levels; Google's library reads no more than 100 messages within one another."""


def block_reader(message: Descriptor, columns: pa.Schema, defaults: Collection[str]) -> BlockReader:
    """The reader of values that are such a message into these columns; ``defaults`` as in ``message_fields``.

    Raises:
        Unsupported: Google's library must read them.
    """
    builder = _Builder(defaults)
    nodes = builder.message(message, list(columns), 0).nodes
    made = op.Tables(
        op.rows(builder.messages, op.MESSAGE_WIDTH),
        op.rows(builder.fields, op.FIELD_WIDTH),
        np.array(builder.lookup, np.int64),
        op.rows(builder.inits, op.INIT_WIDTH),
        np.array(builder.members, np.int64),
        np.array(builder.required, np.int64),
        np.array(builder.enums, np.int64),
        np.zeros((0, op.FRAME_WIDTH), np.int64),
        np.zeros(0, np.int64),
        np.zeros((op.MOST_UNKNOWN, op.UNKNOWN_WIDTH), np.int64),
    )

    def loop(data: NDArray[np.uint8], starts: Indices, ends: Indices, slots: Slots, good: Bits) -> int:
        frames = np.zeros((_MAX_DEPTH + 1, op.FRAME_WIDTH), np.int64)
        before = np.zeros(len(builder.layout.columns), np.int64)
        tables = made._replace(frames=frames, before=before)
        level: int = op.read_messages(data, starts, ends, tables, slots, good)
        return level

    def unknown() -> dict[str, int]:
        met = made.unknown[made.unknown[:, op.ROWS] > 0]
        return summed({field_name(*builder.paths[where], str(number)): rows} for where, number, rows, _ in met.tolist())

    return BlockReader(builder.layout, nodes, columns, loop, unknown)


@dataclass(frozen=True, slots=True)
class _Message:
    """A message's row in the table of messages, its columns, their beginning, and if it has required fields."""

    row: int
    nodes: tuple[Node, ...]
    inits: list[list[int]]
    requires: bool


@dataclass(frozen=True, slots=True)
class _Value:
    """The place of a value, its entries in the table of fields, and its beginning if it is there from the start."""

    node: Node
    kind: int
    wire: int
    first: int
    count: int
    inits: list[list[int]]
    requires: bool = False


class _Builder:
    def __init__(self, defaults: Collection[str]) -> None:
        self._defaults = defaults
        self.layout = Layout()
        self.messages: list[list[int]] = []
        self.paths: list[tuple[str, ...]] = []
        self.fields: list[list[int]] = []
        self.lookup: list[int] = []
        self.inits: list[list[int]] = []
        self.members: list[int] = []
        self.required: list[int] = []
        self.enums: list[int] = []
        self._path: tuple[str, ...] = ()

    def message(self, message: Descriptor, kinds: list[pa.Field[Any]], level: int, *, entry: bool = False) -> _Message:
        """Add a message, and all that it may hold."""
        if message.is_extendable:
            raise Unsupported(f"{message.full_name} may have extensions")
        path = self._path
        if len(path) == _MAX_DEPTH:
            raise Unsupported(f"has more than {_MAX_DEPTH} levels")
        row = len(self.messages)
        self.messages.append([])
        self.paths.append(path)
        fields, nodes, inits, required = [], [], [], []
        requires = False
        for field, kind in zip(message.fields, kinds, strict=True):
            self._path = *path, field.name
            made, start, node, inner = self._field(field, kind.type, level, entry=entry)
            fields.append(made)
            nodes.append(node)
            inits += start
            requires |= inner or field.is_required
            required += [node.index] if field.is_required else []
        self._path = path
        self._add_members(message, fields)
        self.messages[row] = [
            *(level, len(self.fields), len(fields), len(self.lookup), self._look_up(fields)),
            *(len(self.inits), len(inits), len(self.required), len(required)),
            *((nodes[0].index, fields[0][op.KIND]) if entry else (-1, -1)),
        ]
        self.fields += fields
        self.inits += inits
        self.required += required
        return _Message(row, tuple(nodes), inits, requires)

    def _look_up(self, fields: list[list[int]]) -> int:
        """Add the future places of the fields by number; return the number of places."""
        places = {field[op.NUMBER]: len(self.fields) + index for index, field in enumerate(fields)}
        size = max((number + 1 for number in places if number < _MAX_LOOKUP), default=0)
        self.lookup += [places.get(number, -1) for number in range(size)]
        return size

    def _add_members(self, message: Descriptor, fields: list[list[int]]) -> None:
        by_number = {field[op.NUMBER]: field for field in fields}
        for oneof in message.oneofs:
            if len(oneof.fields) > 1:
                members = [by_number[member.number] for member in oneof.fields]
                for member in members:
                    member[op.MEMBERS], member[op.MEMBER_COUNT] = len(self.members), len(members)
                self.members += [member[op.COLUMN] for member in members]

    def _field(
        self, field: FieldDescriptor, kind: pa.DataType, level: int, *, entry: bool
    ) -> tuple[list[int], list[list[int]], Node, bool]:
        """(its row, its beginning, its column, true if required fields are within it)."""
        if field.is_repeated:
            assert isinstance(kind, pa.ListType)
            index = self.layout.column(level)
            value = self._item(field, kind.value_type)
            ordered = field.message_type is not None and field.message_type.GetOptions().map_entry
            if ordered and value.requires:
                raise Unsupported(f"{field.full_name} has required fields in a map")
            node = Node(kind, level, index, 1, (value.node,), None, ordered=ordered)
            place = [value.node.level, value.node.index]
            inits = [[index, 0, 0]]
        else:
            value = self._value(field, kind, level)
            node, place = value.node, [-1, -1]
            inits = value.inits if entry or ".".join(self._path) in self._defaults else [[node.index, 0, node.count]]
        row = [field.number, value.wire, value.kind, node.index, *place, value.first, value.count, 0, 0]
        return row, inits, node, value.requires

    def _item(self, field: FieldDescriptor, kind: pa.DataType) -> _Value:
        """An item of a list; for a map, an entry."""
        level = self.layout.level()
        message = field.message_type
        if message is None or not message.GetOptions().map_entry:
            return self._value(field, kind, level)
        assert isinstance(kind, pa.StructType)
        return self._message(message, kind, level, entry=True)

    def _message(self, message: Descriptor, kind: pa.StructType, level: int, *, entry: bool = False) -> _Value:
        index = self.layout.column(level)
        made = self.message(message, list(kind), level, entry=entry)
        # Its columns of this level follow its own.
        count = self.layout.columns[level] - index
        node = Node(kind, level, index, count, made.nodes)
        return _Value(node, op.MESSAGE, op.LENGTH, made.row, 0, [[index, 0, 0], *made.inits], made.requires)

    def _value(self, field: FieldDescriptor, kind: pa.DataType, level: int) -> _Value:
        if field.type == _F.TYPE_GROUP:
            raise Unsupported(f"{field.full_name} is a group")
        message = field.message_type
        if message is not None and isinstance(kind, pa.StructType):
            return self._message(message, kind, level)
        index = self.layout.column(level)
        if message is None:
            return self._simple(field, kind, level, index)
        node = Node(kind, level, index, unsigned=pa.types.is_decimal(kind))
        code, inner, wire = op.TIMESTAMP, 0, 0
        if message.full_name in WRAPPERS:
            code = op.WRAPPER
            inner, wire = _KINDS[message.fields_by_name["value"].type]
        return _Value(node, code, op.LENGTH, inner, wire, [[index, 0, 0]])

    def _simple(self, field: FieldDescriptor, kind: pa.DataType, level: int, index: int) -> _Value:
        code, wire = _KINDS[field.type]
        if field.enum_type is None:
            node = Node(kind, level, index, unsigned=pa.types.is_decimal(kind))
            return _Value(node, code, wire, 0, 0, [[index, 0, 0]])
        names = dict(sorted(enum_names(field.enum_type).items()))
        first = len(self.enums)
        self.enums += names
        # An item of a list has no beginning before it is there, and no default.
        start = 0 if field.is_repeated else list(names).index(field.default_value) + 1
        node = Node(kind, level, index, texts=pa.array(["", *names.values()], pa.string()))
        return _Value(node, code, wire, first, len(names), [[index, start, 0]])
