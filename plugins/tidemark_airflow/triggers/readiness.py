"""Compares the watermarks with the ledger, and decides if they are a reason to plan a run.

The watermark index has each partition's uploaded offsets, the ledger its landed offsets. Where they differ there may be
something to land, but only planning knows: an open transaction or a hole may hold it back, and a new leader need not
have cut off any record. So partitions that are ahead are planned, and if the plan is empty their digest is recorded as
*settled*: they are not planned again until a watermark moves, or until ``late_after`` has passed, in case a wake-up was
missed.

Partitions that are ahead wait for the batch window, so that files do not become tiny: until they have ``size`` bytes by
the agents' estimate, or are ``age`` old.
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
from tidemark.formats.raw.head import HeadEntry
from tidemark.formats.raw.watermark_index import RANK, IndexEntry
from tidemark.formats.table.ledger import Ledger, Published
from tidemark.planning.date_finality import closes_from
from tidemark.topics import TopicSettings

LOOK_AGAIN_AFTER = timedelta(hours=1)
"""Interval in which a quiet topic's task wakes up, to notice a changed topics file or a foreign commit."""

_OBSERVED_WITHIN = timedelta(minutes=2)
"""Time after a date may close within which agents have reported its partitions: idle agents do every minute."""


class Event(Model):
    """The reason for the end of the wait.

    ``advanced``: there may be something to land; ``settles`` is its digest, in case there is not. ``refresh``: there is
    nothing, but configuration and ledger must be read again. ``failed``: the indexes could not be read for a long time,
    for ``reason``.
    """

    status: Literal["advanced", "refresh", "failed"]
    settles: str = ""
    partitions: int = 0
    bytes: int = 0
    reason: str = ""


class WatermarkRow(NamedTuple):
    """The fields of an entry of a watermark index or a head that a watcher needs.

    ``next_offset`` is the end of the offsets that can be landed: of the seals, or of the packs if it is later.
    """

    topic: str
    partition: int
    incarnation: int
    leader_epoch: int
    next_offset: int
    bytes_per_offset: float | None
    observed_at: datetime
    topic_id: str | None
    restored: int = 0

    @property
    def leadership(self) -> tuple[int, int]:
        """The number of restores and the leader epoch."""
        return self.restored, self.leader_epoch


Row = tuple[str, int, int, int, int, float | None, datetime, str | None, int]
"""A :class:`WatermarkRow` as a plain tuple, of which many can be kept.

Python's garbage collector ignores plain tuples of plain values. It would traverse half a million named tuples over and
over, and stop the triggerer's event loop for half a second each time.
"""


row_rank = itemgetter(*map(WatermarkRow._fields.index, RANK))
"""Rank of a row among rows of a partition, like :data:`tidemark.formats.raw.watermark_index.rank` of their entries."""


def row_of(entry: IndexEntry) -> Row:
    """The row of an index's ``entry``."""
    return (
        entry.topic,
        entry.partition,
        entry.incarnation,
        entry.leader_epoch,
        entry.least_stored_end,
        entry.bytes_per_offset,
        entry.observed_at,
        entry.topic_id and sys.intern(entry.topic_id),
        entry.restored,
    )


UNKNOWN_INCARNATION: Final = -1
"""The incarnation in a head's row, which is identified by its topic id."""


def row_of_head(entry: HeadEntry) -> Row:
    """The row of a head's ``entry``."""
    return (
        entry.topic,
        entry.partition,
        UNKNOWN_INCARNATION,
        entry.epoch,
        entry.tail_end,
        None,
        entry.observed_at,
        sys.intern(entry.topic_id),
        len(entry.restores),
    )


def with_head(row: Row, head: Row) -> Row:
    """The later of a partition's row and a head's, if the head has the same topic id; otherwise ``row``."""
    topic, partition, incarnation, epoch, end, bytes_per_offset, _, topic_id, restored = row
    if topic_id != head[7] or (head[8], *head[3:5]) <= (restored, epoch, end):
        return row
    return topic, partition, incarnation, head[3], head[4], bytes_per_offset, head[6], topic_id, head[8]


class Ahead(NamedTuple):
    """The marks of a topic that differ from the ledger.

    ``digest`` is their identity, ``bytes`` an estimate of their readable bytes, and ``moved`` is False if only leaders
    differ.
    """

    marks: tuple[WatermarkRow, ...]
    digest: str
    bytes: int
    moved: bool


class Landed(NamedTuple):
    """Landed offset and leadership of a partition: a new leader may have cut off offsets that it replaces."""

    next_offset: int
    leader_epoch: int
    restored: int = 0

    @property
    def leadership(self) -> tuple[int, int]:
        """The number of restores and the leader epoch."""
        return self.restored, self.leader_epoch


NOT_LANDED: Final = Landed(0, -1)
"""State of a partition that no ledger names."""


def landed_by(ledger: Ledger) -> Mapping[str, Landed]:
    """Landed offsets in ``ledger``, by ``<incarnation>-<partition>``."""
    return {
        f"{state.incarnation}-{state.partition}": Landed(state.next_offset, state.leader_epoch, len(state.restores))
        for state in ledger.partitions
    }


def bytes_beyond(mark: WatermarkRow, landed: Landed) -> float:
    """Stored bytes of the partition that are not landed; 0 if its agent reports no size of offsets."""
    return max(0, mark.next_offset - landed.next_offset) * (mark.bytes_per_offset or 0.0)


def digest_of(marks: Iterable[WatermarkRow]) -> str:
    """The identity of ``marks``: their offsets and leaderships."""
    lines = [
        f"{mark.incarnation}-{mark.partition} {mark.restored} {mark.leader_epoch} {mark.next_offset}" for mark in marks
    ]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


class Baseline(Model):
    """State of a topic when the wait starts.

    ``landed`` has a :class:`Landed` for each ``<incarnation>-<partition>``, as a plain tuple: see :data:`Row`. Other
    runs land a ``live`` topic meanwhile.
    """

    topic: str
    landed: dict[str, tuple[int, ...]]
    settled: str = ""
    settled_at: AwareDatetime | None = None
    size: int
    age: timedelta
    late_after: timedelta
    live: bool = False
    look_again_at: AwareDatetime

    @classmethod
    def of(cls, topic: TopicSettings, ledger: Ledger, published: Published, now: datetime) -> Baseline:
        """The baseline from ledger and outbox pointer."""
        return cls(
            topic=topic.topic,
            landed={key: tuple(state) for key, state in landed_by(ledger).items()},
            settled=published.settled,
            settled_at=published.settled_at,
            size=topic.window.size,
            age=topic.window.age,
            late_after=topic.late_after,
            live=topic.freshness is not None,
            look_again_at=look_again_at(topic, ledger, now),
        )

    def ahead(self, rows: Iterable[Row]) -> Ahead:
        """Marks that differ from the ledger, including marks behind it, as after an unclean election.

        A mark with an equal offset and a later leader differs as well: a new branch may end exactly at the old one's
        end.
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
        return landed is None or mark.next_offset != landed.next_offset or mark.leadership > landed.leadership


def look_again_at(topic: TopicSettings, ledger: Ledger, now: datetime) -> datetime:
    """Time at which to look again at a topic without news.

    It is when the next date may close, since that changes no watermark; after ``late_after`` while a date that may
    close is waited for; and within an hour in any case.
    """
    open_dates = (dt for dt, state in ledger.dates.items() if state.state in {"open", "reopened"})
    due = [closes_from(dt, topic) + _OBSERVED_WITHIN for dt in open_dates]
    times = [due_at if due_at > now else now + topic.late_after for due_at in due]
    return min([*times, now + LOOK_AGAIN_AFTER])


class Watch:
    """Judges one topic's marks, one scan after the other."""

    def __init__(self, baseline: Baseline) -> None:
        self._baseline = baseline
        self._since: datetime | None = None
        self._seen: tuple[Sequence[Row], Ahead] | None = None

    def has_seen(self, rows: Sequence[Row]) -> bool:
        """True if ``rows`` is the last seen sequence, so that :meth:`judge` only compares times."""
        return self._seen is not None and self._seen[0] is rows

    def see(self, rows: Sequence[Row]) -> Ahead:
        """Compare all rows with the ledger, once: a millisecond for each 1,000, so many rows not on an event loop."""
        if self._seen is None or self._seen[0] is not rows:
            self._seen = rows, self._baseline.ahead(rows)
        return self._seen[1]

    def follow(self, landed: Mapping[str, Landed], now: datetime) -> bool:
        """Continue from offsets that other runs ``landed``, and count the window's age from now; False if none did."""
        known = {key: tuple(state) for key, state in landed.items()}
        if not known or known == self._baseline.landed:
            return False
        self._baseline = self._baseline.model_copy(update={"landed": known})
        self._seen, self._since = None, now
        return True

    def judge(self, rows: Sequence[Row], now: datetime) -> Event | None:
        """The event that ends the wait, or None.

        The batch window's age counts from the first time that something was ahead here, or from the broker's
        observation if that is earlier: a restart of the triggerer does not restart the window.
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
        """True if planning found nothing in these marks. If only leaders changed, they are not planned again."""
        baseline = self._baseline
        if ahead.digest != baseline.settled or baseline.settled_at is None:
            return False
        return not ahead.moved or now - baseline.settled_at < baseline.late_after
