"""Parts that the merges of all kinds of schemas share, and the settings of a topic with the schema that was adopted.

A merge of the adopted definition and a newer schema reads the records of both: it has all columns that were ever
adopted, with their types, and the columns that the newer schema adds.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tidemark.errors import ConfigError
from tidemark.formats.base import Version
from tidemark.formats.keys import TableKeys
from tidemark.formats.table.schema_state import ChangeKind, Definition, SchemaChange, SchemaState
from tidemark.parsers.settings import FollowingParser, SettingsFile, check_names, check_struct, followed_by
from tidemark.store import Store
from tidemark.topics import TopicSettings

NESTED = "is new within a struct, so all rows are written again to have it"


class Merge(NamedTuple):
    """A definition, and the differences of the newer schema from the adopted one; the definition lacks some of them.

    With ``widen`` the definition has the ``wider`` columns, too.
    """

    definition: bytes
    changes: tuple[SchemaChange, ...]


class Changes:
    """Collects changes. ``columns`` are the names of the existing columns."""

    def __init__(self, columns: list[str]) -> None:
        self._columns = list(columns)
        self.found: list[SchemaChange] = []

    def note(self, path: str, kind: ChangeKind, detail: str) -> None:
        """Add a change."""
        self.found.append(SchemaChange(path=path, kind=kind, detail=detail))

    def takes(self, column: str, detail: str) -> bool:
        """True if a column of this name may be added; the addition, or the reason against it, becomes a change."""
        try:
            check_names([*self._columns, column])
        except ValueError as error:
            self.note(column, "misfit", str(error).removeprefix(f"column {column!r}: "))
            return False
        self._columns.append(column)
        self.note(column, "added", detail)
        return True


def clash_of(name: str, beside: Iterable[str]) -> str | None:
    """Why a struct with the fields ``beside`` can have no field ``name``, if so."""
    try:
        check_struct([*beside, name])
    except ValueError as error:
        return str(error)
    return None


def read_state(store: Store, keys: TableKeys) -> Version[SchemaState] | None:
    """The schema adopted for a topic; None if there is none. Raises StoreError and FormatError."""
    return SchemaState.load_version_or_none(store, keys.schema)


def with_adopted(topic: TopicSettings, store: Store, keys: TableKeys) -> TopicSettings:
    """``topic`` with its adopted schema, if it follows one and has adopted any."""
    if followed_by(topic.parser) is None:
        return topic
    state = read_state(store, keys)
    if state is None or state.value.kind != topic.parser.kind:
        return topic
    return with_definition(topic, state.value.adopted, state.value.subject)


def with_definition(topic: TopicSettings, definition: Definition, subject: str) -> TopicSettings:
    """``topic``, which follows ``subject``, with ``definition``. Raises ConfigError if that cannot be read."""
    parser = topic.parser
    assert isinstance(parser, FollowingParser)
    name = f"{subject}, version {definition.version}"
    try:
        return topic.model_copy(update={"parser": parser.adopting(SettingsFile(name, definition.data))})
    except ValueError as error:
        raise ConfigError(f"topic {topic.cluster}/{topic.topic}", [("parser.schema", f"{name}: {error}")]) from error
