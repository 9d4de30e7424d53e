"""The schemas that wrote Protobuf records, as far as their registry knows them.

Protobuf reads a record with any schema that has its fields' numbers, even if they mean other fields. So a schema is
compared with the table's before its records are read (:mod:`~tidemark.parsers.protobuf.differences`): if a field has
another meaning, they are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from google.protobuf.descriptor import Descriptor

from tidemark.parsers.confluent_framing import guid_of
from tidemark.parsers.protobuf.descriptors import indexes_of, message_in, registered_files
from tidemark.parsers.protobuf.differences import Reading, compared
from tidemark.parsers.row_parser import RefusedRecord
from tidemark.parsers.schema_registry import Schemas, Unreadable, Written
from tidemark.parsers.settings import Misfits

MAX_KNOWN: Final = 4096
"""The most numbers that one task looks up; records with others are refused, and a replay looks again."""

Indexes = tuple[int, ...]


class Place(NamedTuple):
    """How records of a schema are read: the message's indexes in its file, and what unset fields mean."""

    indexes: Indexes
    reading: Reading


class ProtobufWriters:
    """The schemas of one task; ``message`` is the table's."""

    def __init__(self, schemas: Schemas, message: Descriptor, misfits: Misfits) -> None:
        self._schemas = schemas
        self._message = message
        self._lands = misfits == "land"
        self._found: dict[int, Place | str] = {}
        self.misfits: dict[int, frozenset[str]] = {}
        """By number, the columns that are null in records of schemas that do not agree, if these land."""
        self.readable: dict[Place, list[int]] = {}
        """The numbers of schemas that agree with the table's, by the way in which their records are read."""

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

    def place(self, number: int) -> Place:
        """The way in which records of a number that was learnt are read. Raises RefusedRecord."""
        judged = self._found.get(number, f"is not looked up: the task has looked up {MAX_KNOWN}; a replay looks again")
        if isinstance(judged, str):
            raise RefusedRecord(f"names schema {guid_of(number) or number}, which {judged}")
        return judged

    def _judged(self, number: int, answer: Written | Unreadable) -> Place | str:
        """The way in which its records are read, or the reason why they cannot be."""
        if isinstance(answer, Unreadable):
            return answer.reason
        try:
            theirs = message_in(registered_files(answer), self._message.full_name, "its registered text")
        except ValueError as error:
            return f"cannot be read: {error}"
        differ = [found for found in compared(self._message, theirs) if found.difference is not None]
        if self._lands:
            self.misfits[number] = frozenset(found.column for found in differ)
        elif differ and (first := differ[0].difference):
            return f"differs from the table's in {differ[0].path}: {first.detail}"
        return Place(indexes_of(theirs), Reading.of(self._message, theirs))
