"""Avro: records from the schema that wrote them into the table's, by a compiled loop or else by an interpreter.

Rows are grouped by the schema that wrote them. ``resolution`` says how each of its records is read. Its steps are
compiled to the program of the loop, and to the columns that it fills. Some have no program, for which
:class:`Unsupported` has the reason: they have too many values, or a decimal of another scale. The interpreter reads
these, and whatever the loop leaves, and has the reasons of refusals.

A field is unknown if the schema that wrote a record has it and the table's has not, by name or alias. Every row of such
a schema counts, even if the field, or the record or the list around it, is null or empty.

Source: Avro's specification, "Binary encoding".
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import islice
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidemark.decode.schema import MAX_MILLISECONDS
from tidemark.parsers.avro import kernel as op
from tidemark.parsers.avro.resolution import (
    FailingStep,
    ItemsStep,
    NullStep,
    RecordStep,
    ScalarStep,
    Step,
    UnionStep,
    decimal_of,
    resolved,
)
from tidemark.parsers.avro.schema import Type, check_bounded, parsed, registered_schema, same
from tidemark.parsers.avro.types import Types
from tidemark.parsers.base import Bits, Indices, Parsed, valid_rows
from tidemark.parsers.confluent_framing import HEAD, framed_values, guid_of, rows_by_schema, split_frame
from tidemark.parsers.row_parser import ParsedRecord, RefusedRecord
from tidemark.parsers.schema_registry import FindSchemas, SchemaRegistry, Unreadable, Written, schemas_in_files
from tidemark.parsers.settings import AvroParser, SettingsFile
from tidemark.parsers.slots import FEWEST, BlockReader, Group, Layout, Node, Slots, Unsupported, parse_in_blocks
from tidemark.parsers.unknown_fields import field_name, summed

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
        root = _node(layout, step, pa.struct(fields), 0, inner=False)
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


def _node(layout: Layout, step: Step | None, kind: pa.DataType, level: int, *, inner: bool = True) -> Node:
    """The column of what ``step`` reads as ``kind``, placed in ``layout``; without a step it is null in each row."""
    step = _only(step)
    index = layout.column(level) if inner else 0
    if isinstance(kind, pa.StructType):
        first = layout.columns[level]
        children = tuple(_field_node(layout, step, place, field, level) for place, field in enumerate(kind))
        return Node(kind, level, index, layout.columns[level] - first + 1, children)
    if isinstance(kind, pa.ListType):
        items = step if isinstance(step, ItemsStep) else None
        return Node(kind, level, index, 1, (_item_node(layout, items, kind.value_type),))
    texts = None
    if isinstance(step, ScalarStep) and step.kind == "enum":
        texts = pa.array(["", *(text or "" for text in step.texts)], pa.string())
    return Node(kind, level, index, 1, (), texts)


def _field_node(layout: Layout, step: Step | None, place: int, field: pa.Field[Any], level: int) -> Node:
    if not isinstance(step, RecordStep):
        return _node(layout, None, field.type, level)
    value = step.missing.get(place)
    if value is not None:
        return Node(field.type, level, layout.column(level), 1, (), _constant(value, field.type))
    inner = next((part.step for part in step.fields if part.place == place), None)
    return _node(layout, inner, field.type, level)


def _item_node(layout: Layout, items: ItemsStep | None, kind: pa.DataType) -> Node:
    level = layout.level()
    if items is None or not items.keys:
        return _node(layout, items and items.item, kind, level)
    assert isinstance(kind, pa.StructType)
    index = layout.column(level)
    key = Node(pa.string(), level, layout.column(level))
    value = _node(layout, items.item, kind.field(1).type, level)
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


_DOUBLE: Final = struct.Struct("<d")
_FLOAT: Final = struct.Struct("<f")
_MOST_BYTES: Final = 10
_ENDS: Final = "ends too early"
_NO_BRANCH: Final = "names a branch of a union, or a symbol of an enum, that the schema does not have"


class _Source:
    """A record's bytes, and the place of the next one."""

    __slots__ = ("at", "data")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def taken(self, size: int) -> bytes:
        """The next ``size`` bytes."""
        end = self.at + size
        if size < 0 or end > len(self.data):
            raise RefusedRecord(_ENDS)
        found = self.data[self.at : end]
        self.at = end
        return found

    def number(self) -> int:
        """An int or a long; bits beyond the 64th are dropped."""
        data, at = self.data, self.at
        if at < len(data) and (byte := data[at]) < 0x80:
            self.at = at + 1
            return -(byte + 1 >> 1) if byte & 1 else byte >> 1
        raw = shift = 0
        for place in range(at, min(at + _MOST_BYTES, len(data))):
            byte = data[place]
            raw |= (byte & 0x7F) << shift
            if byte < 0x80:
                self.at = place + 1
                raw &= (1 << 64) - 1
                return (raw >> 1) ^ -(raw & 1)
            shift += 7
        cut = all(byte >= 0x80 for byte in data[at:])
        raise RefusedRecord(_ENDS if cut else "has a number of more than 64 bits")


_Read = Callable[[_Source], Any]
"""Reads a value. Raises RefusedRecord for wrong bytes, and _UnfitValue if its column cannot hold the value."""


class _UnfitValue(Exception):
    """A value that its column cannot hold; the message says why."""


def reader_of(step: Step) -> Callable[[bytes], dict[str, Any]]:
    """A function that reads a record as the table's fields.

    Raises:
        RefusedRecord: the bytes are not a record of the writer's schema, or do not resolve into the table's.
    """
    read = _read_of(step, {})

    def whole(data: bytes) -> dict[str, Any]:
        source = _Source(data)
        try:
            fields: dict[str, Any] = read(source)
        except RefusedRecord as error:
            raise RefusedRecord(f"does not match its Avro schema: {error}") from error
        except _UnfitValue as error:
            raise RefusedRecord(f"its values do not fit the table: {error}") from error
        except RecursionError as error:
            raise RefusedRecord("does not match its Avro schema: is nested too deeply") from error
        if source.at < len(data):
            raise RefusedRecord(f"has {len(data) - source.at} more bytes than its Avro schema says")
        return fields

    return whole


def _read_of(step: Step, made: dict[int, _Read]) -> _Read:
    """The function of a step. A step may be in many places: ``made`` has the functions of those that were met."""
    if id(step) not in made:
        if isinstance(step, ScalarStep):
            read = _scalar(step)
        elif isinstance(step, RecordStep):
            read = _record(step, made)
        elif isinstance(step, UnionStep):
            read = _union(step, made)
        elif isinstance(step, ItemsStep):
            read = _items(step, made)
        else:
            read = _failing(step) if isinstance(step, FailingStep) else _null
        made[id(step)] = read
    return made[id(step)]


def _record(step: RecordStep, made: dict[int, _Read]) -> _Read:
    fields = [(step.names[part.place] if part.place >= 0 else None, _read_of(part.step, made)) for part in step.fields]
    given = {name: step.missing.get(place) for place, name in enumerate(step.names)}

    def record(source: _Source) -> dict[str, Any]:
        found = given.copy()
        for name, read in fields:
            if name is None:
                read(source)
            else:
                found[name] = read(source)
        return found

    return record


def _union(step: UnionStep, made: dict[int, _Read]) -> _Read:
    branches = [_read_of(part, made) for part in step.branches]

    def union(source: _Source) -> Any:
        number = source.number()
        if not 0 <= number < len(branches):
            raise RefusedRecord(_NO_BRANCH)
        return branches[number](source)

    return union


def _items(step: ItemsStep, made: dict[int, _Read]) -> _Read:
    read = _read_of(step.item, made)

    def items(source: _Source) -> list[Any]:
        found: list[Any] = []
        while count := _count(source):
            for _ in range(count):
                found.append(read(source))  # noqa: PERF401 - a comprehension would lose what was read before an error
        return found

    def entries(source: _Source) -> list[dict[str, Any]]:
        found: dict[str, Any] = {}
        while count := _count(source):
            for _ in range(count):
                key = _text(source)
                found[key] = read(source)
        return [{"key": key, "value": value} for key, value in found.items()]

    return entries if step.keys else items


def _count(source: _Source) -> int:
    """The number of items in the next block; the block's size in bytes, if there is one, is passed over."""
    count = source.number()
    if count < 0:
        source.number()
        if count == -(1 << 63):
            raise RefusedRecord(_ENDS)
    return abs(count)


def _null(_source: _Source) -> None:
    return None


def _failing(step: FailingStep) -> _Read:
    def fail(_source: _Source) -> Any:
        raise RefusedRecord(step.reason)

    return fail


def _scalar(step: ScalarStep) -> _Read:
    if step.decimal is not None:
        return _decimal(step)
    if step.kind == "enum":
        return _symbol(step)
    if step.kind == "fixed":
        return lambda source: source.taken(step.size)
    if step.kind in {"bytes", "string"}:
        return _text if step.target == "string" else _bytes
    return _number(step) if step.kind in {"int", "long"} else _REALS[step.kind]


def _number(step: ScalarStep) -> _Read:
    factor, target = step.factor, step.target
    if target == "double":
        return lambda source: float(source.number())
    if target == "float":
        return lambda source: float(np.float32(np.int64(source.number())))
    if target == "int":
        return _int
    if factor == 1:
        return _Source.number
    if factor < 0:
        return lambda source: source.number() // -factor

    def instant(source: _Source) -> int:
        number = source.number()
        if abs(number) > MAX_MILLISECONDS:
            raise _UnfitValue("a time that is too far from 1970")
        return number * factor

    return instant


def _int(source: _Source) -> int:
    number = source.number()
    if not -(1 << 31) <= number < 1 << 31:
        raise RefusedRecord("has an int of more than 32 bits")
    return number


def _real(source: _Source) -> float:
    found: float = _FLOAT.unpack(source.taken(4))[0]
    return found


def _double(source: _Source) -> float:
    found: float = _DOUBLE.unpack(source.taken(8))[0]
    return found


def _boolean(source: _Source) -> bool:
    [byte] = source.taken(1)
    if byte > 1:
        raise RefusedRecord("has a boolean that is neither 0 nor 1")
    return byte == 1


def _bytes(source: _Source) -> bytes:
    return source.taken(source.number())


def _text(source: _Source) -> str:
    try:
        return str(source.taken(source.number()), "utf-8")
    except UnicodeDecodeError as error:
        raise RefusedRecord("has a string that is not valid UTF-8") from error


_REALS: Final[dict[str, _Read]] = {"boolean": _boolean, "float": _real, "double": _double}


def _symbol(step: ScalarStep) -> _Read:
    texts = step.texts

    def symbol(source: _Source) -> str:
        number = source.number()
        if not 0 <= number < len(texts):
            raise RefusedRecord(_NO_BRANCH)
        text = texts[number]
        if text is None:
            raise RefusedRecord("has a symbol that the table's enum does not have")
        return text

    return symbol


def _decimal(step: ScalarStep) -> _Read:
    wanted, shift, size = step.decimal, step.shift, step.size
    assert wanted is not None

    def decimal(source: _Source) -> Any:
        data = source.taken(size if step.kind == "fixed" else source.number())
        try:
            return decimal_of(data, wanted, shift)
        except ValueError as error:
            raise _UnfitValue(str(error)) from error

    return decimal


MAX_IN_VAIN: Final = 4096
MAX_TEXT: Final = 32 << 20
_AT_ONCE: Final = 64

_MOST_FIELDS: Final = 100_000
"""The most fields that are looked at: a type may be declared once and used in many places."""


class _Resolution:
    """The ways to read records of one schema, made when they are needed."""

    def __init__(self, step: Step, fields: list[pa.Field[Any]]) -> None:
        self._step, self._fields = step, fields

    @cached_property
    def loop(self) -> BlockReader | None:
        """The loop; None if the interpreter must read the records."""
        try:
            return block_reader(self._step, self._fields)
        except Unsupported:
            return None

    @cached_property
    def read(self) -> Callable[[bytes], dict[str, Any]]:
        """See :func:`tidemark.parsers.avro.parser.reader_of`."""
        return reader_of(self._step)

    @cached_property
    def unknown(self) -> Mapping[str, int]:
        """The fields that the table lacks."""
        return unknown_fields(self._step)


class AvroColumns:
    """The parser of kind ``avro``."""

    version: Final = "avro/1"

    def __init__(self, settings: AvroParser) -> None:
        self._settings = settings
        assert isinstance(settings.schema_file, SettingsFile), "a schema that is followed was adopted"
        reader = parsed([settings.schema_file.data])
        fields = Types().record(reader)
        check_bounded(reader)
        self.columns: pa.Schema = pa.schema(fields)

        def resolution(writer: Type) -> _Resolution:
            return _Resolution(resolved(writer, reader, land=settings.misfits == "land"), fields)

        self._own = resolution(reader)
        find = _find_of(settings)
        self._writers = None if find is None else AvroWriters(find, reader, self._own, resolution)

    def parse(self, rows: pa.RecordBatch, *, vectorised: bool = True) -> Parsed:
        """Decode each value with the schema that wrote it; a value that cannot be read is refused with the reason.

        Only with ``vectorised`` the loop reads what it can.
        """
        values = rows.column(f"kafka_{self._settings.columns_from}")
        if self._writers is None:
            loop = self._own.loop if vectorised else None
            groups = [] if loop is None else [Group(loop, np.arange(len(values)), 0)]
            return parse_in_blocks(values, groups, self._read, self.columns, self._settings.event_time)
        values = framed_values(rows, self._settings.columns_from)
        named = rows_by_schema(values)
        self._writers.learn([*named])
        read = {number: self._writers.known[number] for number in named if number in self._writers.known}
        loops = (
            (resolution.loop, named[number]) for number, resolution in read.items() if len(named[number]) >= FEWEST
        )
        groups = [Group(loop, at, HEAD) for loop, at in loops if loop is not None] if vectorised else []
        parsed = parse_in_blocks(values, groups, self._read, self.columns, self._settings.event_time)
        landing = valid_rows(values).copy()
        landing[list(parsed.refused)] = False
        counts = []
        for number, resolution in read.items():
            if resolution.unknown and (landed := int(landing[named[number]].sum())):
                counts.append({name: landed * count for name, count in resolution.unknown.items()})
        return replace(parsed, unknown=summed(counts))

    def _read(self, value: bytes) -> ParsedRecord:
        if self._writers is None:
            return ParsedRecord(self._own.read(value))
        number, data = split_frame(value)
        return ParsedRecord(self._writers.get(number).read(data))


def _find_of(settings: AvroParser) -> FindSchemas | None:
    """Where the schemas of records are found; None if the table's own has written them all."""
    if settings.registry:
        return SchemaRegistry(settings.registry).find
    return partial(schemas_in_files, settings.schemas) if settings.schemas else None


def parsed_schema(texts: Sequence[str | bytes]) -> Type:
    """The schema of :func:`registered_schema`. Raises ValueError also if a record's bytes do not bound its values."""
    found = registered_schema(texts)
    check_bounded(found)
    return found


class AvroWriters:
    """The schemas that wrote the records of a task: found, judged once each, and bounded in number and size.

    ``known`` has the ways to read the records of those that can be read. ``reader`` is the table's schema, with the way
    ``own`` to read its records; ``resolution`` makes that of any other.

    A record may name any of 2^32 numbers, so a task has a budget: it looks up MAX_IN_VAIN numbers without a readable
    schema, and reads MAX_TEXT characters of schemas. Beyond either, a number that it has not looked up yet refuses its
    records with that reason. The numbers that most records of a batch name come first, then lower ones, so the numbers
    of producers precede those of noise. A replay of the quarantine has a budget of its own.
    """

    def __init__(
        self, find: FindSchemas, reader: Type, own: _Resolution, resolution: Callable[[Type], _Resolution]
    ) -> None:
        self._find = find
        self._reader, self._own, self._resolution = reader, own, resolution
        self.known: dict[int, _Resolution] = {}
        self._in_vain: dict[int, str] = {}
        self._text = 0

    def learn(self, numbers: Sequence[int]) -> None:
        """Look up the new ones of ``numbers``. Raises the errors of ``schema_registry.FindSchemas``."""
        new = [number for number in numbers if number not in self.known and number not in self._in_vain]
        while new and self._exhausted is None:
            group, new = new[:_AT_ONCE], new[_AT_ONCE:]
            for number, answer in self._find(group).items():
                self._add(number, answer)

    def get(self, number: int) -> _Resolution:
        """The way to read records of a number that was learnt. Raises RefusedRecord."""
        if number in self.known:
            return self.known[number]
        reason = self._in_vain.get(number, f"is not looked up: {self._exhausted}; a replay looks again")
        raise RefusedRecord(f"names schema {guid_of(number) or number}, which {reason}")

    @property
    def _exhausted(self) -> str | None:
        if len(self._in_vain) >= MAX_IN_VAIN:
            return f"the task has looked up {len(self._in_vain)} others without success"
        if self._text >= MAX_TEXT:
            return f"the task has read {self._text} characters of schemas"
        return None

    def _add(self, number: int, answer: Written | Unreadable) -> None:
        if isinstance(answer, Unreadable):
            self._in_vain[number] = str(answer)
            return
        self._text += answer.size
        try:
            found = parsed_schema(answer.texts)
        except ValueError as error:
            self._in_vain[number] = str(error)
        else:
            self.known[number] = self._own if same(found, self._reader) else self._resolution(found)


def unknown_fields(step: Step) -> dict[str, int]:
    """Each field that the records have and the table does not take, counted as for one row.

    All branches of a writer's union count.
    """
    return summed({field_name(*path): 1} for path in set(islice(_unknown_paths(step), _MOST_FIELDS)))


def _unknown_paths(step: Step, *path: str) -> Iterator[tuple[str, ...]]:
    if isinstance(step, UnionStep):
        for branch in step.branches:
            yield from _unknown_paths(branch, *path)
    elif isinstance(step, ItemsStep):
        yield from _unknown_paths(step.item, *path, *(("value",) if step.keys else ()))
    elif isinstance(step, RecordStep):
        for field in step.fields:
            if field.place >= 0:
                yield from _unknown_paths(field.step, *path, step.names[field.place])
            else:
                yield (*path, field.name)
