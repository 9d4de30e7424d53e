"""What the watermarks promise beyond the ledger, and whether that is a reason to plan a run.

The watermark index says how far each partition is uploaded, the ledger how far it is landed. Where they differ
there may be something to land, but only planning knows: an open transaction or a hole may hold it back, and a new
leader need not have cut anything off. So what is ahead is planned, and where the plan is empty the digest of what was
ahead is recorded as *settled*: it is not planned again until a watermark moves, or until ``late_after`` has passed, in
case a wake-up was missed.

What is ahead waits for the batch window, so that files do not become tiny: until it is ``size`` bytes by the agents'
estimate, or ``age`` old.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from operator import itemgetter
from typing import Final, Literal, NamedTuple

from pydantic import AwareDatetime

from tidemark.formats.base import Model
from tidemark.formats.head import HeadEntry
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
    """What a watcher needs of a watermark index's entry, or of a head's; see there.

    ``next_offset`` is the end of what can be landed: of the seals, or of the packs where it is later.
    """

    topic: str
    partition: int
    incarnation: int
    leader_epoch: int
    next_offset: int
    bytes_per_offset: float | None
    observed_at: datetime
    topic_id: str | None


Row = tuple[str, int, int, int, int, float | None, datetime, str | None]
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
        entry.least_stored_end,
        entry.bytes_per_offset,
        entry.observed_at,
        entry.topic_id and sys.intern(entry.topic_id),
    )


UNKNOWN_INCARNATION: Final = -1
"""Of a head's row: its topic id says which incarnation it is of."""


def row_of_head(entry: HeadEntry) -> Row:
    """What is kept of a head's ``entry``."""
    return (
        entry.topic,
        entry.partition,
        UNKNOWN_INCARNATION,
        entry.epoch,
        entry.tail_end,
        None,
        entry.observed_at,
        sys.intern(entry.topic_id),
    )


def with_head(row: Row, head: Row) -> Row:
    """The later of a partition's row and a head's, if the head is of the same topic id; else ``row``."""
    topic, partition, incarnation, epoch, end, bytes_per_offset, _, topic_id = row
    if topic_id != head[7] or head[3:5] <= (epoch, end):
        return row
    return topic, partition, incarnation, head[3], head[4], bytes_per_offset, head[6], topic_id


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


NOT_LANDED: Final = Landed(0, -1)
"""Of a partition that no ledger names."""


def landed_by(ledger: Ledger) -> Mapping[str, Landed]:
    """How far ``ledger`` has its partitions, by ``<incarnation>-<partition>``."""
    return {
        f"{state.incarnation}-{state.partition}": Landed(state.next_offset, state.leader_epoch)
        for state in ledger.partitions
    }


def bytes_beyond(mark: WatermarkRow, landed: Landed) -> float:
    """What is stored of the partition and not landed; 0 where its agent does not say how large its offsets are."""
    return max(0, mark.next_offset - landed.next_offset) * (mark.bytes_per_offset or 0.0)


def digest_of(marks: Iterable[WatermarkRow]) -> str:
    """The identity of ``marks``, by how far and under which leaders they are."""
    lines = [f"{mark.incarnation}-{mark.partition} {mark.leader_epoch} {mark.next_offset}" for mark in marks]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


class Baseline(Model):
    """What is known of a topic when the waiting starts.

    ``landed`` has a :class:`Landed` for each ``<incarnation>-<partition>``, as a plain tuple: see :data:`Row`. A topic
    that is ``live`` is landed by others meanwhile.
    """

    topic: str
    landed: dict[str, tuple[int, int]]
    settled: str = ""
    settled_at: AwareDatetime | None = None
    size: int
    age: timedelta
    late_after: timedelta
    live: bool = False
    look_again_at: AwareDatetime

    @classmethod
    def of(cls, topic: TopicSettings, ledger: Ledger, published: Published, now: datetime) -> Baseline:
        """The baseline that ledger and outbox pointer give."""
        return cls(
            topic=topic.topic,
            landed={key: (one.next_offset, one.leader_epoch) for key, one in landed_by(ledger).items()},
            settled=published.settled,
            settled_at=published.settled_at,
            size=topic.window.size,
            age=topic.window.age,
            late_after=topic.late_after,
            live=topic.freshness is not None,
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
        marks = tuple(mark for mark, _ in ahead)
        return Ahead(
            marks=marks,
            digest=digest_of(marks) if marks else "",
            bytes=round(sum(bytes_beyond(mark, landed or NOT_LANDED) for mark, landed in ahead)),
            moved=any(landed is None or mark.next_offset != landed.next_offset for mark, landed in ahead),
        )

    def _landed(self, mark: WatermarkRow) -> Landed | None:
        landed = self.landed.get(f"{mark.incarnation}-{mark.partition}")
        return None if landed is None else Landed(*landed)

    def _differs(self, mark: WatermarkRow, landed: Landed | None) -> bool:
        return landed is None or mark.next_offset != landed.next_offset or mark.leader_epoch > landed.leader_epoch


def look_again_at(topic: TopicSettings, ledger: Ledger, now: datetime) -> datetime:
    """When to look again at a topic of which nothing is heard.

    When the next date may close, for that changes no watermark; after ``late_after`` while a date that may is waited
    for; and within an hour in any case.
    """
    open_dates = (dt for dt, state in ledger.dates.items() if state.state in {"open", "reopened"})
    due = [closes_from(dt, topic) + _OBSERVED_WITHIN for dt in open_dates]
    times = [due_at if due_at > now else now + topic.late_after for due_at in due]
    return min([*times, now + LOOK_AGAIN_AFTER])


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

    def follow(self, landed: Mapping[str, Landed], now: datetime) -> bool:
        """Go on from what others have ``landed``, and count the window's age from now; False if it is nothing."""
        known = {key: tuple(one) for key, one in landed.items()}
        if not known or known == self._baseline.landed:
            return False
        self._baseline = self._baseline.model_copy(update={"landed": known})
        self._seen, self._since = None, now
        return True

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
        return not ahead.moved or now - baseline.settled_at < baseline.late_after
