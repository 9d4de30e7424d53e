"""Protobuf: records as one message of a descriptor set, with a compiled loop or else with Google's library.

The message's descriptor is compiled to the tables of the loop, and to the columns that it fills. A message that has
extensions, groups, or required fields within a map has no tables: :class:`Unsupported` has the reason, and Google's
library reads it.

A field is unknown if the descriptor lacks its number, or if Google's library keeps it as unknown for another reason:
its type on the wire differs; it is the number of an enum in proto2 that has no name; it is an entry of a map with more
than a key and a value, which is then not in the map. Extensions, which no column takes, count too. Its name is the path
of the message around it, and then its number: ``customer.12``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet
from numpy.typing import NDArray

from tidemark.parsers.base import Bits, Indices, Parsed, without
from tidemark.parsers.confluent_framing import (
    FIRST_MESSAGE,
    framed_values,
    guid_of,
    of_message,
    rows_by_schema,
    split_frame,
    split_message,
)
from tidemark.parsers.protobuf import kernel as op
from tidemark.parsers.protobuf.descriptors import indexes_of, message_in, parsed_files, registered_files
from tidemark.parsers.protobuf.differences import (
    WRAPPERS,
    Reading,
    compared,
    enum_names,
    is_map,
    value_message,
    with_presence,
)
from tidemark.parsers.protobuf.types import check_size, has_maps, message_fields
from tidemark.parsers.row_parser import ParsedRecord, RefusedRecord
from tidemark.parsers.schema_registry import FindSchemas, SchemaRegistry, Unreadable, Written
from tidemark.parsers.settings import Misfits, ProtobufParser
from tidemark.parsers.slots import BlockReader, Group, Layout, Node, Slots, Unsupported, parse_in_blocks
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
    root = builder.message(message, pa.struct(list(columns)), 0, inner=False).node
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

    return BlockReader(builder.layout, root.children, columns, loop, unknown)


@dataclass(frozen=True, slots=True)
class _Value:
    """The place of a value, its entries in the table of fields, and its beginning if it is there from the start.

    ``requires`` is true of a message with required fields in it.
    """

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

    def message(
        self, message: Descriptor, kind: pa.StructType, level: int, *, entry: bool = False, inner: bool = True
    ) -> _Value:
        """Add a message, and all that it may hold. Only an ``inner`` one has a column of its own."""
        index = self.layout.column(level) if inner else 0
        first = self.layout.columns[level]
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
        for field, column in zip(message.fields, kind, strict=True):
            self._path = *path, field.name
            made, start, node, within = self._field(field, column.type, level, entry=entry)
            fields.append(made)
            nodes.append(node)
            inits += start
            requires |= within or field.is_required
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
        count = self.layout.columns[level] - first + 1  # its columns of this level follow its own
        node = Node(kind, level, index, count, tuple(nodes))
        return _Value(node, op.MESSAGE, op.LENGTH, row, 0, [[index, 0, 0], *inits], requires)

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
            ordered = is_map(field)
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
        if message is None or not is_map(field):
            return self._value(field, kind, level)
        assert isinstance(kind, pa.StructType)
        return self.message(message, kind, level, entry=True)

    def _value(self, field: FieldDescriptor, kind: pa.DataType, level: int) -> _Value:
        if field.type == _F.TYPE_GROUP:
            raise Unsupported(f"{field.full_name} is a group")
        message = field.message_type
        if message is not None and isinstance(kind, pa.StructType):
            return self.message(message, kind, level)
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


_OUT_OF_MEMORY: Final = "Arena alloc failed"
"""Google's words in a DecodeError when memory runs out (upb's ``kUpb_DecodeStatus_OutOfMemory``)."""

MAX_KNOWN: Final = 4096
"""The most numbers that one task looks up; records with others are refused, and a replay looks again."""

MessageIndexes = tuple[int, ...]

_AddUnknown = Callable[[Any, set[str]], None]
"""Adds the names of the unknown fields, and of extensions, in a message and the messages within to a set."""


class ProtobufColumns:
    """The parser of kind ``protobuf``."""

    version: Final = "protobuf/1"

    def __init__(self, settings: ProtobufParser) -> None:
        self._settings = settings
        assert settings.descriptors is not None, "a schema that is followed was adopted"
        self._files = parsed_files(settings.descriptors)
        message = message_in(self._files, settings.message, settings.descriptors.path)
        check_size(message)
        self._indexes = indexes_of(message)
        self._writers: ProtobufWriters | None = None
        if settings.registry is not None:
            find = SchemaRegistry(settings.registry, "PROTOBUF").find
            self._writers = ProtobufWriters(find, message, settings.misfits)
        self._reader = _MessageReader(message, Reading.of(message, message).defaults)
        self._loop = self._reader.loop
        self._readers: dict[Reading, _MessageReader] = {}
        self.columns: pa.Schema = self._reader.columns

    def parse(self, rows: pa.RecordBatch, *, vectorised: bool = True) -> Parsed:
        """Decode each value as the message; a value that cannot be read is refused with the reason.

        Only with ``vectorised`` the loop reads what it can.
        """
        wanted, writers, named = self._settings.event_time, self._writers, dict[int, Indices]()
        values = rows.column(f"kafka_{self._settings.columns_from}")
        if self._settings.framing == "confluent":
            values = framed_values(rows, self._settings.columns_from, indexes=FIRST_MESSAGE)
        if writers is not None:
            named = rows_by_schema(values)
            writers.learn([*named])
        groups = self._groups(values, named) if vectorised else ()
        parsed = parse_in_blocks(values, groups, self._read, self.columns, wanted)
        for number, at in named.items():
            if misfits := writers.misfits.get(number) if writers else None:
                parsed = without(parsed, at, misfits, wanted)
        return parsed

    def _groups(self, values: pa.Array[Any], named: Mapping[int, Indices]) -> Iterator[Group]:
        """The rows with the expected framing; ``named`` has those that name a schema, if schemas are looked up."""
        if self._loop is None:
            return
        if self._writers is not None:
            for (indexes, reading), numbers in self._writers.readable.items():
                loop = self._reader_of(reading).loop
                alike = np.zeros(len(values), np.bool_)
                for number in named.keys() & numbers:
                    alike[named[number]] = True
                for rows, skipped in of_message(values, indexes):
                    if loop is not None and alike[rows].any():
                        yield Group(loop, rows[alike[rows]], skipped)
        elif self._settings.framing == "confluent":
            for rows, skipped in of_message(values, self._indexes):
                yield Group(self._loop, rows, skipped)
        else:
            yield Group(self._loop, np.arange(len(values)), 0)

    def _reader_of(self, reading: Reading) -> _MessageReader:
        """The reader of records from writers whose unset fields read so."""
        if reading not in self._readers:
            files = with_presence(self._files, reading.apart)
            message = message_in(files, self._settings.message, "the table's definition")
            self._readers[reading] = _MessageReader(message, reading.defaults)
        return self._readers[reading]

    def _read(self, value: bytes) -> ParsedRecord:
        reader = self._reader
        if self._settings.framing == "confluent":
            wanted = self._indexes
            number, rest = split_frame(value)
            if self._writers is not None:
                wanted, reading = self._writers.place(number)
                reader = self._reader_of(reading)
            indexes, value = split_message(rest)
            if indexes != wanted:
                raise RefusedRecord(
                    f"has message {list(indexes)} of its file, but {self._settings.message} is {list(wanted)}"
                )
        return reader.read(value)


class _MessageReader:
    """Reads records as one message. ``defaults`` are the fields that are not null where a record lacks them."""

    def __init__(self, message: Descriptor, defaults: Collection[str]) -> None:
        self._name = message.full_name
        self._class = message_factory.GetMessageClass(message)
        fields = message_fields(message, defaults)
        self._takes = [(name, field.take) for name, field in fields]
        # FindInitializationErrors of protobuf 7.36.2 may end the process if a message within another has a map.
        self._has_maps = has_maps(message)
        self._add_unknown = _unknown_finder(message)
        self.columns: pa.Schema = pa.schema([pa.field(name, field.kind) for name, field in fields])
        self.loop: BlockReader | None = None
        with suppress(Unsupported):
            self.loop = block_reader(message, self.columns, defaults)

    def read(self, value: bytes) -> ParsedRecord:
        """The columns of a record, without framing. Raises RefusedRecord."""
        try:
            message: Any = self._class.FromString(value)
        except (DecodeError, UnicodeDecodeError) as error:
            if _OUT_OF_MEMORY in str(error):
                raise MemoryError(str(error)) from error  # other records may have taken the memory
            raise RefusedRecord(f"is not a valid {self._name}: {error}") from error
        if not message.IsInitialized():
            missing = "" if self._has_maps else ": " + ", ".join(message.FindInitializationErrors())
            raise RefusedRecord(f"lacks fields that {self._name} requires{missing}")
        try:
            fields = {name: take(message) for name, take in self._takes}
        except ValueError as error:
            raise RefusedRecord(f"has a value that no column holds: {error}") from error
        unknown: set[str] = set()
        self._add_unknown(message, unknown)
        return ParsedRecord(fields, unknown)


class ProtobufWriters:
    """The schemas that wrote the records of one task, as far as their registry knows them; ``message`` is the table's.

    Protobuf reads a record with any schema that has its fields' numbers, even if they mean other fields. So a schema is
    compared with the table's before its records are read (:mod:`~tidemark.parsers.protobuf.differences`): if a field
    has another meaning, they are refused.
    """

    def __init__(self, find: FindSchemas, message: Descriptor, misfits: Misfits) -> None:
        self._find = find
        self._message = message
        self._lands = misfits == "land"
        self._found: dict[int, tuple[MessageIndexes, Reading] | str] = {}
        self.misfits: dict[int, frozenset[str]] = {}
        """By number, the columns that are null in records of schemas that do not agree, if these land."""
        self.readable: dict[tuple[MessageIndexes, Reading], list[int]] = {}
        """The numbers of schemas that agree with the table's, by the way in which their records are read."""

    def learn(self, numbers: Sequence[int]) -> None:
        """Look up the new ones of ``numbers``. Raises the errors of ``schema_registry.FindSchemas``."""
        new = [number for number in numbers if number not in self._found][: MAX_KNOWN - len(self._found)]
        if not new:
            return
        for number, answer in self._find(new).items():
            judged = self._judged(number, answer)
            self._found[number] = judged
            if not isinstance(judged, str):
                self.readable.setdefault(judged, []).append(number)

    def place(self, number: int) -> tuple[MessageIndexes, Reading]:
        """The way in which records of a number that was learnt are read. Raises RefusedRecord."""
        judged = self._found.get(number, f"is not looked up: the task has looked up {MAX_KNOWN}; a replay looks again")
        if isinstance(judged, str):
            raise RefusedRecord(f"names schema {guid_of(number) or number}, which {judged}")
        return judged

    def _judged(self, number: int, answer: Written | Unreadable) -> tuple[MessageIndexes, Reading] | str:
        """The way in which its records are read, or the reason why they cannot be."""
        if isinstance(answer, Unreadable):
            return str(answer)
        try:
            theirs = message_in(registered_files(answer), self._message.full_name, "its registered text")
        except ValueError as error:
            return f"cannot be read: {error}"
        differ = [found for found in compared(self._message, theirs) if found.difference is not None]
        if self._lands:
            self.misfits[number] = frozenset(found.column for found in differ)
        elif differ and (first := differ[0].difference):
            return f"differs from the table's in {differ[0].path}: {first[1]}"
        return indexes_of(theirs), Reading.of(self._message, theirs)


def _unknown_finder(message: Descriptor, *path: str) -> _AddUnknown:
    """The function for messages of this kind under ``path``; the kind does not hold itself."""
    inner = [
        (
            field.name,
            field.is_repeated,
            is_map(field),
            _unknown_finder(kind, *path, field.name, *(["value"] * is_map(field))),
        )
        for field in message.fields
        if (kind := value_message(field)) is not None
    ]

    is_extendable = message.is_extendable

    def add(found: Any, names: set[str]) -> None:
        unknown: Any = UnknownFieldSet(found)
        for entry in unknown:
            names.add(field_name(*path, str(entry.field_number)))
        if is_extendable:
            for field, _ in found.ListFields():
                if field.is_extension:
                    names.add(field_name(*path, str(field.number)))
        for name, repeated, has_keys, add_inner in inner:
            if repeated:
                held = getattr(found, name)
                for part in held.values() if has_keys else held:
                    add_inner(part, names)
            elif found.HasField(name):
                add_inner(getattr(found, name), names)

    return add
