"""The outcome of a backfill: its approval, and the records of each date before and after."""

from __future__ import annotations

from collections import Counter
from typing import ClassVar, Literal

from pydantic import AwareDatetime

from tidemark.backfill.preview import Preview
from tidemark.formats import object_sizes
from tidemark.formats.base import Model, StoredObject
from tidemark.formats.table.plan import RunResult
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
    committed. ``empty``: nothing could be done. ``failed``: the job ended without a result; its log says why.
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


def outcome_of(table: TopicTable, preview: Preview) -> BackfillOutcome:
    """The outcome of the plan that ``preview`` shows.

    The numbers count the rows that the run itself replaced, and none that ingestion landed meanwhile. A commit is
    refused if those rows are no longer the ones of the dry run.
    """
    result = RunResult.load_or_none(table.store, table.keys.result(preview.attempt))
    if result is None:
        return BackfillOutcome(status="failed", attempt=preview.attempt)
    landed = result.status == "landed"
    return BackfillOutcome(
        status=result.status,
        attempt=preview.attempt,
        ledger_n=result.ledger_n if landed else None,
        rows=result.rows,
        files=result.files,
        bytes_read=result.bytes_read,
        seconds=round(sum(result.seconds.values()), 3),
        dates=_changes(table, preview) if landed else (),
    )


def _changes(table: TopicTable, preview: Preview) -> tuple[DateChange, ...]:
    before = {
        shown.dt: RecordCounts(landed=shown.rows, quarantined=shown.quarantined, filtered=shown.filtered)
        for shown in preview.dates
    }
    after: dict[str, Counter[str]] = {}
    columns = ["class", "rows", "dt", "attempt"]
    for row in read_evidence(table, preview.attempt).select(columns).to_pylist():
        if row["attempt"] == preview.attempt and row["class"] in PARSED:
            after.setdefault(row["dt"].isoformat() if row["dt"] else "", Counter())[row["class"]] += row["rows"]
    return tuple(
        DateChange(dt=dt, before=before.get(dt, RecordCounts()), after=RecordCounts(**after.get(dt, Counter())))
        for dt in sorted({*before, *after})
    )
