"""The envelopes of change records: the columns that a parser makes of them, and the words in them.

A record of an envelope without its operation is the tombstone that follows a deletion.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    import pyarrow as pa


class Envelope(NamedTuple):
    """The column ``op`` names the operation, one of ``sets`` or ``deletes``; records of others change no row.

    The column ``row`` has the row after the change, if the parser makes a struct of it, and ``before`` that before.
    Records of ``truncates`` remove all rows.
    """

    op: str
    row: str
    before: str
    sets: frozenset[str]
    deletes: str
    truncates: str = ""

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
    "debezium": Envelope("op", "after", "before", frozenset("cru"), "d", "t"),
    "maxwell": Envelope("type", "data", "data", frozenset({"insert", "update", "bootstrap-insert"}), "delete"),
}
"""By ``state.envelope``."""
