"""The schemas by which Protobuf records were written, as far as their registry knows them.

Protobuf reads a record by any schema that has its fields' numbers, whether they mean the same or not. So a schema is
compared with the table's before its records are read: where a number has another name or type, they are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from tidemark.parsers.protobuf_descriptors import indexes_of, message_of, registered_files
from tidemark.parsers.row_parser import RefusedRecord
from tidemark.parsers.schema_registry import Schemas, Unreadable, Written
from tidemark.parsers.settings import Misfits, SettingsFile

MAX_KNOWN: Final = 4096
"""Numbers that one task looks up; records that name another are refused, and a replay looks again."""

Indexes = tuple[int, ...]


class ProtobufWriters:
    """The schemas of one task; ``message`` is the table's."""

    def __init__(self, schemas: Schemas, message: Descriptor, misfits: Misfits) -> None:
        self._schemas = schemas
        self._message = message
        self._lands = misfits == "land"
        self._found: dict[int, Indexes | str] = {}
        self.misfits: dict[int, frozenset[str]] = {}
        """By number, the columns that are null in records of schemas that do not agree, if these land."""
        self.readable: dict[Indexes, list[int]] = {}
        """The numbers of schemas that agree with the table's, by where the message is in their files."""

    def learn(self, numbers: Sequence[int]) -> None:
        """Look up those of ``numbers`` that are new. Raises as ``schema_registry.Schemas.find`` does."""
        new = [number for number in numbers if number not in self._found][: MAX_KNOWN - len(self._found)]
        if not new:
            return
        for number, found in self._schemas.find(new).items():
            judged = self._judged(number, found)
            self._found[number] = judged
            if not isinstance(judged, str):
                self.readable.setdefault(judged, []).append(number)

    def indexes(self, number: int) -> Indexes:
        """Where the message is in the file of this number, which was learnt. Raises RefusedRecord."""
        found = self._found.get(number, f"is not looked up: the task has looked up {MAX_KNOWN}; a replay looks again")
        if isinstance(found, str):
            raise RefusedRecord(f"names schema {number}, which {found}")
        return found

    def _judged(self, number: int, found: Written | Unreadable) -> Indexes | str:
        """Where the message is, or why its records cannot be read."""
        if isinstance(found, Unreadable):
            return found.reason
        try:
            files = registered_files(found).SerializeToString()
            theirs = message_of(SettingsFile("registered", files), self._message.full_name)
        except ValueError as error:
            return f"cannot be read: {error}"
        problems = disagreements(self._message, theirs)
        if self._lands:
            self.misfits[number] = frozenset(problems)
        elif problems:
            return f"has {next(iter(problems.values()))}"
        return indexes_of(theirs)


def disagreements(ours: Descriptor, theirs: Descriptor) -> dict[str, str]:
    """The fields of ``ours``, and in words what their numbers mean otherwise in ``theirs``, there or within."""
    both = ((one, theirs.fields_by_number.get(one.number)) for one in ours.fields)
    found = {one.name: _problem(one, other, one.name, ()) for one, other in both if other is not None}
    return {name: problem for name, problem in found.items() if problem is not None}


def _disagreement(ours: Descriptor, theirs: Descriptor, path: str, above: tuple[str, ...]) -> str | None:
    """The first of them in a message within others."""
    if ours.full_name in above:
        return None
    above = (*above, ours.full_name)
    both = ((one, theirs.fields_by_number.get(one.number)) for one in ours.fields)
    problems = (_problem(one, other, f"{path}{one.name}", above) for one, other in both if other is not None)
    return next((one for one in problems if one is not None), None)


def _problem(ours: FieldDescriptor, theirs: FieldDescriptor, place: str, above: tuple[str, ...]) -> str | None:
    """What a field of the same number has otherwise."""
    if theirs.name != ours.name:
        return f"the name {theirs.name} for field {ours.number}, which the table has as {place}"
    narrower = theirs.is_repeated == ours.is_repeated and (theirs.type, ours.type) in _NARROWER
    if _kind(theirs) != _kind(ours) and not narrower:
        return f"the type {_kind(theirs)} for {place}, which the table has as {_kind(ours)}"
    if ours.message_type is not None and theirs.message_type is not None:
        return _disagreement(ours.message_type, theirs.message_type, f"{place}.", above)
    if ours.enum_type is not None and theirs.enum_type is not None:
        names = theirs.enum_type.values_by_number
        for number, value in ours.enum_type.values_by_number.items():
            if number in names and names[number].name != value.name:
                return f"the name {names[number].name} for {number} of {place}, which the table has as {value.name}"
    return None


def _kind(field: FieldDescriptor) -> str:
    """A field's type in words, messages and enums without their names: those may change."""
    name = _NAMES.get(field.type, "message")
    return f"repeated {name}" if field.is_repeated else name


_NARROWER: Final = (
    (FieldDescriptor.TYPE_INT32, FieldDescriptor.TYPE_INT64),
    (FieldDescriptor.TYPE_SINT32, FieldDescriptor.TYPE_SINT64),
)
"""Types of which the second reads what the first has written."""

_NAMES: Final = {
    number: name.removeprefix("TYPE_").lower()
    for name, number in vars(FieldDescriptor).items()
    if name.startswith("TYPE_")
}
