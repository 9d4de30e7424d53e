"""The trigger behind the live landing of a cluster: it starts with the run, without a worker, and lists due topics.

It reads the topics' landed offsets from the copies of their ledgers, and writes the due topics as the cluster's
landing, so that no large object passes through Airflow's database. A landing that has not ended is due at once,
unchanged. A topic that is added to the topics file while the trigger waits is included at the next look.

A landing begins as soon as a topic has something to land, unless the previous landing began less than that topic's
share of its promise ago. It takes all topics that have something: they share the task, Spark's client and the query,
whose own cost exceeds that of a topic. A topic with a larger backlog than a landing takes is left to its own runs, and
so is a topic that failed, for longer each time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

from airflow.triggers.base import TaskSkippedEvent, TriggerEvent

from tidemark.errors import PreconditionFailed, TidemarkError
from tidemark.formats.base import Model
from tidemark.formats.table.ledger import new_attempt
from tidemark.formats.table.live_landing import (
    AheadPartition,
    LiveLanding,
    StoredLanding,
    TopicLanding,
    read_landing,
    write_landing,
)
from tidemark.store import Store, open_store
from tidemark.timestamps import utc_now
from tidemark.topics import LIVE_BYTES, TopicSettings, load_topics
from tidemark_airflow.triggers.index_scanner import Scan
from tidemark_airflow.triggers.readiness import NOT_LANDED, Landed, Row, WatermarkRow, bytes_beyond, digest_of
from tidemark_airflow.triggers.watermark import CommittedLedgers, ScanTrigger

LOOK_AGAIN_AFTER: Final = timedelta(minutes=30)
"""Time after which a run without due topics ends, skipped; the next run has the topics that remain in the file."""

log = logging.getLogger(__name__)

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


class LandingTrigger(ScanTrigger):
    """Fires once, when a topic of a cluster's live landing has waited long enough.

    :param source: see :class:`ScanTrigger`
    :param topics: the topics, each a dumped :class:`LiveTopic`
    :param topics_file: the path of the topics file, which may have more topics by now
    """

    def __init__(self, *, source: dict[str, Any], topics: list[dict[str, Any]], topics_file: str) -> None:
        super().__init__(source=source)
        self.topics = [LiveTopic.model_validate(topic) for topic in topics]
        self.topics_file = topics_file

    def _more(self) -> dict[str, Any]:
        return {"topics": [topic.model_dump(mode="json") for topic in self.topics], "topics_file": self.topics_file}

    async def filter_shared_stream(self, shared_stream: AsyncIterator[Scan]) -> AsyncIterator[TriggerEvent]:
        """The cluster's single event, or an event that skips the task."""
        started = utc_now()
        due: _Due | None = None
        async for scan in shared_stream:
            try:
                if due is None:
                    due = await asyncio.to_thread(_Due, self)
                topics = await asyncio.to_thread(due.topics, scan)
            except (TidemarkError, OSError):
                log.warning("%s: the due topics are not known; asked again soon", self.source.cluster, exc_info=True)
                due = None
                continue
            if topics:
                yield TriggerEvent({"topics": topics})  # type: ignore[no-untyped-call] # Airflow leaves it untyped
                return
            if utc_now() - started >= LOOK_AGAIN_AFTER:
                yield TaskSkippedEvent()
                return


class _Due:
    """The due topics of a landing, and the previous landing; all blocking calls are here."""

    def __init__(self, trigger: LandingTrigger) -> None:
        source = trigger.source
        self._cluster, self._key = source.cluster, source.keys.landing
        self._store: Store = open_store(source.lake, source.options)
        self._committed: CommittedLedgers = trigger.landed_elsewhere()
        self._committed.look()
        self._watch = LiveWatch(trigger.topics)
        self._file = _TopicsFile(trigger)
        self._last: StoredLanding = read_landing(self._store, self._key)

    def topics(self, scan: Scan) -> list[str]:
        """Topics due after ``scan``, with their landing written; empty if none needs to begin."""
        last = self._last.value
        if last is not None and last.ended_at is None:
            return [topic.topic for topic in last.topics]
        if (topics := self._file.changed()) is not None:
            self._watch.take(topics)
        landed = self._committed.landed
        if not self._watch.due(scan.topics, landed, last, utc_now()):
            return []
        self._committed.look()  # other runs may have landed them
        now = utc_now()
        due = self._watch.due(scan.topics, landed, last, now)
        if not due:
            return []
        landing = landing_of(self._cluster, due, last, now)
        try:
            write_landing(self._store, self._key, landing, self._last.etag)
        except PreconditionFailed:
            self._last = read_landing(self._store, self._key)
            return []
        return [topic.topic for topic in due]


class _TopicsFile:
    """The topics file on the triggerer's machine, read again when it has changed.

    The DAG's topics at the start of the run stay until it ends: if the triggerer's file is older or cannot be read, no
    topic is dropped.
    """

    def __init__(self, trigger: LandingTrigger) -> None:
        self._path, self._cluster = Path(trigger.topics_file), trigger.source.cluster
        self._of_dag = {topic.topic: topic for topic in trigger.topics}
        self._read: tuple[int, int, int] | None = None

    def changed(self) -> list[LiveTopic] | None:
        """The topics with a live landing, or None if the file is unchanged since the last call."""
        try:
            status = self._path.stat()
            version = status.st_ino, status.st_mtime_ns, status.st_size
            if version == self._read:
                return None
            self._read = version
            of_file = load_topics(self._path).live_topics(self._cluster)
        except (TidemarkError, OSError):
            log.warning("%s: not read; the live topics stay as they are", self._path, exc_info=True)
            return None
        return list((self._of_dag | {topic.topic: LiveTopic.of(topic) for topic in of_file}).values())
