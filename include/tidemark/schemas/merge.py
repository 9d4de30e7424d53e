"""What the merges of all kinds of schemas share.

A merge makes of the adopted definition and a newer schema one that reads the records of both: it has all columns that
were ever adopted, with their types, and those that the newer schema adds.
"""

from __future__ import annotations

from typing import NamedTuple

from tidemark.formats.schema_state import ChangeKind, SchemaChange
from tidemark.parsers.settings import check_names

NESTED = "is new within a struct, so all rows are written again to have it"


class Merge(NamedTuple):
    """A definition, and what the newer schema has otherwise than the adopted one; some of it is not in the definition.

    With ``widen`` the definition has the ``wider`` columns, too.
    """

    definition: bytes
    changes: tuple[SchemaChange, ...]


class Changes:
    """Collects changes. ``columns`` are the names of the columns that there are."""

    def __init__(self, columns: list[str]) -> None:
        self._columns = list(columns)
        self.found: list[SchemaChange] = []

    def note(self, path: str, kind: ChangeKind, detail: str) -> None:
        """A change more."""
        self.found.append(SchemaChange(path=path, kind=kind, detail=detail))

    def takes(self, column: str, detail: str) -> bool:
        """Whether a column may be added, by its name; notes it, or why not."""
        try:
            check_names([*self._columns, column])
        except ValueError as error:
            self.note(column, "misfit", str(error).removeprefix(f"column {column!r}: "))
            return False
        self._columns.append(column)
        self.note(column, "added", detail)
        return True
