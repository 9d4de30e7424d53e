"""Which topics a live landing takes, and when it begins. Pure.

A landing begins as soon as a topic has something to land, unless the one before began less than that topic's share of
its promise ago. It takes all topics that have something: they share the task, Spark's client and the query, which cost
more than a topic does. A topic that has more behind than a landing takes is left to its own runs, and so is one that
failed, for longer each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from tidemark.formats.base import Model
from tidemark.formats.ledger import new_attempt
from tidemark.formats.live_landing import AheadPartition, LiveLanding, TopicLanding
from tidemark.topics import LIVE_BYTES, TopicSettings
from tidemark_airflow.triggers.readiness import NOT_LANDED, Landed, Row, WatermarkRow, bytes_beyond, digest_of

SHARE: Final = 4
"""A topic asks for a landing each fourth of its ``freshness`` at most. Its agents pack each third."""


class LiveTopic(Model):
    """A topic that is landed live, and how long after a landing began it asks for the next one."""

    topic: str
    every: timedelta

    @classmethod
    def of(cls, topic: TopicSettings) -> LiveTopic:
        """What ``topic``, which has a ``freshness``, asks for."""
        return cls(topic=topic.topic, every=topic.late_after / SHARE)


class _Ahead(NamedTuple):
    """What of a topic's rows is beyond the ledger, and what both were; ``moved`` unless only the leader is another."""

    rows: Sequence[Row]
    landed: Mapping[str, Landed]
    marks: tuple[WatermarkRow, ...]
    bytes: float
    digest: str
    moved: bool


class LiveWatch:
    """Judges the scans of one cluster, time after time."""

    def __init__(self, topics: Iterable[LiveTopic]) -> None:
        self._topics = tuple(topics)
        self._seen: dict[str, _Ahead] = {}

    def take(self, topics: Iterable[LiveTopic]) -> None:
        """Judge these ``topics`` from now on."""
        self._topics = tuple(topics)

    def due(
        self,
        rows: Mapping[str, Sequence[Row]],
        landed: Callable[[str], Mapping[str, Landed]],
        last: LiveLanding | None,
        now: datetime,
    ) -> tuple[TopicLanding, ...]:
        """What a landing would take now; nothing if it need not begin yet. ``last`` is the landing before it."""
        known = last.by_topic if last else {}
        found: list[TopicLanding] = []
        begins = False
        for one in self._topics:
            ahead = self._ahead(one.topic, rows.get(one.topic, ()), landed(one.topic))
            before = known.get(one.topic)
            if not ahead.marks or ahead.bytes > LIVE_BYTES or (before and _waits(before, ahead, now)):
                continue
            begins = begins or last is None or now - last.began_at >= one.every
            found.append(_landing(one.topic, ahead, before))
        return tuple(found) if begins else ()

    def _ahead(self, topic: str, rows: Sequence[Row], landed: Mapping[str, Landed]) -> _Ahead:
        seen = self._seen.get(topic)
        if seen is None or seen.rows is not rows or seen.landed is not landed:
            seen = self._seen[topic] = _compare(rows, landed)
        return seen


def _compare(rows: Sequence[Row], landed: Mapping[str, Landed]) -> _Ahead:
    """An index that lags behind what live landings have landed says nothing; a cut comes under a later epoch."""
    marks: list[WatermarkRow] = []
    size, moved = 0.0, False
    for mark in sorted(map(WatermarkRow._make, rows), key=lambda mark: mark.partition):
        at = landed.get(f"{mark.incarnation}-{mark.partition}", NOT_LANDED)
        if mark.next_offset > at.next_offset or mark.leader_epoch > at.leader_epoch:
            marks.append(mark)
            moved = moved or mark.next_offset > at.next_offset
            size += bytes_beyond(mark, at)
    return _Ahead(rows, landed, tuple(marks), size, digest_of(marks), moved)


def _waits(before: TopicLanding, ahead: _Ahead, now: datetime) -> bool:
    """Whether it is too early to try again what the landing ``before`` has not landed.

    Where planning found nothing, and no more than the leader has changed, it is not looked at a second time.
    """
    if before.again_at is None:
        return False
    if before.status != "empty":
        return now < before.again_at
    return before.digest == ahead.digest and (now < before.again_at or not ahead.moved)


def _landing(topic: str, ahead: _Ahead, before: TopicLanding | None) -> TopicLanding:
    return TopicLanding(
        topic=topic,
        attempt=new_attempt(),
        digest=ahead.digest,
        partitions=tuple(
            AheadPartition(
                partition=mark.partition,
                incarnation=mark.incarnation,
                topic_id=mark.topic_id,
                leader_epoch=mark.leader_epoch,
                end=mark.next_offset,
            )
            for mark in ahead.marks
        ),
        failures=before.failures if before else 0,
    )


def landing_of(cluster: str, due: Sequence[TopicLanding], last: LiveLanding | None, now: datetime) -> LiveLanding:
    """The landing of what is ``due``, after ``last``."""
    taken = {one.topic for one in due}
    known = last.by_topic.values() if last else ()
    held = tuple(one for one in known if one.topic not in taken and one.again_at is not None)
    return LiveLanding(cluster=cluster, began_at=now, topics=tuple(due), held=held)
