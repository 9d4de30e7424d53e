"""Retention's reports: the objects that it will remove or has removed, and the reasons that others stay.

A run writes one for the table and one for raw, below the topic's ledger. An object may only be removed if the newest
report that is a day old names it, so that a person can see the coming removal, and stop it.
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
"""Time for which a report must have named an object before retention removes it."""

Subject = Literal["table", "raw"]


class DateGoes(Model):
    """A date of the table that is past: its live files, and its files of quarantined and filtered rows (``aside``)."""

    dt: str
    files: int = Field(ge=0)
    rows: int = Field(ge=0)
    bytes: int = Field(ge=0)
    aside: int = Field(default=0, ge=0)
    removed: bool = False


class PartitionGoes(Model):
    """The segments of ``[start, end)`` that may be removed, and the reason that the next one ``stays``.

    ``removed_to`` is the end of the removed segments. ``leftover`` objects should have been deleted by an earlier run
    that was killed. Of these segments, ``others_logs`` logs of ``others_bytes`` are another system's: they stay.
    """

    incarnation: int = Field(ge=0)
    partition: int = Field(ge=0)
    start: int = Field(default=0, ge=0)
    end: int = Field(default=0, ge=0)
    segments: int = Field(default=0, ge=0)
    bytes: int = Field(default=0, ge=0)
    removed_to: int = Field(default=0, ge=0)
    leftover: int = Field(default=0, ge=0)
    others_logs: int = Field(default=0, ge=0)
    others_bytes: int = Field(default=0, ge=0)
    stays: str = ""


class RetentionReport(StoredObject):
    """``retention/<subject>/<time>-<n>.json``. ``reviewed`` is the key of the report that allowed the removal."""

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
        """The report for a person, with a line for each date and partition."""
        kept = "for ever" if self.window is None else f"for {self.window / timedelta(days=1):g} days"
        mode = "dry run, nothing was removed" if self.dry_run else f"reviewed in {self.reviewed or 'no report yet'}"
        lines = [f"{self.cluster}/{self.topic}: {self.subject} is kept {kept}; {mode}"]
        for day in self.dates:
            went = "removed" if day.removed else "past"
            size = f"{day.rows} rows in {day.files} files, {day.bytes} bytes"
            lines.append(f"  dt={day.dt}: {went}: {size}; {day.aside} files of refused or filtered rows")
        for partition in self.partitions:
            line = f"  incarnation {partition.incarnation} partition {partition.partition}: "
            if partition.segments:
                offsets = f"offsets {partition.start} to {partition.end - 1}"
                line += f"{partition.segments} segments past, {offsets}, {partition.bytes} bytes"
                line += f", removed up to {partition.removed_to - 1}; " if partition.removed_to else "; "
            line += f"{partition.leftover} objects that an earlier run left; " if partition.leftover else ""
            if partition.others_logs:
                line += (
                    f"{partition.others_logs} of their logs ({partition.others_bytes} bytes) belong to Kafka's remote"
                )
                line += " tier, which alone deletes them; "
            lines.append(line + partition.stays)
        return "\n".join(lines)


def write_report(table: TopicTable, report: RetentionReport) -> str:
    """Write ``report`` and return its key."""
    key = f"{table.keys.retention(report.subject)}{stamp(report.at)}-{report.ledger_n}.json"
    put_once(table.store, key, report.to_bytes())
    return key


def reviewed(table: TopicTable, subject: Subject, now: datetime) -> tuple[str, RetentionReport] | None:
    """(key, report) of the newest report on ``subject`` that is a day old, or None.

    Raises:
        FormatError: it does not parse, or is another topic's.
    """
    folder, limit = table.keys.retention(subject), stamp(now - REVIEW)
    keys = [info.key for info in table.store.list(folder) if info.key.removeprefix(folder).partition("-")[0] <= limit]
    if not keys:
        return None
    report = RetentionReport.load(table.store, keys[-1])
    if (report.subject, report.cluster, report.topic) != (subject, table.topic.cluster, table.topic.topic):
        raise FormatError(keys[-1], f"is a report on {report.subject} of {report.cluster}/{report.topic}")
    return keys[-1], report
