"""Compiles the steps of a resolution to the program of the loop, and to the columns that it fills.

The interpreter reads the records that have no program; :class:`Unsupported` has the reason. They have too many values,
or a decimal of another scale.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidemark.parsers.avro import kernel as op
from tidemark.parsers.avro.resolution import FailingStep, ItemsStep, NullStep, RecordStep, ScalarStep, Step, UnionStep
from tidemark.parsers.base import Bits, Indices
from tidemark.parsers.slots import BlockReader, Layout, Node, Slots, Unsupported

_MAX_OPERATIONS: Final = 8192
_NUMBERS: Final = {
    ("boolean", "boolean"): op.BOOLEAN,
    ("int", "int"): op.INT,
    ("int", "long"): op.LONG,
    ("long", "long"): op.LONG,
    ("int", "float"): op.LONG_TO_FLOAT,
    ("int", "double"): op.LONG_TO_DOUBLE,
    ("long", "float"): op.LONG_TO_FLOAT,
    ("long", "double"): op.LONG_TO_DOUBLE,
    ("float", "float"): op.FLOAT,
    ("float", "double"): op.FLOAT_TO_DOUBLE,
    ("double", "double"): op.DOUBLE,
}
_FACTORS: Final = {1: op.LONG, 1000: op.MILLIS, -1000: op.NANOS}


def block_reader(step: Step, fields: list[pa.Field[Any]]) -> BlockReader:
    """The reader of the records that ``step`` reads into the table's ``fields``.

    Raises:
        Unsupported: the interpreter must read them.
    """
    if not isinstance(step, RecordStep):
        raise Unsupported("has no record that can be read")
    layout = Layout()
    try:
        root = _Nodes(layout).node(step, pa.struct(fields), 0, inner=False)
        program = _Program(root)
        program.value(step, root)
        program.add(op.END)
        operations = np.array(program.operations, np.int64)
    except (RecursionError, OverflowError) as error:
        raise Unsupported("has more levels, or larger values, than a program") from error

    def loop(data: NDArray[np.uint8], starts: Indices, ends: Indices, slots: Slots, good: Bits) -> int:
        frames = np.zeros((program.depth + 1, op.FRAME_WIDTH), np.int64)
        before = np.zeros(len(layout.columns), np.int64)
        level: int = op.read_records(data, starts, ends, operations, frames, before, slots, good)
        return level

    return BlockReader(layout, root.children, pa.schema(fields), loop)


class _Nodes:
    """Gives the table's columns their places."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def node(self, step: Step | None, kind: pa.DataType, level: int, *, inner: bool = True) -> Node:
        """The column of what ``step`` reads as ``kind``; without a step it is null in each row."""
        step = _only(step)
        index = self._layout.column(level) if inner else 0
        if isinstance(kind, pa.StructType):
            first = self._layout.columns[level]
            children = tuple(self._field(step, place, field, level) for place, field in enumerate(kind))
            return Node(kind, level, index, self._layout.columns[level] - first + 1, children)
        if isinstance(kind, pa.ListType):
            item = step.item if isinstance(step, ItemsStep) else None
            children = (self._item(item, kind.value_type, entries=isinstance(step, ItemsStep) and step.keys),)
            return Node(kind, level, index, 1, children)
        texts = None
        if isinstance(step, ScalarStep) and step.kind == "enum":
            texts = pa.array(["", *(text or "" for text in step.texts)], pa.string())
        return Node(kind, level, index, 1, (), texts)

    def _field(self, step: Step | None, place: int, field: pa.Field[Any], level: int) -> Node:
        if not isinstance(step, RecordStep):
            return self.node(None, field.type, level)
        value = step.missing.get(place)
        if value is not None:
            return Node(field.type, level, self._layout.column(level), 1, (), _constant(value, field.type))
        inner = next((part.step for part in step.fields if part.place == place), None)
        return self.node(inner, field.type, level)

    def _item(self, item: Step | None, kind: pa.DataType, *, entries: bool) -> Node:
        level = self._layout.level()
        if not entries:
            return self.node(item, kind, level)
        assert isinstance(kind, pa.StructType)
        index = self._layout.column(level)
        key = Node(pa.string(), level, self._layout.column(level))
        value = self.node(item, kind.field(1).type, level)
        return Node(kind, level, index, 2 + value.count, (key, value))


def _only(step: Step | None) -> Step | None:
    """The step of the values of ``step`` that are not null, if there is one."""
    if not isinstance(step, UnionStep):
        return step
    values = [part for part in map(_only, step.branches) if not isinstance(part, NullStep | FailingStep)]
    if len(values) > 1 and any(not isinstance(part, ScalarStep) or part.kind == "enum" for part in values):
        raise Unsupported("has a union of more than one type with parts that the table takes")
    return values[0] if values else None


def _constant(value: Any, kind: pa.DataType) -> pa.Array[Any]:
    """What the column has within a struct that is null, and ``value``."""
    nothing: pa.Array[Any] = pa.array([None], pa.struct([pa.field("x", kind)])).field(0)  # type: ignore[attr-defined]
    return pa.concat_arrays([nothing, pa.array([value], kind)])


class _Program:
    """The operations of steps; without a node they fill no column."""

    def __init__(self, root: Node) -> None:
        self._root = root
        self.operations: list[list[int]] = []
        self.depth = 0
        self._lists = 0

    def add(self, operation: int, node: Node | None = None, *arguments: int) -> list[int]:
        """Add an operation."""
        if len(self.operations) >= _MAX_OPERATIONS:
            raise Unsupported(f"has more than {_MAX_OPERATIONS} values")
        made = [operation, -1 if node is None else node.index, *arguments]
        self.operations.append(made + [0] * (op.WIDTH - len(made)))
        return self.operations[-1]

    def value(self, step: Step, node: Node | None) -> None:
        """Read a value into ``node``, or pass over it if there is no node."""
        if isinstance(step, UnionStep):
            self._union(step, node)
        elif isinstance(step, RecordStep):
            self._record(step, node)
        elif isinstance(step, ItemsStep):
            self._items(step, node)
        elif isinstance(step, ScalarStep):
            self._scalar(step, node)
        elif isinstance(step, FailingStep):
            self.add(op.FAIL)
        elif node is not None:
            self.add(op.NULLS, node, node.count)

    def _union(self, step: UnionStep, node: Node | None) -> None:
        kinds = [type(branch) for branch in step.branches]
        if len(kinds) <= 2 and kinds.count(NullStep) == len(kinds) - 1:
            null = kinds.index(NullStep) if NullStep in kinds else -1
            [number] = (number for number, kind in enumerate(kinds) if kind is not NullStep)
            made = self.add(op.UNION, node, null, number, 0 if node is None else node.count)
            self.value(step.branches[number], node)
            made[op.AFTER] = len(self.operations)
            return
        self.add(op.CHOICE, None, len(kinds))
        jumps = [self.add(op.JUMP) for _ in kinds]
        ends = []
        for branch, jump in zip(step.branches, jumps, strict=True):
            jump[op.ARGUMENT] = len(self.operations)
            self.value(branch, node)
            ends.append(self.add(op.JUMP))
        for end in ends:
            end[op.ARGUMENT] = len(self.operations)

    def _record(self, step: RecordStep, node: Node | None) -> None:
        if node is not None and node is not self._root:
            self.add(op.STRUCT, node)
        children = () if node is None else node.children
        for part in step.fields:
            self.value(part.step, children[part.place] if part.place >= 0 else None)
        for place, value in step.missing.items():
            if value is None:
                self.add(op.NULLS, children[place], children[place].count)
            else:
                self.add(op.CONSTANT, children[place], 1)

    def _items(self, step: ItemsStep, node: Node | None) -> None:
        level = -1 if node is None else node.children[0].level
        made = self.add(op.ARRAY, node, level)
        self._lists += 1
        self.depth = max(self.depth, self._lists)
        item: Node | None = None if node is None else node.children[0]
        if step.keys:
            text: Node | None = None
            if item is not None:
                self.add(op.STRUCT, item)
                text, item = item.children
            self.add(op.KEY, text)
        self.value(step.item, item)
        self._lists -= 1
        made[op.AT_NEXT] = len(self.operations)
        self.add(op.NEXT, node, level)

    def _scalar(self, step: ScalarStep, node: Node | None) -> None:
        if step.decimal is not None:
            if step.shift:
                raise Unsupported("has a decimal of another scale than the table's")
            limit = 10**step.decimal.precision if step.decimal.precision < 19 else 0
            if step.kind == "fixed":
                self.add(op.FIXED_DECIMAL, node, limit, step.size)
            else:
                self.add(op.DECIMAL, node, limit)
        elif step.kind == "enum":
            self._symbol(step, node)
        elif step.kind == "fixed":
            self.add(op.FIXED, node, step.size)
        elif step.kind in {"bytes", "string"}:
            self.add(op.STRING if step.target == "string" else op.BYTES, node)
        elif step.target == "long":
            self.add(_FACTORS[step.factor], node)
        else:
            self.add(_NUMBERS[step.kind, step.target], node)

    def _symbol(self, step: ScalarStep, node: Node | None) -> None:
        if None not in step.texts:
            self.add(op.ENUM, node, len(step.texts))
            return
        self.add(op.SYMBOL, node, len(step.texts))
        for number, text in enumerate(step.texts):
            self.add(op.JUMP, None, -1 if text is None else number + 1)
