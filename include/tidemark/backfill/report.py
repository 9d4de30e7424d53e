"""A backfill's report: its parts as they lie in the store, among them the result of a comparison.

One task writes each part, so parts are never merged, and a report can be read during the run. The result of a
comparison is for a person and, as JSON, for programs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, NamedTuple, TypeVar

from pydantic import Field

from tidemark.backfill.outcome import Approval, BackfillOutcome
from tidemark.backfill.preview import Preview
from tidemark.backfill.request import BackfillRequest
from tidemark.formats import object_sizes
from tidemark.formats.base import Model, StoredObject
from tidemark.formats.table.plan import RunProgress
from tidemark.store import put_over
from tidemark.table.delta_table import TopicTable
from tidemark.table.evidence import Kept

Object = TypeVar("Object", bound=StoredObject)


class BackfillReport(NamedTuple):
    """The parts that exist so far."""

    request: BackfillRequest
    preview: Preview | None
    comparison: Comparison | None
    approval: Approval | None
    progress: RunProgress | None
    outcome: BackfillOutcome | None

    @property
    def state(self) -> str:
        """The state of the run in one or two words."""
        if self.outcome:
            return self.outcome.status
        if self.preview is None:
            return "looking"
        if self.preview.empty:
            return "nothing to do"
        if self.approval and self.approval.approved is None:
            return "waiting for approval"
        if self.approval and not self.approval.approved:
            return "rejected"
        if self.request.mode == "compare" and self.comparison:
            return "compared"
        return "dry run" if self.request.dry_run else "running"

    @property
    def done(self) -> bool:
        """True if the report is complete."""
        return self.state not in {"looking", "waiting for approval", "running"}

    def as_json(self) -> dict[str, object]:
        """All parts as plain data, and the state."""
        parts = {name: None if part is None else part.model_dump(mode="json") for name, part in self._asdict().items()}
        return {"state": self.state, "done": self.done, **parts}

    @classmethod
    def from_json(cls, parts: Mapping[str, object]) -> BackfillReport:
        """The report that :meth:`as_json` turned into ``parts``."""

        def part(name: str, kind: type[Object]) -> Object | None:
            return None if parts[name] is None else kind.model_validate(parts[name])

        return cls(
            request=BackfillRequest.model_validate(parts["request"]),
            preview=part("preview", Preview),
            comparison=part("comparison", Comparison),
            approval=part("approval", Approval),
            progress=part("progress", RunProgress),
            outcome=part("outcome", BackfillOutcome),
        )


def read_report(table: TopicTable, name: str) -> BackfillReport:
    """The report ``name`` on the topic of ``table``. Raises NotFound."""
    key = table.keys.report(name, "request")
    request = BackfillRequest.load(table.store, key)
    preview = Preview.load_or_none(table.store, table.keys.report(name, "preview"))
    if preview is None or not preview.plan:
        return BackfillReport(request, preview, None, None, None, None)
    attempt = preview.attempt
    return BackfillReport(
        request=request,
        preview=preview,
        comparison=Comparison.load_or_none(table.store, table.keys.report(name, "comparison", attempt)),
        approval=Approval.load_or_none(table.store, table.keys.report(name, "approval", attempt)),
        progress=RunProgress.load_or_none(table.store, table.keys.progress(attempt)),
        outcome=BackfillOutcome.load_or_none(table.store, table.keys.report(name, "outcome", attempt)),
    )


def write_part(table: TopicTable, name: str, part: str, value: StoredObject, attempt: int | None = None) -> None:
    """Write a part of a report. A repeated task overwrites its part; another attempt has an object of its own."""
    put_over(table.store, table.keys.report(name, part, attempt), value.to_bytes())


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
