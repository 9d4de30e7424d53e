"""The topics of a cluster's remote tier, their partitions by incarnation, and what agents last reported of them."""

from __future__ import annotations

import logging
import threading
import time
from datetime import datetime
from typing import Final

from tidemark.concurrency import OnePerKey
from tidemark.config import hint
from tidemark.formats.keys import Endpoint
from tidemark.formats.raw.incarnations import Incarnation
from tidemark.formats.raw.watermark_index import IndexEntry, WatermarkIndex, parse_index, rank
from tidemark.formats.table.object_cache import ObjectCache, log_failures
from tidemark.raw.heads import LiveEnd
from tidemark.raw.masks import TopicMasks
from tidemark.raw.partition import RawPartition
from tidemark.remote.partition import RemotePartition
from tidemark.remote.segments import IndexObjects
from tidemark.storage import Storage

# How old what a reader knows may be, apart from what it looks at itself: offset.wm, and the heads that it lists.

MASKS_MAX_AGE: Final = 30.0
"""Seconds for which an index of masks counts: an erased record is delivered so much longer at most."""

START_MAX_AGE: Final = 60.0
"""Seconds for which a partition's start counts, unless it is asked for: its listing costs most."""

OBSERVATIONS_MAX_AGE: Final = 5.0
"""Seconds for which the agents' watermark indexes count: most are written every 10 s."""

log = logging.getLogger(__name__)


class RemoteTopics:
    """The topics of a storage's cluster. Thread-safe."""

    def __init__(self, storage: Storage, heads_max_age: float = 0.0, *, kafka_too: bool = False) -> None:
        """Start with nothing read. Heads of the brokers count for ``heads_max_age`` seconds, for all partitions.

        With ``kafka_too``, for readers of Kafka as well, what Kafka's own remote tier has is never passed over.
        """
        self._kafka_too = kafka_too
        self.storage = storage
        self._indexes = IndexObjects()
        self._observations = Observations(storage)
        self._live_end = LiveEnd(heads_max_age)
        self._masks = OnePerKey[str, TopicMasks](
            lambda place: TopicMasks(storage.cluster_store(), place, MASKS_MAX_AGE)
        )

    def partition(self, topic: str, partition: int, topic_id: str | None = None) -> RemotePartition | None:
        """The partition of the incarnation ``topic_id``, or of the newest; None if no agent has seen that one."""
        numbered = self._incarnation(topic, topic_id)
        if numbered is None:
            return None
        number, incarnation = numbered
        keys = self.storage.partition_keys(topic, partition, incarnation.place)
        part = RawPartition(number, incarnation.topic_id, keys)
        remote = RemotePartition(
            self.storage,
            topic,
            part,
            self._indexes,
            self._live_end,
            self._masks.of(keys.place),
            self._observations,
            kafka_too=self._kafka_too,
        )
        remote.refresh()
        return remote

    def partitions_for_topic(self, topic: str) -> set[int]:
        """The partitions of the newest incarnation that the brokers' agents have reported; empty if there are none."""
        newest = self._incarnation(topic, None)
        entries = self._observations.entries(topic) if newest is not None else []
        return {entry.partition for entry in entries if newest is not None and entry.incarnation == newest[0]}

    def topics(self) -> set[str]:
        """The topics that agents have seen."""
        cluster = self.storage.cluster_store()
        folder = cluster.keys.incarnations("-").removesuffix("-.json")
        listed = cluster.store.list(folder)
        return {info.key.removeprefix(folder).removesuffix(".json") for info in listed}

    def unseen(self, topic: str) -> str:
        """A message about a topic that no agent has seen."""
        return f"no agent of cluster {self.storage.cluster} has ever seen this topic; {hint(topic, self.topics())}"

    def _incarnation(self, topic: str, topic_id: str | None) -> tuple[int, Incarnation] | None:
        listed = self.storage.cluster_store().incarnations(topic)
        if topic_id is not None:
            return listed.find(topic_id)
        return (len(listed.incarnations) - 1, listed.incarnations[-1]) if listed.incarnations else None


class Observations:
    """The last state of a cluster that the agents reported in their watermark indexes. Thread-safe.

    The indexes are listed again after five seconds, and read if they changed.
    """

    def __init__(self, storage: Storage) -> None:
        """Start with no index read."""
        self._storage = storage
        self._lock = threading.Lock()
        self._looked_at: dict[Endpoint, float] = {}
        self._indexes: dict[Endpoint, ObjectCache[WatermarkIndex]] = {}

    def entries(self, topic: str, partition: int = 0) -> list[IndexEntry]:
        """The entries of all brokers for ``topic``; its ``partition`` determines the endpoint."""
        places = {self._storage.default(), self._storage.endpoint(topic, partition)}
        with self._lock:
            for place in places:
                if time.monotonic() - self._looked_at.get(place, -OBSERVATIONS_MAX_AGE) >= OBSERVATIONS_MAX_AGE:
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
            cluster = self._storage.cluster_store(place)
            self._indexes[place] = ObjectCache(
                cluster.store, cluster.keys.indexes, parse_index, on_failure=log_failures(log)
            )
        self._indexes[place].look()
        self._indexes[place].check()
