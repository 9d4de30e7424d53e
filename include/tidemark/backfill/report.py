"""A backfill's report: its parts as they lie in the store, among them its outcome, and the result of a comparison.

One task writes each part, so parts are never merged, and a report can be read during the run. The outcome has the
records of each date before and after. The result of a comparison is for a person and, as JSON, for programs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal, NamedTuple, TypeVar

from pydantic import AwareDatetime, Field

from tidemark.backfill.preview import Preview
from tidemark.backfill.request import BackfillRequest
from tidemark.errors import NotFound
from tidemark.formats import object_sizes
from tidemark.formats.base import Model, StoredObject
from tidemark.formats.table.plan import RunPlan, RunProgress, RunResult
from tidemark.store import put_over
from tidemark.table.delta_table import TopicTable
from tidemark.table.evidence import PARSED, Kept, read_evidence


class Approval(StoredObject):
    """``reports/<name>/approval-<attempt>.json``: the reason that approval is needed, and the answer, if any."""

    why: str
    approved: bool | None = None
    by: str = ""
    at: AwareDatetime


class RecordCounts(Model):
    """Records of a date by class."""

    landed: int = 0
    quarantined: int = 0
    filtered: int = 0


class DateChange(Model):
    """The records of a date (ISO, empty for rows without one) that the run replaced, and their replacements."""

    dt: str
    before: RecordCounts
    after: RecordCounts


class BackfillOutcome(StoredObject):
    """``reports/<name>/outcome-<attempt>.json``.

    ``landed``: ledger ``ledger_n`` has the rows. ``stale``: the table has moved on since the dry run, and nothing was
    committed. ``empty``: nothing could be done. ``failed``: the job ended without a result; its log says why, and
    ``dates`` are those that have landed nevertheless, if each had a commit of its own.
    """

    most_bytes: ClassVar[int] = object_sizes.REPORT

    status: Literal["landed", "stale", "empty", "failed"]
    attempt: int
    ledger_n: int | None = None
    rows: int = 0
    files: int = 0
    bytes_read: int = 0
    seconds: float = 0.0
    dates: tuple[DateChange, ...] = ()


def outcome_of(table: TopicTable, preview: Preview, parts: Sequence[RunPlan] = ()) -> BackfillOutcome:
    """The outcome of the plan that ``preview`` shows; ``parts`` are those that have landed, if it was made by date.

    The numbers count the rows that the run itself replaced, and none that ingestion landed meanwhile. A commit is
    refused if those rows are no longer the ones of the dry run.
    """
    result = RunResult.load_or_none(table.store, table.keys.result(preview.attempt))
    if result is None:
        return BackfillOutcome(status="failed", attempt=preview.attempt, dates=_changes(table, preview, parts))
    landed = result.status == "landed"
    return BackfillOutcome(
        status=result.status,
        attempt=preview.attempt,
        ledger_n=result.ledger_n if landed else None,
        rows=result.rows,
        files=result.files,
        bytes_read=result.bytes_read,
        seconds=round(sum(result.seconds.values()), 3),
        dates=_changes(table, preview, parts or (None,)) if landed else (),
    )


def _changes(table: TopicTable, preview: Preview, parts: Sequence[RunPlan | None]) -> tuple[DateChange, ...]:
    """The dates of ``parts`` whose evidence is there; None stands for the whole plan."""
    before = {
        shown.dt: RecordCounts(landed=shown.rows, quarantined=shown.quarantined, filtered=shown.filtered)
        for shown in preview.dates
    }
    after: dict[str, Counter[str]] = {}
    for part in parts:
        attempt = preview.attempt if part is None else part.attempt
        try:
            evidence = read_evidence(table, attempt).select(["class", "rows", "dt", "attempt"])
        except NotFound:
            if part is None:
                raise
            continue  # a fold has taken it over
        for dt in before if part is None else part.dates:
            after.setdefault(dt, Counter())
        for row in evidence.to_pylist():
            if row["attempt"] == attempt and row["class"] in PARSED:
                after.setdefault(row["dt"].isoformat() if row["dt"] else "", Counter())[row["class"]] += row["rows"]
    return tuple(
        DateChange(dt=dt, before=before.get(dt, RecordCounts()), after=RecordCounts(**counts))
        for dt, counts in sorted(after.items())
    )


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
