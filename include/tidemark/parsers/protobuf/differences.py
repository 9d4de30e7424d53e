"""What a newer descriptor of a message means for the table's: one comparison for its adoption and for its records.

Fields have a number on the wire, and a name in the table. Both must agree, or a value would land in another column.
Names of messages and enums may change, and their definitions may move to other files. Whether a field that is not set
reads as its default or as null depends on the descriptor that wrote the record, see :class:`Reading`.

Source: https://protobuf.dev/programming-guides/proto3/#updating and https://protobuf.dev/programming-guides/field_presence
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal, NamedTuple

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FeatureSet,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)

_F: Final = FieldDescriptor
_WIDER: Final = {(_F.TYPE_INT32, _F.TYPE_INT64), (_F.TYPE_SINT32, _F.TYPE_SINT64)}
"""Pairs of types with one encoding; the second has each value of the first, in the table's columns, too."""

_WRAPPERS: Final = ("Bool", "Int32", "UInt32", "Int64", "UInt64", "Float", "Double", "String", "Bytes")
WRAPPERS: Final = {f"google.protobuf.{name}Value" for name in _WRAPPERS}
SPECIAL: Final = {*WRAPPERS, "google.protobuf.Timestamp"}
"""Messages that become a column of a simple type."""


Difference = tuple[Literal["misfit", "wider"], str]
"""What makes a field of the newer descriptor another one, also in words; if ``wider``, it has more values."""


class ComparedField(NamedTuple):
    """A field of the table's message, of the newer one, or both. ``holder`` and ``other`` are the messages around."""

    path: str
    holder: Descriptor
    other: Descriptor
    ours: FieldDescriptor | None
    theirs: FieldDescriptor | None
    difference: Difference | None = None

    @property
    def column(self) -> str:
        """The column that the field belongs to."""
        return self.path.partition(".")[0]


def compared(ours: Descriptor, theirs: Descriptor) -> Iterator[ComparedField]:
    """The fields of two messages, and of the messages within, in the order of the table's; then the newer one's own."""
    return _compared(ours, theirs, "", frozenset())


def _compared(
    ours: Descriptor, theirs: Descriptor, path: str, above: frozenset[tuple[str, str]]
) -> Iterator[ComparedField]:
    both = ours.full_name, theirs.full_name
    if both in above:
        return
    known = set()
    for field in ours.fields:
        place = f"{path}{field.name}"
        other = theirs.fields_by_number.get(field.number)
        moved = theirs.fields_by_name.get(field.name)
        known |= {field.number, moved.number if moved else field.number}
        difference = _difference(field, other, moved)
        yield ComparedField(place, ours, theirs, field, other, difference)
        inner = _messages(field, other) if other is not None and difference is None else None
        if inner is not None:
            within = f"{place}.value." if is_map(field) else f"{place}."
            yield from _compared(*inner, within, above | {both})
    for other in theirs.fields:
        if other.number not in known:
            yield ComparedField(f"{path}{other.name}", ours, theirs, None, other)


def _difference(
    ours: FieldDescriptor, theirs: FieldDescriptor | None, moved: FieldDescriptor | None
) -> Difference | None:
    """The difference of a field from the one with its number, and from the one with its name."""
    if theirs is not None and theirs.name != ours.name:
        return "misfit", f"field {ours.number} is named {theirs.name} now"
    if theirs is None:
        return ("misfit", f"is field {moved.number} now, and was {ours.number}") if moved else None
    if (_shape(ours), _type(ours)) == (_shape(theirs), _type(theirs)):
        return _of_enums(ours.enum_type, theirs.enum_type) if ours.enum_type and theirs.enum_type else None
    if _shape(ours) == _shape(theirs) and (theirs.type, ours.type) in _WIDER:
        return None
    wider = _shape(ours) == _shape(theirs) and (ours.type, theirs.type) in _WIDER
    return "wider" if wider else "misfit", f"{shown(ours)} becomes {shown(theirs)}"


def _of_enums(ours: EnumDescriptor, theirs: EnumDescriptor) -> Difference | None:
    mine, others = _all_names(ours), _all_names(theirs)
    for number, names in mine.items():
        if number in others and not {*names} & {*others[number]}:
            return "misfit", f"{number} is {others[number][0]} now, and was {names[0]}"
    numbers = {name: number for number, names in mine.items() for name in names}
    for number, names in others.items():
        for name in names:
            if numbers.get(name, number) != number and number not in mine:
                return "misfit", f"{name} is {number} now, and was {numbers[name]}"
    return None


def _all_names(enum: EnumDescriptor) -> dict[int, list[str]]:
    names: dict[int, list[str]] = {}
    for value in enum.values:
        names.setdefault(value.number, []).append(value.name)
    return names


def enum_names(enum: EnumDescriptor) -> dict[int, str]:
    """The names of an enum by number; with ``allow_alias`` the first of each, as in protobuf-java's ``toString``."""
    return {number: names[0] for number, names in _all_names(enum).items()}


def _messages(ours: FieldDescriptor, theirs: FieldDescriptor) -> tuple[Descriptor, Descriptor] | None:
    """The messages of two fields whose own fields are columns, of maps those of the values."""
    mine, other = (value_message(field) for field in (ours, theirs))
    return (mine, other) if mine is not None and other is not None and mine.full_name not in SPECIAL else None


def value_message(field: FieldDescriptor) -> Descriptor | None:
    """The message type of a field, or of a map's values; None if there is none."""
    kind = field.message_type
    if kind is not None and is_map(field):
        return kind.fields_by_name["value"].message_type
    return kind


def is_map(field: FieldDescriptor) -> bool:
    """True of a map, which is a repeated message of a key and a value."""
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _shape(field: FieldDescriptor) -> str:
    return "map" if is_map(field) else "repeated" if field.is_repeated else ""


def _type(field: FieldDescriptor) -> object:
    """A field's type as far as it matters: messages and enums by what is in them, so without their names."""
    kind = field.message_type
    if kind is None:
        return field.type
    if is_map(field):
        return tuple(_type(kind.fields_by_name[name]) for name in ("key", "value"))
    return field.type, kind.full_name if kind.full_name in SPECIAL else ""


def shown(field: FieldDescriptor) -> str:
    """A field's type in words."""
    entry = field.message_type
    if entry is not None and is_map(field):
        key, value = (shown(entry.fields_by_name[name]) for name in ("key", "value"))
        return f"map<{key}, {value}>"
    kind = entry or field.enum_type
    name = kind.name if kind is not None else _NAMES[field.type]
    return f"repeated {name}" if field.is_repeated else name


_NAMES: Final = {
    number: name.removeprefix("TYPE_").lower()
    for name, number in vars(FieldDescriptor).items()
    if name.startswith("TYPE_")
}


class Reading(NamedTuple):
    """How records of one descriptor read that do not set a field of the table's message.

    ``defaults`` are the paths of fields that then have their default: by its descriptor they have no presence. All
    others are null, also those that it lacks. ``apart`` are the oneofs of the table's message, by message and name,
    whose fields are independent in it: several of them may be set.
    """

    defaults: frozenset[str] = frozenset()
    apart: frozenset[tuple[str, str]] = frozenset()

    @classmethod
    def of(cls, ours: Descriptor, theirs: Descriptor) -> Reading:
        """The reading of records that ``theirs`` has written into columns of ``ours``."""
        defaults, apart = set(), set()
        for found in compared(ours, theirs):
            field, other = found.ours, found.theirs
            if field is None or other is None:
                continue
            if not other.is_repeated and not other.has_presence:
                defaults.add(found.path)
            oneof = field.containing_oneof
            if oneof is not None and other.containing_oneof is None:
                apart.add((found.holder.full_name, oneof.name))
        return cls(frozenset(defaults), frozenset(apart))


def with_presence(files: FileDescriptorSet, apart: frozenset[tuple[str, str]]) -> FileDescriptorSet:
    """``files`` in which each field that is not repeated has presence, and no field is in one of the oneofs ``apart``.

    Such a message tells for each field whether the record has it; :class:`Reading` says what it means if not.
    """
    changed = FileDescriptorSet()
    for file in files.file:
        copy = changed.file.add()
        copy.CopyFrom(file)
        for message in copy.message_type:
            _give_presence(copy, message, file.package, apart)
    return changed


def _give_presence(
    file: FileDescriptorProto, message: DescriptorProto, space: str, apart: frozenset[tuple[str, str]]
) -> None:
    full_name = f"{space}.{message.name}" if space else message.name
    for inner in message.nested_type:
        if not inner.options.map_entry:
            _give_presence(file, inner, full_name, apart)
    names = [oneof.name for oneof in message.oneof_decl]
    before = [names[field.oneof_index] if field.HasField("oneof_index") else "" for field in message.field]
    synthetic = {name for name, field in zip(before, message.field, strict=True) if field.proto3_optional}
    kept = [name for name in names if name not in synthetic and (full_name, name) not in apart]
    del message.oneof_decl[:]
    for name in kept:
        message.oneof_decl.add(name=name)
    for name, field in zip(before, message.field, strict=True):
        field.ClearField("default_value")  # where a record lacks the field it is null, or the type's default
        if name in kept:
            field.oneof_index = kept.index(name)
            continue
        field.ClearField("oneof_index")
        field.ClearField("proto3_optional")
        if field.label == FieldDescriptorProto.LABEL_REPEATED or field.type in {_F.TYPE_MESSAGE, _F.TYPE_GROUP}:
            continue
        if file.syntax == "proto3":
            field.proto3_optional = True
            field.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=f"{full_name.replace('.', '_')}_{field.name}_")
        elif file.syntax == "editions" and field.options.features.field_presence != FeatureSet.LEGACY_REQUIRED:
            field.options.features.field_presence = FeatureSet.EXPLICIT
