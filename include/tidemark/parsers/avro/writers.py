"""The schemas that wrote the records of a task: found, judged once each, and bounded in number and size.

A record may name any of 2^32 numbers, so a task has a budget: it looks up MAX_IN_VAIN numbers without a readable
schema, and reads MAX_TEXT characters of schemas. Beyond either, a number that it has not looked up yet refuses its
records with that reason. The numbers that most records of a batch name come first, then lower ones, so the numbers of
producers precede those of noise. A replay of the quarantine has a budget of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tidemark.parsers.avro.bounds import UnboundedSchema, check_bounded
from tidemark.parsers.avro.schema import Type, parsed, same
from tidemark.parsers.confluent_framing import guid_of
from tidemark.parsers.row_parser import RefusedRecord
from tidemark.parsers.schema_registry import Schemas, Unreadable, Written

MAX_IN_VAIN: Final = 4096
MAX_TEXT: Final = 32 << 20
_AT_ONCE: Final = 64


def parsed_schema(texts: Sequence[str | bytes]) -> Type:
    """The schema in the last of ``texts``; the others declare types that it refers to.

    Raises:
        ValueError: the text is no Avro schema, or the schema's values are not bounded by a record's bytes.
    """
    try:
        found = parsed(texts)
    except UnboundedSchema:
        raise
    except ValueError as error:
        raise ValueError(f"is not a valid Avro schema: {error}") from error
    check_bounded(found)
    return found


class Writers:
    """The writers' schemas of one task; ``reader`` is the table's, parsed."""

    def __init__(self, schemas: Schemas, reader: Type) -> None:
        self._schemas = schemas
        self._reader = reader
        self._known: dict[int, Type] = {}
        self._in_vain: dict[int, str] = {}
        self._text = 0

    def learn(self, numbers: Sequence[int]) -> None:
        """Look up the new ones of ``numbers``. Raises the errors of ``schema_registry.Schemas.find``."""
        new = [number for number in numbers if number not in self._known and number not in self._in_vain]
        while new and self._exhausted is None:
            group, new = new[:_AT_ONCE], new[_AT_ONCE:]
            for number, answer in self._schemas.find(group).items():
                self._add(number, answer)

    def get(self, number: int) -> Type:
        """The schema of a number that was learnt. Raises RefusedRecord."""
        if number in self._known:
            return self._known[number]
        reason = self._in_vain.get(number, f"is not looked up: {self._exhausted}; a replay looks again")
        raise RefusedRecord(f"names schema {guid_of(number) or number}, which {reason}")

    @property
    def _exhausted(self) -> str | None:
        if len(self._in_vain) >= MAX_IN_VAIN:
            return f"the task has looked up {len(self._in_vain)} others without success"
        if self._text >= MAX_TEXT:
            return f"the task has read {self._text} characters of schemas"
        return None

    def _add(self, number: int, answer: Written | Unreadable) -> None:
        if isinstance(answer, Unreadable):
            self._in_vain[number] = answer.reason
            return
        self._text += answer.size
        try:
            found = parsed_schema(answer.texts)
        except ValueError as error:
            self._in_vain[number] = str(error)
        else:
            self._known[number] = self._reader if same(found, self._reader) else found
