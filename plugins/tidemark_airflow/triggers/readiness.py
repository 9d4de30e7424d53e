"""What the watermarks promise beyond the ledger, and whether that is a reason to plan a run.

The watermark index says how far each partition is uploaded, the ledger how far it is landed. Where they differ
there may be something to land, but only planning knows: an open transaction or a hole may hold it back, and a new
leader need not have cut anything off. So what is ahead is planned, and where the plan is empty the digest of what was
ahead is recorded as *settled*: it is not planned again until a watermark moves, or until ``freshness`` has passed, in
case a wake-up was missed.

What is ahead waits for the batch window, so that files do not become tiny: until it is ``size`` bytes by the agents'
estimate, or ``age`` old.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from operator import itemgetter
from typing import Literal, NamedTuple

from pydantic import AwareDatetime

from tidemark.formats.base import Model
from tidemark.formats.ledger import Ledger, Published
from tidemark.formats.watermark_index import RANK, IndexEntry
from tidemark.planning.date_finality import closes_from
from tidemark.topics import TopicSettings

LOOK_AGAIN_AFTER = timedelta(hours=1)
"""A quiet topic's task wakes up this often, so that a changed topics file or a foreign commit is noticed."""

_OBSERVED_WITHIN = timedelta(minutes=2)
"""So long after a date may close, agents have said how far its partitions are: an idle one does each minute."""


class Event(Model):
    """Why the waiting is over.

    ``advanced``: there may be something to land; ``settles`` is its digest, for when there is not. ``refresh``:
    nothing, but configuration and ledger should be looked at again. ``failed``: the indexes could not be read for a
    long time, ``reason`` says why.
    """

    status: Literal["advanced", "refresh", "failed"]
    settles: str = ""
    partitions: int = 0
    bytes: int = 0
    reason: str = ""


class WatermarkRow(NamedTuple):
    """What a watcher needs of a watermark index's entry; see there."""

    topic: str
    partition: int
    incarnation: int
    leader_epoch: int
    next_offset: int
    bytes_per_offset: float | None
    observed_at: datetime


Row = tuple[str, int, int, int, int, float | None, datetime]
"""A :class:`WatermarkRow` as a plain tuple, of which many can be kept.

Python's garbage collector leaves plain tuples of plain values alone. Half a million named ones it would look through
over and over, and stop the triggerer's event loop for half a second each time.
"""


row_rank = itemgetter(*map(WatermarkRow._fields.index, RANK))
"""What rows of one partition are compared by: as :data:`tidemark.formats.watermark_index.rank` of their entries."""


def row_of(entry: IndexEntry) -> Row:
    """What is kept of ``entry``."""
    return (
        entry.topic,
        entry.partition,
        entry.incarnation,
        entry.leader_epoch,
        entry.next_offset,
        entry.bytes_per_offset,
        entry.observed_at,
    )


class Ahead(NamedTuple):
    """Of a topic's marks, those that are not where the ledger is.

    ``digest`` is their identity, ``bytes`` an estimate of what can be read of them, and ``moved`` says whether an
    offset differs, and not the leader alone.
    """

    marks: tuple[WatermarkRow, ...]
    digest: str
    bytes: int
    moved: bool


class Landed(NamedTuple):
    """How far a partition is landed, and under which leader: a new one may have cut off what it replaces."""

    next_offset: int
    leader_epoch: int


_NOTHING = Landed(0, -1)


class Baseline(Model):
    """What is known of a topic when the waiting starts.

    ``landed`` has a :class:`Landed` for each ``<incarnation>-<partition>``, as a plain tuple: see :data:`Row`.
    """

    topic: str
    landed: dict[str, tuple[int, int]]
    settled: str = ""
    settled_at: AwareDatetime | None = None
    size: int
    age: timedelta
    freshness: timedelta
    look_again_at: AwareDatetime

    @classmethod
    def of(cls, topic: TopicSettings, ledger: Ledger, published: Published, now: datetime) -> Baseline:
        """The baseline that ledger and outbox pointer give."""
        return cls(
            topic=topic.topic,
            landed={
                f"{state.incarnation}-{state.partition}": (state.next_offset, state.leader_epoch)
                for state in ledger.partitions
            },
            settled=published.settled,
            settled_at=published.settled_at,
            size=topic.batch.size,
            age=topic.batch.age,
            freshness=topic.freshness,
            look_again_at=look_again_at(topic, ledger, now),
        )

    def ahead(self, rows: Iterable[Row]) -> Ahead:
        """Which marks differ from the ledger; also one that is behind it, as after an unclean election.

        One that ends at the same offset under a later leader differs as well: a new branch may have come exactly as
        far as the old one had.
        """
        ahead = sorted(
            (
                (mark, landed)
                for mark in map(WatermarkRow._make, rows)
                if self._differs(mark, landed := self._landed(mark))
            ),
            key=lambda pair: pair[0].partition,
        )
        lines = [f"{mark.incarnation}-{mark.partition} {mark.leader_epoch} {mark.next_offset}" for mark, _ in ahead]
        return Ahead(
            marks=tuple(mark for mark, _ in ahead),
            digest=hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16] if lines else "",
            bytes=round(sum(_bytes(mark, landed or _NOTHING) for mark, landed in ahead)),
            moved=any(landed is None or mark.next_offset != landed.next_offset for mark, landed in ahead),
        )

    def _landed(self, mark: WatermarkRow) -> Landed | None:
        landed = self.landed.get(f"{mark.incarnation}-{mark.partition}")
        return None if landed is None else Landed(*landed)

    def _differs(self, mark: WatermarkRow, landed: Landed | None) -> bool:
        return landed is None or mark.next_offset != landed.next_offset or mark.leader_epoch > landed.leader_epoch


def look_again_at(topic: TopicSettings, ledger: Ledger, now: datetime) -> datetime:
    """When to look again at a topic of which nothing is heard.

    When the next date may close, for that changes no watermark; after ``freshness`` while a date that may is waited
    for; and within an hour in any case.
    """
    open_dates = (dt for dt, state in ledger.dates.items() if state.state in {"open", "reopened"})
    due = [closes_from(dt, topic) + _OBSERVED_WITHIN for dt in open_dates]
    times = [due_at if due_at > now else now + topic.freshness for due_at in due]
    return min([*times, now + LOOK_AGAIN_AFTER])


def _bytes(mark: WatermarkRow, landed: Landed) -> float:
    """What is uploaded of the partition and not landed; 0 where its agent does not say how large its offsets are."""
    return max(0, mark.next_offset - landed.next_offset) * (mark.bytes_per_offset or 0.0)


class Watch:
    """Judges one topic's marks, time after time."""

    def __init__(self, baseline: Baseline) -> None:
        self._baseline = baseline
        self._since: datetime | None = None
        self._seen: tuple[Sequence[Row], Ahead] | None = None

    def has_seen(self, rows: Sequence[Row]) -> bool:
        """Whether :meth:`judge` has no more to do than to compare times: it is the sequence that it saw last."""
        return self._seen is not None and self._seen[0] is rows

    def see(self, rows: Sequence[Row]) -> Ahead:
        """Compare all rows with the ledger, once: a millisecond for each 1,000, so not for many on an event loop."""
        if self._seen is None or self._seen[0] is not rows:
            self._seen = rows, self._baseline.ahead(rows)
        return self._seen[1]

    def judge(self, rows: Sequence[Row], now: datetime) -> Event | None:
        """The event that ends the waiting, or None.

        The batch window's age is counted from when something ahead was first seen here, or observed by the broker if
        that was earlier: a restart of the triggerer does not restart the window.
        """
        ahead = self.see(rows)
        if not self._is_due(ahead, now):
            return None
        return Event(status="advanced", settles=ahead.digest, partitions=len(ahead.marks), bytes=ahead.bytes)

    def _is_due(self, ahead: Ahead, now: datetime) -> bool:
        if not ahead.marks or self._is_settled(ahead, now):
            self._since = None
            return False
        if self._since is None:
            self._since = min(now, *(mark.observed_at for mark in ahead.marks))
        return ahead.bytes >= self._baseline.size or now - self._since >= self._baseline.age

    def _is_settled(self, ahead: Ahead, now: datetime) -> bool:
        """Whether planning has found nothing in it. What only changed its leader is not looked at a second time."""
        baseline = self._baseline
        if ahead.digest != baseline.settled or baseline.settled_at is None:
            return False
        return not ahead.moved or now - baseline.settled_at < baseline.freshness
