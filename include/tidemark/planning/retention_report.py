"""Retention's reports: what it will remove, what it removed, and why the rest stays.

A run writes one for the table and one for raw, below the topic's ledger. An object may only be removed if the newest
report that is a day old names it, so that a person can see what will go, and stop it.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import ClassVar, Final, Literal

from pydantic import AwareDatetime, Field

from tidemark.config import Duration
from tidemark.errors import FormatError
from tidemark.formats import object_sizes
from tidemark.formats.base import Model, StoredObject
from tidemark.store import put_once
from tidemark.table.delta_table import TopicTable
from tidemark.timestamps import stamp

REVIEW: Final = timedelta(days=1)
"""How long a report must have named an object before retention removes it."""

Subject = Literal["table", "raw"]


class DateGoes(Model):
    """A date of the table that is past: its live files, and those of quarantined and filtered rows (``aside``)."""

    dt: str
    files: int = Field(ge=0)
    rows: int = Field(ge=0)
    bytes: int = Field(ge=0)
    aside: int = Field(default=0, ge=0)
    removed: bool = False


class PartitionGoes(Model):
    """The segments of ``[start, end)`` that may go, and why what follows stays; ``removed_to`` is how far they went.

    ``leftover`` objects are those that an earlier run should have deleted, but was killed before.
    """

    incarnation: int = Field(ge=0)
    partition: int = Field(ge=0)
    start: int = Field(default=0, ge=0)
    end: int = Field(default=0, ge=0)
    segments: int = Field(default=0, ge=0)
    bytes: int = Field(default=0, ge=0)
    removed_to: int = Field(default=0, ge=0)
    leftover: int = Field(default=0, ge=0)
    stays: str = ""


class RetentionReport(StoredObject):
    """``retention/<subject>/<time>-<n>.json``. ``reviewed`` is the key of the report that allowed what was removed."""

    most_bytes: ClassVar[int] = object_sizes.REPORT

    cluster: str
    topic: str
    table: str
    subject: Subject
    at: AwareDatetime
    by: str
    window: Duration | None
    dry_run: bool
    ledger_n: int
    reviewed: str = ""
    dates: tuple[DateGoes, ...] = ()
    partitions: tuple[PartitionGoes, ...] = ()

    def text(self) -> str:
        """The report for a person, a line each."""
        kept = "for ever" if self.window is None else f"for {self.window / timedelta(days=1):g} days"
        mode = "dry run, nothing was removed" if self.dry_run else f"reviewed in {self.reviewed or 'no report yet'}"
        lines = [f"{self.cluster}/{self.topic}: {self.subject} is kept {kept}; {mode}"]
        for day in self.dates:
            went = "removed" if day.removed else "past"
            size = f"{day.rows} rows in {day.files} files, {day.bytes} bytes"
            lines.append(f"  dt={day.dt}: {went}: {size}; {day.aside} files of refused or filtered rows")
        for one in self.partitions:
            line = f"  incarnation {one.incarnation} partition {one.partition}: "
            if one.segments:
                line += f"{one.segments} segments past, offsets {one.start} to {one.end - 1}, {one.bytes} bytes"
                line += f", removed up to {one.removed_to - 1}; " if one.removed_to else "; "
            line += f"{one.leftover} objects that an earlier run left; " if one.leftover else ""
            lines.append(line + one.stays)
        return "\n".join(lines)


def write_report(table: TopicTable, report: RetentionReport) -> str:
    """Write ``report`` and return its key."""
    key = report_key(table, report)
    put_once(table.store, key, report.to_bytes())
    return key


def report_key(table: TopicTable, report: RetentionReport) -> str:
    """The key of ``report`` in the lake's store."""
    return f"{table.keys.retention(report.subject)}{stamp(report.at)}-{report.ledger_n}.json"


def reviewed(table: TopicTable, subject: Subject, now: datetime) -> tuple[str, RetentionReport] | None:
    """(key, report) of the newest report on ``subject`` that is a day old; None if there is none.

    Raises:
        FormatError: it does not parse, or is another topic's.
    """
    folder, limit = table.keys.retention(subject), stamp(now - REVIEW)
    keys = [one.key for one in table.store.list(folder) if one.key.removeprefix(folder).partition("-")[0] <= limit]
    if not keys:
        return None
    found = RetentionReport.load(table.store, keys[-1])
    if (found.subject, found.cluster, found.topic) != (subject, table.topic.cluster, table.topic.topic):
        raise FormatError(keys[-1], f"is a report on {found.subject} of {found.cluster}/{found.topic}")
    return keys[-1], found
