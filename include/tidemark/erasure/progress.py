"""The progress of requests for erasure: what the passes have told of each topic of a request, and the days left."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import Final, Literal, NamedTuple

from tidemark.erasure.reports import ErasureReport, Remaining, RequestOutcome, left, reports_of
from tidemark.formats.raw.erasure import Approved, ErasureRequest, NotApproved, SearchedTopic
from tidemark.table.delta_table import configured_table
from tidemark.topics import Deployment

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
