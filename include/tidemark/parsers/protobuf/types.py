"""Protobuf's messages as columns: the type of each field, and the function that takes its value from a message."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final, NamedTuple

import pyarrow as pa
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

from tidemark.decode.schema import TIMESTAMP_TYPE
from tidemark.parsers.base import MOST_FIELDS
from tidemark.parsers.column_names import check_struct_names
from tidemark.parsers.protobuf.differences import WRAPPERS, enum_names, is_map

_F: Final = FieldDescriptor
_SIMPLE: Final[dict[int, pa.DataType]] = {
    _F.TYPE_BOOL: pa.bool_(),
    _F.TYPE_INT32: pa.int32(),
    _F.TYPE_SINT32: pa.int32(),
    _F.TYPE_SFIXED32: pa.int32(),
    _F.TYPE_UINT32: pa.int64(),
    _F.TYPE_FIXED32: pa.int64(),
    _F.TYPE_INT64: pa.int64(),
    _F.TYPE_SINT64: pa.int64(),
    _F.TYPE_SFIXED64: pa.int64(),
    _F.TYPE_UINT64: pa.decimal128(20, 0),
    _F.TYPE_FIXED64: pa.decimal128(20, 0),
    _F.TYPE_FLOAT: pa.float32(),
    _F.TYPE_DOUBLE: pa.float64(),
    _F.TYPE_STRING: pa.string(),
    _F.TYPE_BYTES: pa.binary(),
}
_SECONDS: Final = range(-62_135_596_800, 253_402_300_800)
"""The years 1 to 9999, the range of a Timestamp."""

Take = Callable[[Any], Any]


class Taken(NamedTuple):
    """A column's type, and the function that takes its value from a message, or converts a value of a field."""

    kind: pa.DataType
    take: Take


def message_fields(
    message: Descriptor, defaults: Collection[str], path: str = "", above: tuple[str, ...] = ()
) -> list[tuple[str, Taken]]:
    """The fields of ``message`` in the order of their declaration; ``take`` is called with the message.

    ``defaults`` are those of :class:`~.differences.Reading`.

    Raises:
        ValueError: it holds itself, or has no field; names the field.
    """
    if message.full_name in above:
        raise ValueError(f"{path}: {message.full_name} holds itself, and a table's columns end somewhere")
    if not message.fields:
        raise ValueError(f"{path or message.full_name}: a message without fields cannot be a column")
    above = (*above, message.full_name)
    places = [(field, f"{path}.{field.name}".lstrip(".")) for field in message.fields]
    return [(field.name, _field(field, defaults, place, above)) for field, place in places]


def check_size(message: Descriptor) -> None:
    """Raise ValueError if ``message``, which does not hold itself, has more than MOST_FIELDS fields at all levels."""
    counts: dict[str, int] = {}

    def count(kind: Descriptor) -> int:
        if kind.full_name not in counts:
            counts[kind.full_name] = 0  # if it holds itself after all
            inner = (field.message_type for field in kind.fields)
            counts[kind.full_name] = sum(1 + (count(of) if of is not None else 0) for of in inner)
        return counts[kind.full_name]

    if count(message) > MOST_FIELDS:
        raise ValueError(
            f"{message.full_name} has {count(message)} fields at all levels, and {MOST_FIELDS} is the most"
        )


def has_maps(message: Descriptor) -> bool:
    """True if ``message``, which does not hold itself, or a message within it has a map."""
    return any(
        is_map(field) or (field.message_type is not None and has_maps(field.message_type)) for field in message.fields
    )


def _field(field: FieldDescriptor, defaults: Collection[str], path: str, above: tuple[str, ...]) -> Taken:
    name = field.name
    message = field.message_type
    if message is not None and is_map(field):
        return _map(name, message, defaults, path, above)
    inner = _value(field, defaults, path, above)
    convert = inner.take
    if field.is_repeated:
        return Taken(pa.list_(inner.kind), lambda message: [convert(item) for item in getattr(message, name)])
    if path in defaults:
        return Taken(inner.kind, lambda message: convert(getattr(message, name)))
    return Taken(inner.kind, lambda message: convert(getattr(message, name)) if message.HasField(name) else None)


def _map(name: str, message: Descriptor, defaults: Collection[str], path: str, above: tuple[str, ...]) -> Taken:
    key, value = (_value(message.fields_by_name[part], defaults, f"{path}.{part}", above) for part in ("key", "value"))
    kind = pa.list_(pa.struct([pa.field("key", key.kind), pa.field("value", value.kind)]))

    def take(holder: Any) -> Any:
        entries = getattr(holder, name)
        try:
            keys = sorted(entries)
        except TypeError as error:  # proto2 takes any bytes for text, and hands them out as bytes
            raise ValueError("keys of a map that are not UTF-8") from error
        return [{"key": key.take(each), "value": value.take(entries[each])} for each in keys]

    return Taken(kind, take)


def _value(field: FieldDescriptor, defaults: Collection[str], path: str, above: tuple[str, ...]) -> Taken:
    """The type of one value of ``field``; ``take`` is called with the value."""
    message = field.message_type
    if field.enum_type is not None:
        return Taken(pa.string(), _enum(field.enum_type))
    if message is None:
        return Taken(_SIMPLE[field.type], lambda value: value)
    if message.full_name == "google.protobuf.Timestamp":
        return Taken(TIMESTAMP_TYPE, _timestamp)
    if message.full_name in WRAPPERS:
        return Taken(_SIMPLE[message.fields_by_name["value"].type], lambda wrapper: wrapper.value)
    fields = message_fields(message, defaults, path, above)
    takes = [(name, inner.take) for name, inner in fields]
    kind = pa.struct([pa.field(name, inner.kind) for name, inner in fields])
    return Taken(kind, lambda inner: {name: take(inner) for name, take in takes})


def _enum(enum: EnumDescriptor) -> Take:
    names = enum_names(enum)
    return lambda number: names.get(number) or str(number)


def _timestamp(value: Any) -> int:
    """Microseconds since 1970, rounded down. Raises ValueError beyond the range of a Timestamp."""
    if value.seconds not in _SECONDS or not 0 <= value.nanos < 1_000_000_000:
        raise ValueError(f"a Timestamp of {value.seconds} seconds and {value.nanos} nanoseconds")
    return int(value.seconds) * 1_000_000 + int(value.nanos) // 1000


def check_column(field: FieldDescriptor) -> None:
    """Raise ValueError unless ``field`` of a message can be a column."""
    assert field.containing_type is not None, "an extension is a field of no message"
    if field.message_type is not None:
        check_size(field.message_type)
    taken = _field(field, (), field.name, (field.containing_type.full_name,))
    check_struct_names(taken.kind, field.name)
