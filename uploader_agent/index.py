"""This broker's watermark index: one object that tells a watcher about all partitions that the broker leads.

Written on change, but not more often than ``min_interval``; at least every ``idle_interval``, so that a watcher can
tell a quiet agent from a dead one. One index goes to each bucket that holds led partitions, and one to the default.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from crc32c import crc32c
from pydantic import AwareDatetime, TypeAdapter

from tidemark.errors import NotFound
from tidemark.layout import ControlKeys, TopicPartition
from tidemark.store import Store
from tidemark.stored import canonical, utc_now
from tidemark.watermark_index import IndexEntry, WatermarkIndex
from uploader_agent import __version__

_TIME: TypeAdapter[datetime] = TypeAdapter(AwareDatetime)


@dataclass(frozen=True, eq=False, slots=True)
class Statement:
    """An entry as it goes into the index, but for the time at which it was observed: another one is another object."""

    said: Mapping[str, Any]

    @classmethod
    def of(cls, entry: IndexEntry) -> Statement:
        """Of ``entry``, which is not kept: thousands of them take room."""
        return cls(entry.model_dump(mode="json", by_alias=True))


Statements = Mapping[TopicPartition, tuple[Statement, datetime]]
"""What is said of each partition, and when it was observed."""


class IndexWriter:
    """Writes one broker's index into one store. ``min_interval`` and ``idle_interval`` are seconds."""

    def __init__(
        self,
        store: Store,
        control: ControlKeys,
        broker: int,
        endpoints: str,
        min_interval: float,
        idle_interval: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._control = control
        self._broker = broker
        self._endpoints = endpoints
        self._min_interval = min_interval
        self._idle_interval = idle_interval
        self._clock = clock
        self._written: Mapping[TopicPartition, Statement] | None = None
        self._written_at = -float("inf")

    def read(self) -> Mapping[TopicPartition, IndexEntry]:
        """What this broker's agent wrote last; nothing, if that was about other endpoints.

        Raises:
            StoreError: the store failed.
            FormatError: what is there is no watermark index.
        """
        key = self._control.index(self._broker)
        try:
            index = WatermarkIndex.from_bytes(self._store.get(key).body, key)
        except NotFound:
            return {}
        if index.endpoints != self._endpoints:
            return {}
        return {TopicPartition(entry.topic, entry.partition): entry for entry in index.entries}

    def reconfigure(self, min_interval: float, idle_interval: float) -> None:
        """Write at these intervals from now on."""
        self._min_interval, self._idle_interval = min_interval, idle_interval

    def due(self) -> bool:
        """Whether a change may be written now."""
        return self._clock() - self._written_at >= self._min_interval

    def offer(self, statements: Statements, *, now: bool = False) -> bool:
        """Write ``statements`` if they are others and it is time, or if it has been long, or ``now``; True if written.

        Only this agent writes this object, so the last PUT is right whatever became of the one before.
        """
        current = {at: statements[at][0] for at in sorted(statements)}
        idle = self._clock() - self._written_at >= self._idle_interval
        if not (now or idle or (current != self._written and self.due())):
            return False
        head = WatermarkIndex(
            cluster=self._control.cluster,
            broker=self._broker,
            agent_version=__version__,
            written_at=utc_now(),
            endpoints=self._endpoints,
        )
        times = {moment: _TIME.dump_python(moment, mode="json") for moment in {one[1] for one in statements.values()}}
        entries = [{**one.said, "observed_at": times[statements[at][1]]} for at, one in current.items()]
        body = canonical({**head.model_dump(mode="json", by_alias=True), "entries": entries})
        self._store.put(self._control.index(self._broker), body, crc32c=crc32c(body))
        self._written, self._written_at = current, self._clock()
        return True
