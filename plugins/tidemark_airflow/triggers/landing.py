"""The trigger behind the live landing of a cluster: it starts with the run, without a worker, and lists due topics.

It reads the topics' landed offsets from the copies of their ledgers, and writes the due topics as the cluster's
landing, so that no large object passes through Airflow's database. A landing that has not ended is due at once,
unchanged. A topic that is added to the topics file while the trigger waits is included at the next look.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from airflow.triggers.base import TaskSkippedEvent, TriggerEvent

from tidemark.errors import PreconditionFailed, TidemarkError
from tidemark.formats.table.live_landing import StoredLanding, read_landing, write_landing
from tidemark.store import Store, open_store
from tidemark.timestamps import utc_now
from tidemark.topics import load_topics
from tidemark_airflow.triggers.committed import CommittedLedgers
from tidemark_airflow.triggers.index_scanner import Scan
from tidemark_airflow.triggers.live_readiness import LiveTopic, LiveWatch, landing_of
from tidemark_airflow.triggers.watermark import ScanTrigger

LOOK_AGAIN_AFTER: Final = timedelta(minutes=30)
"""Time after which a run without due topics ends, skipped; the next run has the topics that remain in the file."""

log = logging.getLogger(__name__)


class LandingTrigger(ScanTrigger):
    """Fires once, when a topic of a cluster's live landing has waited long enough.

    :param source: see :class:`ScanTrigger`
    :param topics: the topics, each a dumped :class:`tidemark_airflow.triggers.live_readiness.LiveTopic`
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
