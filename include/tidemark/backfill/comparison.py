"""The rows that a rebuild would change: the result of a comparison, for a person and as JSON."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from tidemark.formats import object_sizes
from tidemark.formats.base import Model, StoredObject
from tidemark.table.evidence import Kept


class Differing(Model):
    """Differences among the records of a class (landed, quarantined, filtered) and date of a partition.

    ``before`` counts the records as they are, ``after`` the records that raw gives now. ``changed`` counts landed rows
    with other values, by column; ``offsets`` are the lowest of each kind. Filtered records are stored nowhere:
    ``others`` is true if they differ although their number is equal.
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
        place = f"incarnation {self.incarnation} partition {self.partition} dt={self.dt or 'none'} {self.kind}"
        parts = [f"{self.before} before, {self.after} after"]
        for name, rows in (("only_before", self.only_before), ("only_after", self.only_after)):
            parts += [f"{rows} {name.replace('_', ' ')}{self._at(name)}"] if rows else []
        parts += ["but the records differ"] if self.others else []
        parts += [f"{rows} with other values in {name}" for name, rows in sorted(self.changed.items())]
        return f"{place}: {', '.join(parts)}{self._at('changed')}"

    def _at(self, name: str) -> str:
        offsets = self.offsets.get(name, ())
        return f" (from offset {', '.join(map(str, offsets))} on)" if offsets else ""


class Comparison(StoredObject):
    """``reports/<name>/comparison-<attempt>.json``: the differences in ``rows`` compared rows of the table."""

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
        """The comparison for a person, with a line for each difference."""
        dates = ", ".join(dt or "none" for dt in self.dates)
        head = f"{self.cluster}/{self.topic}: table {self.table} at ledger {self.ledger_n}"
        lines = [f"{head}, dates {dates}: {self.rows} rows", *(f"  {diff.text()}" for diff in self.differences)]
        return "\n".join([*lines, "THE ROWS DIFFER" if self.differences else "the rows are the same"])
