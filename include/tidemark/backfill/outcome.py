"""The outcome of a backfill: its approval, and the records of each date before and after."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import AwareDatetime

from tidemark.backfill.preview import Preview
from tidemark.errors import NotFound
from tidemark.formats import object_sizes
from tidemark.formats.base import Model, StoredObject
from tidemark.formats.table.plan import RunPlan, RunResult
from tidemark.table.delta_table import TopicTable
from tidemark.table.evidence import PARSED, read_evidence


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
