"""The envelopes of change records: the columns that a parser makes of them, and the words in them.

A record without a value is the tombstone that follows a deletion. One with a value and without an operation, such as a
row that a transformation has unwrapped or the metadata of a transaction, changes no row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from tidemark.parsers.settings import JsonParser
from tidemark.topics import TopicSettings

if TYPE_CHECKING:
    import pyarrow as pa


class Envelope(NamedTuple):
    """The column ``op`` names the operation, one of ``sets`` or ``deletes``; records of others change no row.

    The column ``row`` has the row after the change, if the parser makes a struct of it, and ``before`` that before.
    Records of ``truncates`` remove all rows. The source also writes ``others``, which change none.
    """

    op: str
    row: str
    before: str
    sets: frozenset[str]
    deletes: str
    truncates: str = ""
    others: frozenset[str] = frozenset()

    @property
    def known(self) -> tuple[str, ...]:
        """All operations that the source writes."""
        return (*self.changes, *([self.truncates] if self.truncates else []), *sorted(self.others))

    @property
    def changes(self) -> tuple[str, ...]:
        """The operations that change the row of a key."""
        return (*sorted(self.sets), self.deletes)

    def unwraps(self, parsed: pa.Schema) -> bool:
        """True if the parser, whose columns are ``parsed``, makes a struct of the row."""
        from pyarrow import types

        at = parsed.get_field_index(self.row)
        return at >= 0 and types.is_struct(parsed.field(at).type)

    def path_in_state(self, parsed: pa.Schema, column: str) -> str:
        """The path in a state of the ``parsed`` column of the topic's table; empty if the state lacks it."""
        top, _, path = column.partition(".")
        if not self.unwraps(parsed):
            return column
        return path if top == self.row else ""


ENVELOPES: Final = {
    "debezium": Envelope("op", "after", "before", frozenset("cru"), "d", "t", frozenset("m")),
    "maxwell": Envelope(
        "type",
        "data",
        "data",
        frozenset({"insert", "update", "bootstrap-insert"}),
        "delete",
        others=frozenset(
            {"bootstrap-start", "bootstrap-complete"}
            | {f"{kind}-{change}" for kind in ("table", "database") for change in ("create", "alter", "drop")}
        ),
    ),
}
"""By ``state.envelope``."""


def before_columns(topic: TopicSettings) -> dict[str, str]:
    """By the columns of the state's key that JSON's parser takes from the row: those of the path in the one before.

    Other parsers make structs of both.
    """
    envelope = ENVELOPES.get(topic.state.envelope) if topic.state else None
    if topic.state is None or envelope is None or not isinstance(topic.parser, JsonParser):
        return {}
    places = {column.keys: column.name for column in topic.parser.columns}
    found = {name: places.get((envelope.before, *json_path(topic, name)[1:])) for name in topic.state.key}
    return {name: same for name, same in found.items() if same is not None and same != name}


def json_path(topic: TopicSettings, name: str) -> tuple[str, ...]:
    """The path of JSON's column ``name`` in a document; empty if the parser has no such column."""
    columns = topic.parser.columns if isinstance(topic.parser, JsonParser) else ()
    return next((column.keys for column in columns if column.name == name), ())
