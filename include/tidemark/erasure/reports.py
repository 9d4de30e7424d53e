"""The reports of the passes of erasure: what each request found in a topic, and what became of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import ClassVar, Final, Literal

from pydantic import AwareDatetime, Field

from tidemark.formats import object_sizes
from tidemark.formats.base import Model, StoredObject
from tidemark.store import put_over
from tidemark.table.delta_table import TopicTable
from tidemark.words import plural

_SHOWN: Final = 100


class RequestOutcome(Model):
    """One request in one topic.

    ``erased``: its records are masked, and the table has none of them; for raw, see :class:`RawReport`. ``found``: a
    dry run found them. ``waiting``: a partition has not landed up to the request's end yet, or nobody has approved it.
    ``refused``: see ``detail``.
    ``records`` counts by place (``table``, ``raw``, ``state``), ``dates`` the rows of the table by date.
    """

    id: str
    status: Literal["erased", "found", "waiting", "refused"]
    detail: str = ""
    records: dict[str, int] = Field(default_factory=dict)
    dates: dict[str, int] = Field(default_factory=dict)


class Remaining(Model):
    """An object that holds masked records, or may hold records of a request unseen, and the reason.

    ``version``: only this former version of a deleted object. ``until``: the time at which it goes, or up to which a
    lock keeps it at least. ``approvals``: the SHA-256 of the approvals whose records it may hold; none if it may hold
    those of any request.
    """

    key: str
    why: str
    version: str | None = None
    until: AwareDatetime | None = None
    approvals: tuple[str, ...] = ()

    def __str__(self) -> str:
        version = f" (version {self.version})" if self.version else ""
        return f"{self.key}{version}: {self.why}{_until(self.until)}"


class RawReport(Model):
    """What a pass did in raw after the table's commit.

    Of the seals ``searched``, those ``rewritten`` lost ``records`` and have ``bytes`` now; ``deleted`` old ones went.
    """

    searched: int = Field(default=0, ge=0)
    rewritten: int = Field(default=0, ge=0)
    records: int = Field(default=0, ge=0)
    bytes: int = Field(default=0, ge=0)
    deleted: int = Field(default=0, ge=0)
    remaining: tuple[Remaining, ...] = ()

    def lines(self) -> list[str]:
        """The report for a person."""
        lines = []
        if self.rewritten or self.deleted:
            lines.append(
                f"  raw: {self.rewritten} segments lost {self.records} records, {self.deleted} old ones deleted"
            )
        if self.remaining:
            lines.append(f"  raw: {left(self.remaining)}: they hold erased records, or may")
            lines += [f"    {item}" for item in self.remaining[:_SHOWN]]
        return lines


class ErasureReport(StoredObject):
    """``erasures/<attempt>.json``.

    ``masked`` offsets are new; ``rows`` have left the table, its quarantine or its filtered rows. ``searched`` counts
    rows by place. ``unsearchable`` are batches that cannot be decoded, and values that a parser did not find;
    ``gone`` offsets are neither in a file nor in raw. ``remaining`` are the objects of the table that hold erased rows
    or sums of them, or may.
    """

    most_bytes: ClassVar[int] = object_sizes.REPORT

    cluster: str
    topic: str
    table: str
    attempt: int
    at: AwareDatetime
    by: str
    dry_run: bool
    ledger_n: int
    requests: tuple[RequestOutcome, ...] = ()
    masked: int = Field(default=0, ge=0)
    rows: int = Field(default=0, ge=0)
    searched: dict[str, int] = Field(default_factory=dict)
    bytes_read: int = Field(default=0, ge=0)
    unsearchable: int = Field(default=0, ge=0)
    gone: int = Field(default=0, ge=0)
    raw: RawReport = RawReport()
    remaining: tuple[Remaining, ...] = ()

    def text(self) -> str:
        """The report for a person, with a line for each request."""
        changed = f"{self.masked} offsets masked, {self.rows} rows gone"
        mode = "dry run, nothing was changed" if self.dry_run else changed
        lines = [f"{self.cluster}/{self.topic}: {mode}"]
        for request in self.requests:
            found = ", ".join(f"{count} in {place}" for place, count in sorted(request.records.items())) or "nothing"
            lines.append(f"  {request.id}: {request.status}, {request.detail or found}")
            lines += [f"    {dt}: {count} rows" for dt, count in sorted(request.dates.items())]
        if self.unsearchable:
            lines.append(f"  {self.unsearchable} batches or values could not be searched")
        if self.gone:
            lines.append(f"  {self.gone} offsets are not in raw any more")
        lines += self.raw.lines()
        if self.remaining:
            lines.append(f"  lake: {left(self.remaining)}: they hold erased rows, or may")
            lines += [f"    {item}" for item in self.remaining[:_SHOWN]]
        return "\n".join(lines)


def left(items: Sequence[Remaining]) -> str:
    """How many objects remain, and the last time up to which some do, if that is known."""
    last = max((item.until for item in items if item.until), default=None)
    return f"{plural(len(items), 'object')} left{', some' if last else ''}{_until(last)}"


def _until(time: datetime | None) -> str:
    return f" until {time:%Y-%m-%d %H:%M} UTC" if time else ""


def write_report(table: TopicTable, report: ErasureReport) -> None:
    """Write ``report``."""
    put_over(table.store, table.keys.erasure(report.attempt), report.to_bytes())


def reports_of(table: TopicTable) -> Iterator[ErasureReport]:
    """All reports of a topic. Raises FormatError and StoreError."""
    for info in table.store.list(table.keys.erasures):
        yield ErasureReport.load(table.store, info.key)


def last_pass(reports: Iterable[ErasureReport]) -> ErasureReport | None:
    """The newest of ``reports`` that is not of a dry run, None if there is none."""
    return max((report for report in reports if not report.dry_run), key=lambda report: report.at, default=None)


def done_in(reports: Iterable[ErasureReport]) -> frozenset[str]:
    """The ids of the requests whose records are erased from the topic of the ``reports``."""
    return frozenset(request.id for report in reports for request in report.requests if request.status == "erased")


def last_erasure(table: TopicTable) -> int:
    """The number of the ledger from which on the table has no row that a pass has erased; 0 without a pass.

    Raises FormatError and StoreError.
    """
    listed = sorted(table.store.list(table.keys.erasures), key=lambda info: info.modified, reverse=True)
    reports = (ErasureReport.load(table.store, info.key) for info in listed)
    return next((report.ledger_n for report in reports if done_in([report])), 0)
