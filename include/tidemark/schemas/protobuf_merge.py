"""Merges Protobuf's descriptors. The result reads the records of both: fields are matched by their numbers.

A message or enum is the same wherever it is defined, so the merge has one file for each package and syntax: a
definition that moves to an imported file stays where it is.

https://protobuf.dev/programming-guides/proto3/#updating
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeVar

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)

from tidemark.parsers.protobuf.descriptors import message_in, registered_files, well_known
from tidemark.parsers.protobuf.differences import ComparedField, compared, shown
from tidemark.parsers.protobuf.types import check_column, check_size
from tidemark.parsers.schema_registry import Written
from tidemark.schemas.merge import NESTED, Changes, Merge

_F: Final = FieldDescriptor


def merged(adopted: bytes | None, newest: Written, message: str, *, widen: bool = False) -> Merge:
    """The merge of ``adopted``, which is itself a merge or None, and ``newest``, which is taken whole after None.

    Raises:
        ValueError: ``newest`` has no descriptors, or not this message, or no field of it can be a column.
    """
    registered = registered_files(newest)
    newer = _messages(registered)
    if message not in newer:
        raise ValueError(f"has no message {message}, but {', '.join(sorted(newer)) or 'none'}")
    ours = FileDescriptorSet()
    if adopted is None:
        ours.CopyFrom(registered)
        root = _messages(ours)[message]
        del root.field[:], root.oneof_decl[:]
    else:
        ours.ParseFromString(adopted)
    theirs = message_in(registered, message, "its registered text")
    table = message_in(ours, message, "the definition")
    files = _by_package(_reachable(ours, message), registered)
    merge = _ProtobufMerge(_messages(files), newer, table, theirs, widen=widen)
    merge.run(files)
    if not merge.root.field:
        problems = "; ".join(f"{change.path}: {change.detail}" for change in merge.changes.found)
        raise ValueError(problems or "has no field")
    return Merge(files.SerializeToString(deterministic=True), tuple(merge.changes.found))


def _messages(files: FileDescriptorSet) -> dict[str, DescriptorProto]:
    """The messages of a descriptor set, by their full names."""
    found: dict[str, DescriptorProto] = {}

    def add(space: str, message: DescriptorProto) -> None:
        name = f"{space}.{message.name}" if space else message.name
        found[name] = message
        for inner in message.nested_type:
            add(name, inner)

    for file in files.file:
        for message in file.message_type:
            add(file.package, message)
    return found


class _ProtobufMerge:
    """``messages`` are those of the result, and ``newer`` those of the newest schema, by full name.

    ``table`` and ``theirs`` are the message as adopted, and in the newest schema.
    """

    def __init__(
        self,
        messages: dict[str, DescriptorProto],
        newer: dict[str, DescriptorProto],
        table: Descriptor,
        theirs: Descriptor,
        *,
        widen: bool,
    ) -> None:
        self.root = messages[table.full_name]
        self._messages = messages
        self._newer = newer
        self._table = table
        self._theirs = theirs
        self._widen = widen
        self.changes = Changes([field.name for field in table.fields])

    def run(self, files: FileDescriptorSet) -> None:
        """Merge the message in ``files``, the result."""
        before = len(self.root.field)
        for found in compared(self._table, self._theirs):
            self._field(found)
        for message in self._messages.values():
            _order_oneofs(message)
            for field in message.field:
                if field.label == _F.LABEL_REQUIRED:  # records of other versions may lack it
                    field.label = FieldDescriptorProto.LABEL_OPTIONAL
        _link(files)
        described = message_in(files, self._table.full_name, "the merge")
        added = self.root.field[before:]
        taken = [field for field in added if self._can_be_column(described.fields_by_name[field.name])]
        del self.root.field[before:]
        self.root.field.extend(taken)
        _order_oneofs(self.root)
        self._check(message_in(files, self._table.full_name, "the merge"))

    def _check(self, result: Descriptor) -> None:
        """Note what the newest schema's records would still be refused for: a new field may have a type of old ones."""
        check_size(result)
        noted = {change.path for change in self.changes.found if change.kind != "added"}
        for found in compared(result, self._theirs):
            if found.difference is not None and found.path not in noted:
                self.changes.note(found.path, *found.difference)

    def _can_be_column(self, field: FieldDescriptor) -> bool:
        try:
            check_column(field)
        except ValueError as error:
            self.changes.note(field.name, "misfit", str(error).removeprefix(f"{field.name}: "))
            return False
        return self.changes.takes(field.name, shown(field))

    def _field(self, found: ComparedField) -> None:
        """Note what is new about a field, and take it into the result as far as that is wanted."""
        theirs, holder = found.theirs, self._messages[found.holder.full_name]
        if found.difference is not None:
            self.changes.note(found.path, *found.difference)
            if found.difference[0] == "wider" and self._widen and theirs is not None:
                narrow = next(field for field in holder.field if field.number == theirs.number)
                narrow.type = FieldDescriptorProto.Type.ValueType(theirs.type)
        elif theirs is None:
            self.changes.note(found.path, "removed", "is null in new records")
        elif found.ours is None and "." in found.path:
            self.changes.note(found.path, "wider", f"{shown(theirs)}, {NESTED}")
            if self._widen and theirs.number not in {field.number for field in holder.field}:
                _add_field(holder, self._newer[found.other.full_name], theirs.number)
        elif found.ours is None:
            _add_field(holder, self._newer[found.other.full_name], theirs.number)


def _reachable(files: FileDescriptorSet, message: str) -> FileDescriptorSet:
    """``files`` without the definitions that ``message`` does not lead to: no column has come from them."""
    messages = {_full(file, found): found for file in files.file for found in file.message_type}
    enums = {_full(file, found) for file in files.file for found in file.enum_type}
    wanted, kept = [message], set[str]()
    while wanted:
        name = wanted.pop()
        while name and name not in messages and name not in enums:
            name = name.rpartition(".")[0]  # to the definition around it; there is none of a type that each pool has
        if name and name not in kept:
            kept.add(name)
            wanted += [kind.lstrip(".") for kind in _types([messages[name]] if name in messages else [])]
    result = FileDescriptorSet()
    for file in files.file:
        copy = result.file.add()
        copy.CopyFrom(file)
        del copy.message_type[:], copy.enum_type[:]
        copy.message_type.extend(found for found in file.message_type if _full(file, found) in kept)
        copy.enum_type.extend(found for found in file.enum_type if _full(file, found) in kept)
    return result


_Definition = DescriptorProto | EnumDescriptorProto
_Kind = TypeVar("_Kind", DescriptorProto, EnumDescriptorProto)


def _full(file: FileDescriptorProto, found: _Definition) -> str:
    return f"{file.package}.{found.name}".lstrip(".")


def _by_package(ours: FileDescriptorSet, theirs: FileDescriptorSet) -> FileDescriptorSet:
    """The messages and enums of both, with all values of enums; of messages that both have, the fields of ``ours``."""
    result = FileDescriptorSet()
    files: dict[tuple[str, ...], FileDescriptorProto] = {}
    known: dict[str, _Definition] = {}
    for file in (*ours.file, *theirs.file):
        if well_known(file.name) is not None:
            continue  # each pool has it
        features = file.options.features.SerializeToString(deterministic=True).hex()
        key = (file.package, file.syntax or "proto2", str(file.edition), features)
        if key not in files:
            made = result.file.add(name=f"{len(files)}.proto", package=file.package)
            made.syntax = file.syntax
            if file.syntax == "editions":
                made.edition = file.edition
                made.options.features.CopyFrom(file.options.features)
            files[key] = made
        files[key].dependency.extend(
            name for name in file.dependency if name not in files[key].dependency and well_known(name) is not None
        )
        for message in file.message_type:
            _take(known, _full(file, message), message, files[key].message_type, _graft)
        for enum in file.enum_type:
            _take(known, _full(file, enum), enum, files[key].enum_type, _graft_values)
    return result


def _take(
    known: dict[str, _Definition], name: str, found: _Kind, place: Any, graft: Callable[[_Kind, _Kind], None]
) -> None:
    """Add ``found`` to ``place`` unless its name is known; then ``graft`` it, unless that is of another kind."""
    mine = known.get(name)
    if mine is None:
        known[name] = added = place.add()
        added.CopyFrom(found)
    elif isinstance(mine, type(found)):
        graft(mine, found)


def _graft(ours: DescriptorProto, theirs: DescriptorProto) -> None:
    """Add the messages and enums within ``theirs`` that ``ours`` lacks; no message gets a field."""
    messages: dict[str, _Definition] = {message.name: message for message in ours.nested_type}
    for message in theirs.nested_type:
        _take(messages, message.name, message, ours.nested_type, _graft)
    enums: dict[str, _Definition] = {enum.name: enum for enum in ours.enum_type}
    for enum in theirs.enum_type:
        _take(enums, enum.name, enum, ours.enum_type, _graft_values)


def _graft_values(ours: EnumDescriptorProto, theirs: EnumDescriptorProto) -> None:
    numbers, names = {value.number for value in ours.value}, {value.name for value in ours.value}
    for value in theirs.value:
        if value.number not in numbers and value.name not in names:  # of an alias, the first name
            numbers.add(value.number)
            ours.value.add().CopyFrom(value)


def _link(files: FileDescriptorSet) -> None:
    """Set the imports of each file to the files that its messages need, beside those that each pool has."""
    defined = {
        name: file.name for file in files.file for name in (*_messages(FileDescriptorSet(file=[file])), *_enums(file))
    }
    for file in files.file:
        needed = {defined.get(name.lstrip("."), file.name) for name in _types(file.message_type)} - {file.name}
        kept = [name for name in file.dependency if well_known(name) is not None]
        del file.dependency[:], file.public_dependency[:], file.weak_dependency[:]
        file.dependency.extend([*kept, *sorted(needed)])


def _enums(file: FileDescriptorProto) -> Iterator[str]:
    """The full names of the enums of a file."""
    for enum in file.enum_type:
        yield _full(file, enum)
    for name, message in _messages(FileDescriptorSet(file=[file])).items():
        yield from (f"{name}.{enum.name}" for enum in message.enum_type)


def _types(messages: Iterable[DescriptorProto]) -> Iterator[str]:
    """The names of all types that fields of ``messages`` have."""
    for message in messages:
        yield from (field.type_name for field in message.field if field.type_name)
        yield from _types(message.nested_type)


def _add_field(ours: DescriptorProto, theirs: DescriptorProto, number: int) -> None:
    """Add a field of ``theirs`` to ``ours``, and to a new oneof unless its own exists.

    The oneof of an ``optional`` field has that field alone, and a name that nothing else in the message has, as protoc
    makes it (``X_name`` if ``_name`` is taken).
    """
    optional = {field.oneof_index for field in ours.field if field.proto3_optional}
    added = ours.field.add()
    added.CopyFrom(next(field for field in theirs.field if field.number == number))
    if not added.HasField("oneof_index"):
        return
    name = theirs.oneof_decl[added.oneof_index].name
    names = [oneof.name for oneof in ours.oneof_decl]
    if name in names and not added.proto3_optional and names.index(name) not in optional:
        added.oneof_index = names.index(name)
        return
    while name in names:
        name = f"X{name}"
    ours.oneof_decl.add().name = name
    added.oneof_index = len(names)


def _order_oneofs(message: DescriptorProto) -> None:
    """Leave out oneofs without a field, and put those of ``optional`` fields last; descriptors require both."""
    synthetic = {field.oneof_index for field in message.field if field.proto3_optional}
    used = {field.oneof_index for field in message.field if field.HasField("oneof_index")}
    order = sorted(used, key=lambda index: (index in synthetic, index))
    names = [message.oneof_decl[index].name for index in order]
    del message.oneof_decl[:]
    for name in names:
        message.oneof_decl.add(name=name)
    for field in message.field:
        if field.HasField("oneof_index"):
            field.oneof_index = order.index(field.oneof_index)
