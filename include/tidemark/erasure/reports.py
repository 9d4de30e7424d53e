"""The reports of the passes of erasure: what each request found in a topic, and what became of it.

The progress of the requests follows from them, with the days left.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import ClassVar, Final, Literal, NamedTuple

from pydantic import AwareDatetime, Field

from tidemark.formats import object_sizes
from tidemark.formats.base import Model, StoredObject
from tidemark.formats.raw.erasure import Approved, ErasureRequest, NotApproved, SearchedTopic
from tidemark.store import put_over
from tidemark.table.delta_table import TopicTable, configured_table
from tidemark.topics import Deployment
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


TopicState = Literal["waiting", "approved", "refused", "hidden", "erased", "withdrawn"]

CADENCE: Final = timedelta(days=7)
"""Time in which the next pass comes."""

_UNSEEN: Final = ("_tombstones/", "_untold/")
"""The folders of what names deleted objects that a pass has not seen."""

_NO_TABLE: Final = "the topics file does not have it, so no pass searches it"


class TopicProgress(NamedTuple):
    """A topic of a request. ``passes`` are the reports of passes that name the request, the oldest first.

    It is ``waiting`` for an approval or for the table, ``approved`` for the next pass, or ``refused`` by the last. Its
    records are ``hidden`` while objects are ``remaining`` that hold masked records, or may; then they are ``erased``.
    A request that was ``withdrawn`` first stays undone. ``closed_at`` is the time of its withdrawal, or of the first
    pass after which none of its records remained: what comes back later does not undo that.
    """

    searched: SearchedTopic
    state: TopicState
    detail: str = ""
    passes: tuple[ErasureReport, ...] = ()
    outcome: RequestOutcome | None = None
    remaining: tuple[Remaining, ...] = ()
    closed_at: datetime | None = None


class RequestProgress(NamedTuple):
    """A request, and how far its topics are."""

    asked: Approved | NotApproved
    topics: tuple[TopicProgress, ...]

    @property
    def request(self) -> ErasureRequest:
        """The request."""
        return self.asked.request

    @property
    def closed_at(self) -> datetime | None:
        """The time at which the last of its topics was closed, None if one is not."""
        times = [topic.closed_at for topic in self.topics if topic.closed_at is not None]
        return max(times) if len(times) == len(self.topics) else None

    @property
    def kept_until(self) -> datetime | None:
        """The time until which a lock, or something else with a date, keeps all that remains.

        None if anything has no date, or a pass has something else to do.
        """
        if any(topic.state not in {"hidden", "erased", "withdrawn"} for topic in self.topics):
            return None
        times = [item.until for topic in self.topics if topic.closed_at is None for item in topic.remaining]
        known = [time for time in times if time is not None]
        return max(known) if known and len(known) == len(times) else None

    @property
    def due_on(self) -> date:
        """The last day, in UTC, on which it is in time: not before the week after ``kept_until``, when a pass comes."""
        kept = self.kept_until
        return max(self.request.due_on, (kept + CADENCE).date()) if kept else self.request.due_on

    @property
    def near_from(self) -> date:
        """The day, in UTC, from which people are warned: that day, if nobody can do anything before."""
        return self.request.near_from if self.due_on == self.request.due_on else self.due_on

    def days_left(self, today: date) -> int:
        """The days up to the last on which it is in time; negative once that has passed."""
        return (self.due_on - today).days

    def is_near(self, today: date) -> bool:
        """True if it is not closed, and people are to be warned."""
        return self.closed_at is None and today >= self.near_from


def progress_of(deployment: Deployment, asked: Sequence[Approved | NotApproved]) -> list[RequestProgress]:
    """The progress of each request, by the reports of the topics that they name. Raises FormatError and StoreError."""
    named = {(each.request.cluster, searched.topic) for each in asked for searched in each.request.topics}
    tables = [configured_table(deployment, each) for each in deployment.topics if (each.cluster, each.topic) in named]
    reports = {
        (table.topic.cluster, table.topic.topic): sorted(reports_of(table), key=lambda report: report.at)
        for table in tables
    }
    return [
        RequestProgress(each, tuple(_topic(each, searched, reports) for searched in each.request.topics))
        for each in asked
    ]


def _topic(
    asked: Approved | NotApproved,
    searched: SearchedTopic,
    known: Mapping[tuple[str, str], Sequence[ErasureReport]],
) -> TopicProgress:
    reports = known.get((asked.request.cluster, searched.topic))
    told = [(report, outcome) for report in reports or () for outcome in _of(report, asked.request.id)]
    passes, outcome = tuple(report for report, _ in told), told[-1][1] if told else None
    progress = TopicProgress(searched, "waiting", outcome.detail if outcome else "", passes, outcome)
    if asked.withdrawal is not None and (outcome is None or outcome.status != "erased"):
        return progress._replace(state="withdrawn", detail="", closed_at=asked.withdrawal.at)
    if isinstance(asked, NotApproved):
        return progress
    if reports is None:
        return progress._replace(state="approved", detail=_NO_TABLE)
    if outcome is None or outcome.status == "found":
        return progress._replace(state="approved")
    if outcome.status != "erased":
        return progress._replace(state=outcome.status)
    after = [report for report in reports if not report.dry_run and report.at >= passes[-1].at]
    held = [(report, _held(report, asked.sha256, passes[-1])) for report in after]
    closed_at = next((report.at for report, items in held if not items), None)
    progress = progress._replace(state="erased", closed_at=closed_at)
    _, items = max(held, key=lambda pair: pair[0].at)
    if not items:
        return progress
    come_back = ", come back since" if closed_at else ""
    return progress._replace(state="hidden", detail=f"{left(items)}{come_back}: see the report", remaining=items)


def _held(report: ErasureReport, approval: str, erased: ErasureReport) -> tuple[Remaining, ...]:
    """The objects of ``report`` that may hold records of the request with this ``approval``, which ``erased`` erased.

    In the lake these are files that remained then, for later ones have only rows that later requests name, and all
    evidence with sums, which is left behind only when those files have gone. So is it with what was unseen in raw: the
    segments that retention has deleted since were searched.
    """
    raw = [item for item in report.raw.remaining if not item.approvals or approval in item.approvals]
    unseen = {item.key for item in erased.raw.remaining}
    raw = [item for item in raw if item.key in unseen or not any(folder in item.key for folder in _UNSEEN)]
    keys = {item.key for item in erased.remaining}
    return (*raw, *(item for item in report.remaining if item.key in keys or "/evidence/" in item.key))


def _of(report: ErasureReport, name: str) -> Iterable[RequestOutcome]:
    return (outcome for outcome in report.requests if outcome.id == name)
