"""Merges Protobuf's descriptors. The result reads the records of both: fields are matched by their numbers.

https://protobuf.dev/programming-guides/proto3/#updating
"""

from __future__ import annotations

from typing import Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)

from tidemark.parsers.protobuf.descriptors import message_of, registered_files
from tidemark.parsers.protobuf.types import check_column
from tidemark.parsers.schema_registry import Written
from tidemark.parsers.settings import SettingsFile
from tidemark.schemas.merge import NESTED, Changes, Merge

_F: Final = FieldDescriptor
_WIDER: Final = {(_F.TYPE_INT32, _F.TYPE_INT64), (_F.TYPE_SINT32, _F.TYPE_SINT64)}
"""Pairs of types with one encoding; the second has each value of the first, in the table's columns, too."""


def merged(adopted: bytes | None, newest: Written, message: str, *, widen: bool = False) -> Merge:
    """The merge of ``adopted``, which is itself a merge or None, and ``newest``, which is taken whole after None.

    Raises:
        ValueError: ``newest`` has no descriptors, or not this message, or no field of it can be a column.
    """
    theirs = registered_files(newest)
    new = _Messages(theirs)
    if message not in new.found:
        raise ValueError(f"has no message {message}, but {', '.join(sorted(new.found)) or 'none'}")
    ours = FileDescriptorSet()
    if adopted is None:
        ours.CopyFrom(theirs)
        del _Messages(ours).found[message].field[:]
    else:
        ours.ParseFromString(adopted)
    _graft_files(ours, theirs)
    merge = _ProtobufMerge(_Messages(ours), new, message, widen=widen)
    merge.run(ours)
    if not merge.old.found[message].field:
        problems = "; ".join(f"{change.path}: {change.detail}" for change in merge.changes.found)
        raise ValueError(problems or "has no field")
    return Merge(ours.SerializeToString(deterministic=True), tuple(merge.changes.found))


class _Messages:
    """The messages of a descriptor set, by their full names."""

    def __init__(self, files: FileDescriptorSet) -> None:
        self.found: dict[str, DescriptorProto] = {}
        for file in files.file:
            for message in file.message_type:
                self._add(file.package, message)

    def _add(self, space: str, message: DescriptorProto) -> None:
        name = f"{space}.{message.name}" if space else message.name
        self.found[name] = message
        for inner in message.nested_type:
            self._add(name, inner)


class _ProtobufMerge:
    def __init__(self, old: _Messages, new: _Messages, message: str, *, widen: bool) -> None:
        self.old = old
        self._new = new
        self._message = message
        self._widen = widen
        self._done: set[str] = set()
        self.changes = Changes([field.name for field in old.found[message].field])

    def run(self, files: FileDescriptorSet) -> None:
        """Merge the message in ``files``, the adopted definition."""
        root = self.old.found[self._message]
        before = len(root.field)
        self._fields(self._message, "")
        for message in self.old.found.values():
            for field in message.field:
                if field.label == _F.LABEL_REQUIRED:  # records of other versions may lack it
                    field.label = FieldDescriptorProto.LABEL_OPTIONAL
        described = message_of(SettingsFile(self._message, files.SerializeToString()), self._message)
        taken = [field for field in root.field[before:] if self._can_be_column(field, described)]
        del root.field[before:]
        root.field.extend(taken)

    def _can_be_column(self, field: FieldDescriptorProto, described: Descriptor) -> bool:
        try:
            check_column(described.fields_by_name[field.name])
        except ValueError as error:
            self.changes.note(field.name, "misfit", str(error).removeprefix(f"{field.name}: "))
            return False
        return self.changes.takes(field.name, _shown(field))

    def _fields(self, name: str, path: str) -> None:
        """Merge the fields of the message ``name`` that both have, and add the newer one's other fields."""
        if name in self._done or name not in self._new.found:
            return
        self._done.add(name)
        ours, theirs = self.old.found[name], self._new.found[name]
        numbers = {field.number: field for field in theirs.field}
        for field in ours.field:
            other = numbers.pop(field.number, None)
            if other is None:
                self.changes.note(f"{path}{field.name}", "removed", "is null, or its default, in new records")
            else:
                self._field(field, other, f"{path}{field.name}")
        names = {field.name for field in ours.field}
        for other in numbers.values():
            place = f"{path}{other.name}"
            if other.name in names:
                self.changes.note(place, "misfit", f"is field {other.number} now, and was another")
            elif path:
                self.changes.note(place, "wider", f"{_shown(other)}, {NESTED}")
                if self._widen:
                    _add_field(ours, theirs, other)
            else:
                _add_field(ours, theirs, other)
            self._inner(other, place)

    def _field(self, ours: FieldDescriptorProto, theirs: FieldDescriptorProto, path: str) -> None:
        if ours.name != theirs.name:
            self.changes.note(path, "misfit", f"field {ours.number} is named {theirs.name} now")
        elif (ours.label == _F.LABEL_REPEATED) != (theirs.label == _F.LABEL_REPEATED):
            self.changes.note(path, "misfit", f"{_shown(ours)} becomes {_shown(theirs)}")
        elif (ours.type, ours.type_name) == (theirs.type, theirs.type_name):
            self._inner(ours, path)
        elif (ours.type, theirs.type) in _WIDER:
            self.changes.note(path, "wider", f"{_shown(ours)} becomes {_shown(theirs)}")
            if self._widen:
                ours.type = theirs.type
        else:
            self.changes.note(path, "misfit", f"{_shown(ours)} becomes {_shown(theirs)}")

    def _inner(self, field: FieldDescriptorProto, path: str) -> None:
        if field.type in {_F.TYPE_MESSAGE, _F.TYPE_GROUP}:
            name = field.type_name.lstrip(".")
            if name in self.old.found:
                self._fields(name, f"{path}.")


def _graft_files(ours: FileDescriptorSet, theirs: FileDescriptorSet) -> None:
    """Add the files, imports, messages and enum values that only ``theirs`` has; no message gets a field."""
    known = {file.name: file for file in ours.file}
    order = [file.name for file in theirs.file]
    for file in theirs.file:
        file_of_ours = known.get(file.name)
        if file_of_ours is None:
            known[file.name] = FileDescriptorProto.FromString(file.SerializeToString())
            continue
        file_of_ours.dependency.extend(name for name in file.dependency if name not in file_of_ours.dependency)
        _graft(file_of_ours, file)
    gone = [file.name for file in ours.file if file.name not in order]
    files = [known[name] for name in (*gone, *order)]  # a file comes after its imports
    copies = [FileDescriptorProto.FromString(file.SerializeToString()) for file in files]
    del ours.file[:]
    ours.file.extend(copies)


def _graft(ours: FileDescriptorProto | DescriptorProto, theirs: FileDescriptorProto | DescriptorProto) -> None:
    mine = ours.message_type if isinstance(ours, FileDescriptorProto) else ours.nested_type
    other = theirs.message_type if isinstance(theirs, FileDescriptorProto) else theirs.nested_type
    messages = {message.name: message for message in mine}
    for message in other:
        if message.name in messages:
            _graft(messages[message.name], message)
        else:
            mine.append(message)
    enums = {enum.name: enum for enum in ours.enum_type}
    for enum in theirs.enum_type:
        if enum.name in enums:
            _graft_values(enums[enum.name], enum)
        else:
            ours.enum_type.append(enum)


def _graft_values(ours: EnumDescriptorProto, theirs: EnumDescriptorProto) -> None:
    known = {value.number for value in ours.value}
    names = {value.name for value in ours.value}
    ours.value.extend(value for value in theirs.value if value.number not in known and value.name not in names)

    """Add ``field`` of ``theirs`` to ``ours``, in the oneof of its oneof's name, which is added if missing."""


def _add_field(ours: DescriptorProto, theirs: DescriptorProto, field: FieldDescriptorProto) -> None:
    """Add ``field`` of ``theirs`` to ``ours``, and to a new oneof unless its own exists."""
    added = ours.field.add()
    added.CopyFrom(field)
    if not field.HasField("oneof_index"):
        return
    name = theirs.oneof_decl[field.oneof_index].name
    names = [oneof.name for oneof in ours.oneof_decl]
    if name in names:
        added.oneof_index = names.index(name)
    else:
        ours.oneof_decl.add().name = name
        added.oneof_index = len(names)
    _synthetic_last(ours)


def _synthetic_last(message: DescriptorProto) -> None:
    """Move the oneofs of ``optional`` fields after the others; descriptors require that."""
    synthetic = {field.oneof_index for field in message.field if field.proto3_optional}
    order = sorted(range(len(message.oneof_decl)), key=lambda index: index in synthetic)
    names = [message.oneof_decl[index].name for index in order]
    for declared, name in zip(message.oneof_decl, names, strict=True):
        declared.name = name
    for field in message.field:
        if field.HasField("oneof_index"):
            field.oneof_index = order.index(field.oneof_index)


def _shown(field: FieldDescriptorProto) -> str:
    """A field's type in words."""
    name = (
        field.type_name.rpartition(".")[2] or FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
    )
    return f"repeated {name}" if field.label == _F.LABEL_REPEATED else name
