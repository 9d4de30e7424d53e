"""The schemas that wrote the records of a task: found, judged once each, and bounded in number and size.

A record may name any of 2^32 numbers, so a task has a budget: it looks up MAX_IN_VAIN numbers without a readable
schema, and reads MAX_TEXT characters of schemas. Beyond either, a number that it has not looked up yet refuses its
records with that reason. The numbers that most records of a batch name come first, then lower ones, so the numbers of
producers precede those of noise. A replay of the quarantine has a budget of its own.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import fastavro
from fastavro.schema import SchemaParseException

from tidemark.parsers.avro.bounds import check_bounded, check_levels, skips_blindly
from tidemark.parsers.avro.types import plain_types
from tidemark.parsers.confluent_framing import guid_of
from tidemark.parsers.row_parser import RefusedRecord
from tidemark.parsers.schema_registry import Schemas, Unreadable, Written

MAX_IN_VAIN: Final = 4096
MAX_TEXT: Final = 32 << 20
_AT_ONCE: Final = 64


class WriterSchema(NamedTuple):
    """A schema as fastavro uses it; if ``blind``, a record is read whole before parts of it are skipped."""

    parsed: Any
    blind: bool = False


def parsed_schema(texts: Sequence[str | bytes]) -> WriterSchema:
    """The schema in the last of ``texts``; the others declare types that it refers to.

    Raises:
        ValueError: the text is no Avro schema, or the schema's values are not bounded by a record's bytes.
    """
    named: dict[str, Any] = {}
    parsed: Any = None
    try:
        for text in texts:
            check_levels(text.encode() if isinstance(text, str) else text)
            parsed = fastavro.parse_schema(plain_types(json.loads(text)), named)
        if len(texts) > 1:
            parsed = fastavro.parse_schema(_whole(plain_types(parsed), dict(named)), named := {})
        check_bounded(parsed, named)
        blind = skips_blindly(parsed, named)
    except SchemaParseException as error:
        raise ValueError(f"is not a valid Avro schema: {error}") from error
    except (TypeError, LookupError, AttributeError, RecursionError) as error:
        raise ValueError(f"is not a valid Avro schema: {type(error).__name__} {error}") from error
    return WriterSchema(parsed, blind)


def _whole(schema: Any, named: dict[str, Any]) -> Any:
    """``schema`` with each type of ``named`` declared at its first use: fastavro resolves some schemas only then."""
    if isinstance(schema, list):
        return [_whole(branch, named) for branch in schema]
    if isinstance(schema, str):
        declared = named.pop(schema, None)
        return schema if declared is None else _whole(declared, named)
    named.pop(schema.get("name", ""), None)
    inner = {key: _whole(schema[key], named) for key in ("items", "values") if key in schema}
    if "fields" in schema:
        inner["fields"] = [{**field, "type": _whole(field["type"], named)} for field in schema["fields"]]
    return {**schema, **inner}


class Writers:
    """The writers' schemas of one task; ``reader`` is the table's, parsed."""

    def __init__(self, schemas: Schemas, reader: Any) -> None:
        self._schemas = schemas
        self._reader = reader
        self._known: dict[int, WriterSchema] = {}
        self._in_vain: dict[int, str] = {}
        self._text = 0

    def learn(self, numbers: Sequence[int]) -> None:
        """Look up the new ones of ``numbers``. Raises the errors of ``schema_registry.Schemas.find``."""
        new = [number for number in numbers if number not in self._known and number not in self._in_vain]
        while new and self._exhausted is None:
            group, new = new[:_AT_ONCE], new[_AT_ONCE:]
            for number, answer in self._schemas.find(group).items():
                self._add(number, answer)

    def get(self, number: int) -> WriterSchema:
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
            parsed = parsed_schema(answer.texts)
        except ValueError as error:
            self._in_vain[number] = str(error)
        else:
            same = parsed.parsed == self._reader
            self._known[number] = WriterSchema(self._reader) if same else parsed
