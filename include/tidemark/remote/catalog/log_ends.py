"""What the brokers' agents saw last of a cluster, by their watermark indexes."""

from __future__ import annotations

import logging
import threading
import time
from datetime import datetime
from typing import Final

from tidemark.formats.keys import ControlKeys, Endpoint
from tidemark.formats.watermark_index import IndexEntry, WatermarkIndex, listed, load_all
from tidemark.remote.catalog.storage import Storage

_SECONDS: Final = 5.0
"""Agents write at most every 10 s."""

log = logging.getLogger(__name__)


class Observations:
    """The watermark indexes of a cluster: listed anew after five seconds, read where they changed. Thread-safe."""

    def __init__(self, storage: Storage) -> None:
        """Nothing is read yet."""
        self._storage = storage
        self._lock = threading.Lock()
        self._looked_at: dict[Endpoint, float] = {}
        self._read: dict[tuple[str, str], tuple[str, WatermarkIndex]] = {}

    def entries(self, topic: str, partition: int = 0) -> list[IndexEntry]:
        """What all brokers say of ``topic``, whose ``partition`` tells where it is kept."""
        places = {self._storage.default(), self._storage.endpoint(topic, partition)}
        with self._lock:
            for place in places:
                if time.monotonic() - self._looked_at.get(place, -_SECONDS) >= _SECONDS:
                    self._look(place)
                    self._looked_at[place] = time.monotonic()
            indexes = [index for _, index in self._read.values()]
        return [entry for index in indexes for entry in index.entries if entry.topic == topic]

    def log_end(self, topic: str, incarnation: int, partition: int, highest: int) -> tuple[int, datetime] | None:
        """The log end that the leader's agent saw last, and when; ``highest`` is the leader epoch of ``offset.wm``."""
        mine = [
            one
            for one in self.entries(topic, partition)
            if (one.incarnation, one.partition) == (incarnation, partition) and one.leader_epoch <= highest
        ]
        best = max(mine, key=lambda one: (one.leader_epoch, one.next_offset, one.observed_at), default=None)
        return (best.log_end_offset, best.observed_at) if best else None

    def _look(self, place: Endpoint) -> None:
        store = self._storage.store(place.store)
        found = listed(store, ControlKeys(place.prefix, self._storage.cluster).indexes)
        etags = {one.key: one.etag for one in found}
        changed = [one for one in found if self._read.get((place.store, one.key), ("",))[0] != one.etag]
        loaded = load_all(store, changed, of=etags)
        for key, index in loaded.indexes.items():
            self._read[place.store, key] = etags[key], index
        for key, error in loaded.failures.items():
            log.warning("%s is not read, what it said before still counts: %s", key, error)
