"""The last state of a cluster that the agents reported in their watermark indexes."""

from __future__ import annotations

import logging
import threading
import time
from datetime import datetime
from typing import Final

from tidemark.formats.keys import ControlKeys, Endpoint
from tidemark.formats.raw.watermark_index import IndexEntry, WatermarkIndex, parse_index, rank
from tidemark.formats.table.index_cache import IndexCache, log_failures
from tidemark.remote.catalog.storage import Storage

_SECONDS: Final = 5.0
"""Agents write at most every 10 s."""

log = logging.getLogger(__name__)


class Observations:
    """The watermark indexes of a cluster: listed again after five seconds, read if they changed. Thread-safe."""

    def __init__(self, storage: Storage) -> None:
        """Start with no index read."""
        self._storage = storage
        self._lock = threading.Lock()
        self._looked_at: dict[Endpoint, float] = {}
        self._indexes: dict[Endpoint, IndexCache[WatermarkIndex]] = {}

    def entries(self, topic: str, partition: int = 0) -> list[IndexEntry]:
        """The entries of all brokers for ``topic``; its ``partition`` determines the endpoint."""
        places = {self._storage.default(), self._storage.endpoint(topic, partition)}
        with self._lock:
            for place in places:
                if time.monotonic() - self._looked_at.get(place, -_SECONDS) >= _SECONDS:
                    self._look(place)
                    self._looked_at[place] = time.monotonic()
            indexes = [index for place in places for index in self._indexes[place].kept.values()]
        return [entry for index in indexes for entry in index.entries if entry.topic == topic]

    def log_end(
        self, topic: str, incarnation: int, partition: int, latest: tuple[int, int] | None
    ) -> tuple[int, datetime] | None:
        """The log end that the leader's agent last saw, and when; ``latest`` is the leadership of ``offset.wm``.

        An observation from before the last restore does not count.
        """
        entries = [
            entry
            for entry in self.entries(topic, partition)
            if (entry.incarnation, entry.partition) == (incarnation, partition)
            and (latest is None or (latest[0], 0) <= entry.leadership <= latest)
        ]
        newest = max(entries, key=rank, default=None)
        return (newest.log_end_offset, newest.observed_at) if newest else None

    def _look(self, place: Endpoint) -> None:
        if place not in self._indexes:
            store = self._storage.store(place.store)
            folder = ControlKeys(place.prefix, self._storage.cluster).indexes
            self._indexes[place] = IndexCache(store, folder, parse_index, on_failure=log_failures(log))
        self._indexes[place].look()
        self._indexes[place].check()
