"""Which fields a message has that its descriptor lacks, as Google's library tells it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.unknown_fields import UnknownFieldSet

from tidemark.parsers.unknown_fields import field_name

_Within = Callable[[Any], Iterable[Any]]
"""The messages that a message has in one of its fields."""


class UnknownFields:
    """Finds the unknown fields of messages of one kind, which does not hold itself, and of those within them."""

    def __init__(self, message: Descriptor, *path: str) -> None:
        """For a message that lies under ``path``."""
        self._path = path
        self._is_extendable = message.is_extendable
        self._inner = [_inner(one, path) for one in message.fields if _message(one) is not None]

    def of(self, found: Any) -> set[str]:
        """The names of the unknown fields, and of extensions, in ``found``."""
        names: set[str] = set()
        self._add(found, names)
        return names

    def _add(self, found: Any, names: set[str]) -> None:
        unknown: Any = UnknownFieldSet(found)
        for one in unknown:
            names.add(field_name(*self._path, str(one.field_number)))
        if self._is_extendable:
            for field, _ in found.ListFields():
                if field.is_extension:
                    names.add(field_name(*self._path, str(field.number)))
        for within, inner in self._inner:
            for message in within(found):
                inner._add(message, names)


def _message(field: FieldDescriptor) -> Descriptor | None:
    """The kind of messages that a field has, or a map in its values."""
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        return kind.fields_by_name["value"].message_type
    return kind


def _inner(field: FieldDescriptor, path: tuple[str, ...]) -> tuple[_Within, UnknownFields]:
    name, kind, message = field.name, field.message_type, _message(field)
    assert kind is not None
    assert message is not None
    if kind.GetOptions().map_entry:
        return lambda found: getattr(found, name).values(), UnknownFields(message, *path, name, "value")
    inner = UnknownFields(message, *path, name)
    if field.is_repeated:
        return lambda found: getattr(found, name), inner
    return lambda found: (getattr(found, name),) if found.HasField(name) else (), inner
