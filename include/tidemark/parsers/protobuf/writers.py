"""The schemas that wrote Protobuf records, as far as their registry knows them.

Protobuf reads a record with any schema that has its fields' numbers, even if they mean other fields. So a schema is
compared with the table's before its records are read: if a number has another name or type, they are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from tidemark.parsers.protobuf.descriptors import indexes_of, message_of, registered_files
from tidemark.parsers.row_parser import RefusedRecord
from tidemark.parsers.schema_registry import Schemas, Unreadable, Written
from tidemark.parsers.settings import Misfits, SettingsFile

MAX_KNOWN: Final = 4096
"""The most numbers that one task looks up; records with others are refused, and a replay looks again."""

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
        """The numbers of schemas that agree with the table's, by the message's indexes in their files."""

    def learn(self, numbers: Sequence[int]) -> None:
        """Look up the new ones of ``numbers``. Raises the errors of ``schema_registry.Schemas.find``."""
        new = [number for number in numbers if number not in self._found][: MAX_KNOWN - len(self._found)]
        if not new:
            return
        for number, answer in self._schemas.find(new).items():
            judged = self._judged(number, answer)
            self._found[number] = judged
            if not isinstance(judged, str):
                self.readable.setdefault(judged, []).append(number)

    def indexes(self, number: int) -> Indexes:
        """The message's indexes in the file of a number that was learnt. Raises RefusedRecord."""
        judged = self._found.get(number, f"is not looked up: the task has looked up {MAX_KNOWN}; a replay looks again")
        if isinstance(judged, str):
            raise RefusedRecord(f"names schema {number}, which {judged}")
        return judged

    def _judged(self, number: int, answer: Written | Unreadable) -> Indexes | str:
        """The message's indexes, or the reason why its records cannot be read."""
        if isinstance(answer, Unreadable):
            return answer.reason
        try:
            files = registered_files(answer).SerializeToString()
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
    """The fields of ``ours``, each with the difference in the meaning of its number in ``theirs``, there or within."""
    both = ((field, theirs.fields_by_number.get(field.number)) for field in ours.fields)
    problems = {field.name: _problem(field, other, field.name, ()) for field, other in both if other is not None}
    return {name: problem for name, problem in problems.items() if problem is not None}


def _disagreement(ours: Descriptor, theirs: Descriptor, path: str, above: tuple[str, ...]) -> str | None:
    """The first disagreement in a message within others."""
    if ours.full_name in above:
        return None
    above = (*above, ours.full_name)
    both = ((field, theirs.fields_by_number.get(field.number)) for field in ours.fields)
    problems = (_problem(field, other, f"{path}{field.name}", above) for field, other in both if other is not None)
    return next((problem for problem in problems if problem is not None), None)


def _problem(ours: FieldDescriptor, theirs: FieldDescriptor, place: str, above: tuple[str, ...]) -> str | None:
    """The difference between two fields of the same number, in words; None if there is none."""
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
    """A field's type in words, messages and enums without their names that may change."""
    name = _NAMES.get(field.type, "message")
    return f"repeated {name}" if field.is_repeated else name


_NARROWER: Final = (
    (FieldDescriptor.TYPE_INT32, FieldDescriptor.TYPE_INT64),
    (FieldDescriptor.TYPE_SINT32, FieldDescriptor.TYPE_SINT64),
)
"""Pairs of types; the second can read values of the first."""

_NAMES: Final = {
    number: name.removeprefix("TYPE_").lower()
    for name, number in vars(FieldDescriptor).items()
    if name.startswith("TYPE_")
}
