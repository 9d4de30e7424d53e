"""Decides which topics a live landing takes, and when it begins. Pure.

A landing begins as soon as a topic has something to land, unless the previous landing began less than that topic's
share of its promise ago. It takes all topics that have something: they share the task, Spark's client and the query,
whose own cost exceeds that of a topic. A topic with a larger backlog than a landing takes is left to its own runs, and
so is a topic that failed, for longer each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from tidemark.formats.base import Model
from tidemark.formats.table.ledger import new_attempt
from tidemark.formats.table.live_landing import AheadPartition, LiveLanding, TopicLanding
from tidemark.topics import LIVE_BYTES, TopicSettings
from tidemark_airflow.triggers.readiness import NOT_LANDED, Landed, Row, WatermarkRow, bytes_beyond, digest_of

SHARE: Final = 4
"""A topic asks for a landing at most every fourth of its ``freshness``. Its agents pack every third."""


class LiveTopic(Model):
    """A topic with a live landing, and the time between the starts of two landings."""

    topic: str
    every: timedelta

    @classmethod
    def of(cls, topic: TopicSettings) -> LiveTopic:
        """The settings of ``topic``, which has a ``freshness``."""
        return cls(topic=topic.topic, every=topic.late_after / SHARE)


class _BeyondLedger(NamedTuple):
    """A topic's rows beyond the ledger, with both inputs; ``moved`` is False if only leaders changed."""

    rows: Sequence[Row]
    landed: Mapping[str, Landed]
    marks: tuple[WatermarkRow, ...]
    bytes: float
    digest: str
    moved: bool


class LiveWatch:
    """Judges the scans of one cluster, one after the other."""

    def __init__(self, topics: Iterable[LiveTopic]) -> None:
        self._topics = tuple(topics)
        self._seen: dict[str, _BeyondLedger] = {}

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
        """Topics that a landing would take now; empty if it need not begin yet. ``last`` is the previous landing."""
        known = last.by_topic if last else {}
        due: list[TopicLanding] = []
        begins = False
        for topic in self._topics:
            ahead = self._ahead(topic.topic, rows.get(topic.topic, ()), landed(topic.topic))
            before = known.get(topic.topic)
            if not ahead.marks or ahead.bytes > LIVE_BYTES or (before and _waits(before, ahead, now)):
                continue
            begins = begins or last is None or now - last.began_at >= topic.every
            due.append(_landing(topic.topic, ahead, before))
        return tuple(due) if begins else ()

    def _ahead(self, topic: str, rows: Sequence[Row], landed: Mapping[str, Landed]) -> _BeyondLedger:
        seen = self._seen.get(topic)
        if seen is None or seen.rows is not rows or seen.landed is not landed:
            seen = self._seen[topic] = _compare(rows, landed)
        return seen


def _compare(rows: Sequence[Row], landed: Mapping[str, Landed]) -> _BeyondLedger:
    """Rows beyond the ledger; an index behind live landings adds nothing, and a cut comes with a later epoch."""
    marks: list[WatermarkRow] = []
    size, moved = 0.0, False
    for mark in sorted(map(WatermarkRow._make, rows), key=lambda mark: mark.partition):
        at = landed.get(f"{mark.incarnation}-{mark.partition}", NOT_LANDED)
        if mark.next_offset > at.next_offset or mark.leadership > at.leadership:
            marks.append(mark)
            moved = moved or mark.next_offset > at.next_offset
            size += bytes_beyond(mark, at)
    return _BeyondLedger(rows, landed, tuple(marks), size, digest_of(marks), moved)


def _waits(before: TopicLanding, ahead: _BeyondLedger, now: datetime) -> bool:
    """True if it is too early to try again after the landing ``before``.

    If planning found nothing and at most the leader has changed since, the topic is not planned a second time.
    """
    if before.again_at is None:
        return False
    if before.status != "empty":
        return now < before.again_at
    return before.digest == ahead.digest and (now < before.again_at or not ahead.moved)


def _landing(topic: str, ahead: _BeyondLedger, before: TopicLanding | None) -> TopicLanding:
    return TopicLanding(
        topic=topic,
        attempt=new_attempt(),
        digest=ahead.digest,
        partitions=tuple(
            AheadPartition(
                partition=mark.partition,
                incarnation=mark.incarnation,
                topic_id=mark.topic_id,
                restored=mark.restored,
                leader_epoch=mark.leader_epoch,
                end=mark.next_offset,
            )
            for mark in ahead.marks
        ),
        failures=before.failures if before else 0,
    )


def landing_of(cluster: str, due: Sequence[TopicLanding], last: LiveLanding | None, now: datetime) -> LiveLanding:
    """The landing of the ``due`` topics, after ``last``."""
    taken = {topic.topic for topic in due}
    known = last.by_topic.values() if last else ()
    held = tuple(topic for topic in known if topic.topic not in taken and topic.again_at is not None)
    return LiveLanding(cluster=cluster, began_at=now, topics=tuple(due), held=held)
