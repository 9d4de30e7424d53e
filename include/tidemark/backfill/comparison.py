"""What a rebuild would change, row by row: found by a comparison, for a person and as JSON."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from tidemark.formats import object_sizes
from tidemark.formats.base import Model, StoredObject
from tidemark.table.evidence import Kept


class Differing(Model):
    """How the records of a class (landed, quarantined, filtered) and date of a partition would change.

    ``before`` and ``after`` are all that there are, as they are and as raw gives them now; ``changed`` counts landed
    rows with other values by column; ``offsets`` are the lowest of each. Which filtered ones differ is not known, as
    they lie nowhere: ``others`` if their number is the same.
    """

    incarnation: int
    partition: int
    dt: str
    kind: Kept
    before: int
    after: int
    only_after: int
    only_before: int
    changed: dict[str, int] = Field(default_factory=dict)
    others: bool = False
    offsets: dict[str, tuple[int, ...]] = Field(default_factory=dict)

    def text(self) -> str:
        """One line for a person."""
        where = f"incarnation {self.incarnation} partition {self.partition} dt={self.dt or 'none'} {self.kind}"
        parts = [f"{self.before} before, {self.after} after"]
        for name, rows in (("only_before", self.only_before), ("only_after", self.only_after)):
            parts += [f"{rows} {name.replace('_', ' ')}{self._at(name)}"] if rows else []
        parts += ["but the records differ"] if self.others else []
        parts += [f"{rows} with other values in {name}" for name, rows in sorted(self.changed.items())]
        return f"{where}: {', '.join(parts)}{self._at('changed')}"

    def _at(self, name: str) -> str:
        offsets = self.offsets.get(name, ())
        return f" (from offset {', '.join(map(str, offsets))} on)" if offsets else ""


class Comparison(StoredObject):
    """``reports/<name>/comparison-<attempt>.json``: what was found; ``rows`` of the table were compared."""

    most_bytes: ClassVar[int] = object_sizes.REPORT

    cluster: str
    topic: str
    table: str
    ledger_n: int
    configuration: str
    code: str
    dates: tuple[str, ...]
    rows: int
    bytes_read: int
    differences: tuple[Differing, ...] = ()

    def text(self) -> str:
        """The comparison for a person, a line each."""
        dates = ", ".join(one or "none" for one in self.dates)
        head = f"{self.cluster}/{self.topic}: table {self.table} at ledger {self.ledger_n}"
        lines = [f"{head}, dates {dates}: {self.rows} rows", *(f"  {one.text()}" for one in self.differences)]
        return "\n".join([*lines, "THE ROWS DIFFER" if self.differences else "the rows are the same"])
