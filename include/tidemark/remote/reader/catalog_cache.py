"""The catalogues of the partitions in use; each is kept and refreshed at intervals. Thread-safe."""

from __future__ import annotations

import threading
import time

from tidemark.remote.reader.range_requests import naming
from tidemark.remote.topics import START_MAX_AGE, RemotePartition, RemoteTopics


class Entry:
    """A partition of a topic, or None while the remote tier has not seen it."""

    def __init__(self, topics: RemoteTopics, name: tuple[str, int, str | None], seconds: float) -> None:
        self.refreshing = False
        self.name = name
        self._topics = topics
        self._seconds = seconds
        self._partition: RemotePartition | None = None
        self._looked_at: float | None = None
        self._lock = threading.Lock()

    @property
    def due_in(self) -> float:
        """Seconds until the next refresh; 0 or less if it is due, infinite before the first look."""
        return float("inf") if self._looked_at is None else self._looked_at + self._seconds - time.monotonic()

    def get(self) -> RemotePartition | None:
        """The partition; with requests at the first call, and again if it was not there at the last look."""
        topic, partition, topic_id = self.name
        with self._lock:
            if self._partition is None and (self._looked_at is None or self.due_in <= 0):
                with naming(f"{topic}-{partition}"):
                    self._partition = self._topics.partition(topic, partition, topic_id)
                self._looked_at = time.monotonic()
            return self._partition

    def refresh(self) -> None:
        """Read the changes of the partition, or look for it if it was not there."""
        partition = self._partition
        if partition is None:
            self.get()
            return
        try:
            with naming(f"{self.name[0]}-{self.name[1]}"):
                partition.refresh(START_MAX_AGE)
        finally:
            self._looked_at = time.monotonic()


class CatalogCache:
    """The catalogue of a storage, by topic, partition and topic id."""

    def __init__(self, topics: RemoteTopics, seconds: float) -> None:
        """Refresh found partitions after ``seconds``."""
        self._topics = topics
        self._seconds = seconds
        self._entries: dict[tuple[str, int, str | None], Entry] = {}
        self._lock = threading.Lock()

    def entry(self, topic: str, partition: int, topic_id: str | None) -> Entry:
        """The entry, made at the first call."""
        name = (topic, partition, topic_id)
        with self._lock:
            if name not in self._entries:
                self._entries[name] = Entry(self._topics, name, self._seconds)
            return self._entries[name]

    def forget(self, entry: Entry) -> None:
        """Drop ``entry``; a caller that holds it may still use it."""
        with self._lock:
            if self._entries.get(entry.name) is entry:
                del self._entries[entry.name]
