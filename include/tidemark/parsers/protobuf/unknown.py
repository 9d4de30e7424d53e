"""Fields of a message that its descriptor lacks, as Google's library finds them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.unknown_fields import UnknownFieldSet

from tidemark.parsers.unknown_fields import field_name

_Within = Callable[[Any], Iterable[Any]]
"""The messages that a message has in one of its fields."""


class UnknownFields:
    """Finds the unknown fields of messages of one kind, and of the messages within; the kind does not hold itself."""

    def __init__(self, message: Descriptor, *path: str) -> None:
        """Make the finder of messages under ``path``."""
        self._path = path
        self._is_extendable = message.is_extendable
        self._inner = [_inner(field, path) for field in message.fields if _message(field) is not None]

    def of(self, message: Any) -> set[str]:
        """The names of the unknown fields, and of extensions, in ``message``."""
        names: set[str] = set()
        self._add(message, names)
        return names

    def _add(self, message: Any, names: set[str]) -> None:
        unknown: Any = UnknownFieldSet(message)
        for entry in unknown:
            names.add(field_name(*self._path, str(entry.field_number)))
        if self._is_extendable:
            for field, _ in message.ListFields():
                if field.is_extension:
                    names.add(field_name(*self._path, str(field.number)))
        for within, inner in self._inner:
            for part in within(message):
                inner._add(part, names)


def _message(field: FieldDescriptor) -> Descriptor | None:
    """The message type of a field, or of a map's values; None if there is none."""
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        return kind.fields_by_name["value"].message_type
    return kind


def _inner(field: FieldDescriptor, path: tuple[str, ...]) -> tuple[_Within, UnknownFields]:
    name, kind, message = field.name, field.message_type, _message(field)
    assert kind is not None
    assert message is not None
    if kind.GetOptions().map_entry:
        return lambda holder: getattr(holder, name).values(), UnknownFields(message, *path, name, "value")
    inner = UnknownFields(message, *path, name)
    if field.is_repeated:
        return lambda holder: getattr(holder, name), inner
    return lambda holder: (getattr(holder, name),) if holder.HasField(name) else (), inner
