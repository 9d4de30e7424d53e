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
    "erased_unapproved",
]
"""The kind of a difference; a later version may find others.

* ``missing_file``, ``unreadable_file``: a live file of the table, or a valid file of quarantine, cannot be read
* ``unknown_file``: no valid evidence names a live file
* ``stray_rows``: a file has rows of another partition, or of offsets that its evidence does not have
* ``rows_differ``: the table, or quarantine, has other rows of a date than raw; where raw is gone, than the evidence
* ``columns_differ``: a column outside the hash of a row has other values than raw
* ``evidence_differs``: the evidence gives offsets another class, date or hash than raw
* ``offsets_unaccounted``: the evidence gives offsets no class, or several
* ``raw_unreadable``: a segment does not hold the bytes that its manifest describes
* ``raw_lacks``: rows landed from a pack, and the segment that has replaced the pack does not have them
* ``count_differs``: the Delta log or the ledger counts other rows than there are
* ``catalog_differs``: a catalog lists other files, or a snapshot of another writer
* ``erased_unapproved``: evidence calls offsets erased that no mask names whose requests two people made and approved
"""


class AuditFinding(Model):
    """One difference. ``offsets`` are half-open, and as exact as possible; ``dt`` is empty if there is none."""

    kind: str
    incarnation: int | None = None
    partition: int | None = None
    dt: str = ""
    offsets: tuple[tuple[int, int], ...] = ()
    files: tuple[str, ...] = ()
    detail: str

    def text(self) -> str:
        """One line for a person."""
        parts = [] if self.partition is None else [f"incarnation {self.incarnation} partition {self.partition}"]
        parts += [f"dt={self.dt}"] if self.dt else []
        spans = ", ".join(f"{start} to {end - 1}" for start, end in self.offsets)
        parts += [f"offsets {spans}"] if spans else []
        parts += list(self.files)
        return f"{self.kind}: {'; '.join(parts)}: {self.detail}"


class AuditedPartition(Model):
    """The proof of one partition: ``offsets`` in all, and of these the offsets that raw has or lacks.

    ``fetched``: offsets of ``by_raw`` that an agent has fetched from brokers; the others are from their disks.
    ``by_evidence``: offsets with raw gone; the hashes in the evidence prove their rows.
    ``without_segment``: offsets that no segment ever held: deleted before upload, or acknowledged as lost.
    ``remote_tier``: those of them that only Kafka's own remote tier has, as far as ``offset.wm`` knows.
    ``expired``: offsets that retention removed from the table; raw, where it exists, proves their records.
    ``other_settings``: offsets that landed with other settings than the topics file has now; their records are
    compared with raw, and their dates and classes only with the evidence.
    """

    incarnation: int
    partition: int
    offsets: int = Field(ge=0)
    rows: int = Field(ge=0)
    by_raw: int = Field(ge=0)
    fetched: int = Field(default=0, ge=0)
    by_evidence: tuple[tuple[int, int], ...] = ()
    without_segment: int = Field(default=0, ge=0)
    remote_tier: int = Field(default=0, ge=0)
    expired: int = Field(default=0, ge=0)
    other_settings: int = Field(default=0, ge=0)


class AuditReport(StoredObject):
    """``audits/<dates>/<time>-<n>.json``: the table at ``ledger_n`` agrees with raw and evidence, or has findings.

    ``dates`` is empty if all were audited. At most ``MAX_FINDINGS`` findings are listed; ``more`` counts the others.
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
        """True if nothing differs."""
        return not self.findings

    def text(self) -> str:
        """The report for a person, with a line for each partition and finding."""
        rows = sum(partition.rows for partition in self.partitions)
        scope = f"dates {', '.join(self.dates)}" if self.dates else "all dates"
        lines = [f"{self.cluster}/{self.topic}: table {self.table} at ledger {self.ledger_n}, {scope}: {rows} rows"]
        for partition in self.partitions:
            gone = sum(end - start for start, end in partition.by_evidence)
            line = f"  incarnation {partition.incarnation} partition {partition.partition}: "
            line += f"{partition.offsets} offsets, {partition.rows} rows"
            line += f"; {partition.by_raw} compared with raw"
            if partition.by_raw:
                origins = {"disk": partition.by_raw - partition.fetched, "fetch": partition.fetched}
                line += f" (origin {', '.join(f'{origin}: {count}' for origin, count in origins.items() if count)})"
            if gone:
                spans = ", ".join(f"{start} to {end - 1}" for start, end in partition.by_evidence)
                line += f"; {gone} proved by evidence, as raw is gone: {spans}"
            if partition.without_segment:
                line += f"; {partition.without_segment} that no segment held"
            if partition.remote_tier:
                line += f", of which {partition.remote_tier} are only in Kafka's remote tier"
            if partition.expired:
                line += f"; {partition.expired} that retention took from the table"
            if partition.other_settings:
                other = f"{partition.other_settings} landed with other settings"
                line += f"; {other}: their dates were compared with evidence"
            lines.append(line)
        lines += [f"  {finding.text()}" for finding in self.findings]
        lines += [f"  and {self.more} more"] if self.more else []
        lines.append("the table is what raw and evidence say" if self.passed else "THE TABLE DIFFERS")
        return "\n".join(lines)


MAX_FINDINGS = 1000


class AuditFailure(Model):
    """The failure of the last audit of a date; without ``findings`` the audit could not be carried out.

    ``first`` is the text of the first finding, with ``raw_lacks`` before all others, and ``kind`` its kind. ``since``
    is the time of the first failed audit of the date, ``report`` a URL.
    """

    since: AwareDatetime
    at: AwareDatetime
    findings: int = Field(default=0, ge=0)
    first: str
    kind: str | None = None
    partition: int | None = None
    start: int | None = None
    end: int | None = None
    report: str = ""


class AuditVerdict(StoredObject):
    """The failed last audits of a topic by date. The empty date is the table as a whole.

    A successful audit of the date, or of all dates, clears it.
    """

    most_bytes: ClassVar[int] = object_sizes.REPORT

    cluster: str
    topic: str
    audited_at: AwareDatetime
    failed: dict[str, AuditFailure] = Field(default_factory=dict)

    def after(self, report: AuditReport, url: str) -> AuditVerdict:
        """The verdict after ``report``. A finding without a date counts for the first audited date."""
        by_date: dict[str, list[AuditFinding]] = {}
        for finding in report.findings:
            by_date.setdefault(finding.dt or next(iter(report.dates), ""), []).append(finding)
        kept = {dt: failure for dt, failure in self.failed.items() if report.dates and dt not in report.dates}
        failed = {dt: self._failure(dt, findings, report, url) for dt, findings in by_date.items()}
        return self.model_copy(update={"failed": kept | failed, "audited_at": report.started_at})

    def without(self, dates: Collection[str], reason: str, at: datetime) -> AuditVerdict:
        """The verdict after a failed attempt to audit ``dates``, or all dates if there are none."""
        failed = {
            dt: AuditFailure(since=self.failed[dt].since if dt in self.failed else at, at=at, first=reason)
            for dt in (sorted(dates) or [""])
        }
        return self.model_copy(update={"failed": self.failed | failed, "audited_at": at})

    def _failure(self, dt: str, findings: list[AuditFinding], report: AuditReport, url: str) -> AuditFailure:
        first = next((finding for finding in findings if finding.kind == "raw_lacks"), findings[0])
        known = self.failed.get(dt)
        start, end = first.offsets[0] if first.offsets else (None, None)
        return AuditFailure(
            since=known.since if known else report.started_at,
            at=report.started_at,
            findings=len(findings),
            first=first.text(),
            kind=first.kind,
            partition=first.partition,
            start=start,
            end=end,
            report=url,
        )
