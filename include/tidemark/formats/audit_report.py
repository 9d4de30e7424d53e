"""The findings of an audit, which compares a table with its raw segments and with the evidence."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import ClassVar, Literal

from pydantic import AwareDatetime, Field

from tidemark.formats import object_sizes
from tidemark.formats.base import Model, StoredObject

Kind = Literal[
    "missing_file",
    "unreadable_file",
    "unknown_file",
    "stray_rows",
    "rows_differ",
    "columns_differ",
    "evidence_differs",
    "offsets_unaccounted",
    "raw_unreadable",
    "raw_lacks",
    "count_differs",
    "catalog_differs",
]
"""What is wrong.

* ``missing_file``, ``unreadable_file``: a live file of the table, or one of quarantine that counts, cannot be read
* ``unknown_file``: no evidence that counts names a live file
* ``stray_rows``: a file has rows of another partition, or of offsets that its evidence does not have
* ``rows_differ``: the table, or quarantine, has other rows of a date than raw; than the evidence, where raw is gone
* ``columns_differ``: a column that the hash of a row leaves out has other values than raw gives it
* ``evidence_differs``: the evidence gives offsets another class, date or hash than raw does
* ``offsets_unaccounted``: the evidence gives offsets no class, or more than one
* ``raw_unreadable``: a segment is there, and does not hold what its manifest says
* ``raw_lacks``: rows landed from a pack, and the segment that has replaced the pack does not have them
* ``count_differs``: the Delta log or the ledger counts other rows than there are
* ``catalog_differs``: a catalog lists other files, or others' snapshot
"""


class AuditFinding(Model):
    """One difference. ``offsets`` are half-open and as exact as could be told; ``dt`` is empty where there is none."""

    kind: Kind
    incarnation: int | None = None
    partition: int | None = None
    dt: str = ""
    offsets: tuple[tuple[int, int], ...] = ()
    files: tuple[str, ...] = ()
    detail: str

    def text(self) -> str:
        """One line for a person."""
        where = [] if self.partition is None else [f"incarnation {self.incarnation} partition {self.partition}"]
        where += [f"dt={self.dt}"] if self.dt else []
        spans = ", ".join(f"{start} to {end - 1}" for start, end in self.offsets)
        where += [f"offsets {spans}"] if spans else []
        where += list(self.files)
        return f"{self.kind}: {'; '.join(where)}: {self.detail}"


class AuditedPartition(Model):
    """What was proved of one partition: ``offsets`` in all, and of these the offsets that raw has or lacks.

    ``by_evidence`` are the offsets whose raw is gone: the hashes in the evidence prove their rows.
    ``without_segment`` are those that no segment ever held: deleted before upload, or acknowledged as lost.
    ``expired`` are those that retention removed from the table: raw, where it exists, proves their records.
    ``other_settings`` are those that landed with other settings than the topics file has now: their records are
    compared with raw, and their dates and classes only with the evidence.
    """

    incarnation: int
    partition: int
    offsets: int = Field(ge=0)
    rows: int = Field(ge=0)
    by_raw: int = Field(ge=0)
    by_evidence: tuple[tuple[int, int], ...] = ()
    without_segment: int = Field(default=0, ge=0)
    expired: int = Field(default=0, ge=0)
    other_settings: int = Field(default=0, ge=0)


class AuditReport(StoredObject):
    """``audits/<dates>/<time>-<n>.json``: the table at ``ledger_n`` is what raw and evidence say, or has findings.

    ``dates`` is empty if all were looked at. At most ``MAX_FINDINGS`` findings are listed; ``more`` counts the others.
    """

    most_bytes: ClassVar[int] = object_sizes.REPORT

    cluster: str
    topic: str
    table: str
    ledger_n: int
    started_at: AwareDatetime
    seconds: float
    bytes_read: int
    dates: tuple[str, ...] = ()
    partitions: tuple[AuditedPartition, ...] = ()
    findings: tuple[AuditFinding, ...] = ()
    more: int = 0

    @property
    def passed(self) -> bool:
        """Whether nothing differs."""
        return not self.findings

    def text(self) -> str:
        """The report for a person, a line each."""
        rows = sum(one.rows for one in self.partitions)
        scope = f"dates {', '.join(self.dates)}" if self.dates else "all dates"
        lines = [f"{self.cluster}/{self.topic}: table {self.table} at ledger {self.ledger_n}, {scope}: {rows} rows"]
        for one in self.partitions:
            gone = sum(end - start for start, end in one.by_evidence)
            line = f"  incarnation {one.incarnation} partition {one.partition}: {one.offsets} offsets, {one.rows} rows"
            line += f"; {one.by_raw} compared with raw"
            if gone:
                spans = ", ".join(f"{start} to {end - 1}" for start, end in one.by_evidence)
                line += f"; {gone} proved by evidence, as raw is gone: {spans}"
            if one.without_segment:
                line += f"; {one.without_segment} that no segment held"
            if one.expired:
                line += f"; {one.expired} that retention took from the table"
            if one.other_settings:
                line += f"; {one.other_settings} landed with other settings: their dates were compared with evidence"
            lines.append(line)
        lines += [f"  {one.text()}" for one in self.findings]
        lines += [f"  and {self.more} more"] if self.more else []
        lines.append("the table is what raw and evidence say" if self.passed else "THE TABLE DIFFERS")
        return "\n".join(lines)


MAX_FINDINGS = 1000


class AuditFailure(Model):
    """The failure of the last audit of a date; without ``findings`` the audit could not be carried out.

    ``first`` is the first finding in words, one of ``raw_lacks`` before all others, and ``kind`` its kind. ``since`` is
    when an audit of the date first failed, ``report`` a URL.
    """

    since: AwareDatetime
    at: AwareDatetime
    findings: int = Field(default=0, ge=0)
    first: str
    kind: Kind | None = None
    partition: int | None = None
    start: int | None = None
    end: int | None = None
    report: str = ""


class AuditVerdict(StoredObject):
    """The failed last audits of a topic by date. The empty date is the table as a whole.

    An audit of the date that passes clears it, and so does one of all dates.
    """

    most_bytes: ClassVar[int] = object_sizes.REPORT

    cluster: str
    topic: str
    audited_at: AwareDatetime
    failed: dict[str, AuditFailure] = Field(default_factory=dict)

    def after(self, report: AuditReport, url: str) -> AuditVerdict:
        """With what ``report`` says; a finding without a date counts for the first date that was audited."""
        by_date: dict[str, list[AuditFinding]] = {}
        for one in report.findings:
            by_date.setdefault(one.dt or next(iter(report.dates), ""), []).append(one)
        kept = {dt: one for dt, one in self.failed.items() if report.dates and dt not in report.dates}
        failed = {dt: self._failure(dt, found, report, url) for dt, found in by_date.items()}
        return self.model_copy(update={"failed": kept | failed, "audited_at": report.started_at})

    def without(self, dates: Collection[str], reason: str, at: datetime) -> AuditVerdict:
        """With the word that ``dates``, or all if there are none, could not be audited."""
        failed = {
            dt: AuditFailure(since=self.failed[dt].since if dt in self.failed else at, at=at, first=reason)
            for dt in (sorted(dates) or [""])
        }
        return self.model_copy(update={"failed": self.failed | failed, "audited_at": at})

    def _failure(self, dt: str, found: list[AuditFinding], report: AuditReport, url: str) -> AuditFailure:
        first, known = next((one for one in found if one.kind == "raw_lacks"), found[0]), self.failed.get(dt)
        start, end = first.offsets[0] if first.offsets else (None, None)
        return AuditFailure(
            since=known.since if known else report.started_at,
            at=report.started_at,
            findings=len(found),
            first=first.text(),
            kind=first.kind,
            partition=first.partition,
            start=start,
            end=end,
            report=url,
        )
