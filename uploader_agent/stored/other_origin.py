"""Agents that get logs the other way: disk agents beside a slot, slots beside a disk agent, by their watermark indexes.

A compacted log may be packed and sealed by one of them at a time. Under one leader epoch each would name its own
batches, and a late pack of one may hold records that compaction had removed before the other sealed.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Final

from tidemark.errors import ContinuityError
from tidemark.formats.keys import TopicPartition
from tidemark.formats.raw.cluster import of_broker, origin_of
from tidemark.formats.raw.manifest import Origin
from tidemark.formats.raw.watermark_index import WatermarkIndex, parse_index
from tidemark.formats.table.object_cache import ObjectCache
from tidemark.storage import ClusterStore
from tidemark.store import ObjectInfo
from uploader_agent.runtime import Runtime
from uploader_agent.tuning import STANDARD

SILENCE: Final = 3 * STANDARD.index_idle_interval
"""Time without a new index after which an agent is taken to be stopped.

A running one waits for both intervals of its index at most; the rest is for the writing.
"""

_LOOK_SECONDS: Final = 10.0


class OtherOrigin:
    """The agents of another origin than ``origin``, by the indexes of ``cluster``. Any thread may ask."""

    def __init__(self, cluster: ClusterStore, origin: Origin, runtime: Runtime) -> None:
        self._origin, self._runtime = origin, runtime
        self._cache = ObjectCache(cluster.store, cluster.keys.indexes, _Led)
        self._look_at = runtime.monotonic()
        self._lock = runtime.lock()

    def check(self, tp: TopicPartition, topic_id: str | None) -> None:
        """Refuse to go on beside another agent.

        Raises:
            ContinuityError: the index of a running agent of another origin has the partition.
            StoreError, FormatError: an index cannot be read.
        """
        with self._lock:
            if self._runtime.monotonic() >= self._look_at:
                self._cache.look()
                self._look_at = self._runtime.monotonic() + _LOOK_SECONDS
            for error in self._cache.failures.values():
                raise error
            led = list(self._cache.kept.values())
        silent_before = self._runtime.utc_now() - SILENCE
        others = [index for index in led if origin_of(index.broker) != self._origin]
        for index in others:
            if index.written_at > silent_before and (tp, topic_id) in index.partitions:
                who = f"the agent of {of_broker(index.broker)} uploads it by {origin_of(index.broker)}"
                rule = f"and this one would by {self._origin}: one origin at a time may upload a compacted log"
                remedy = "exclude the topic there, or stop that agent; this one goes on three minutes later"
                raise ContinuityError(f"{tp}: {who}, {rule}; {remedy}")


class _Led:
    """The partitions in an agent's index, with their topic ids."""

    def __init__(self, body: bytes, info: ObjectInfo) -> None:
        index: WatermarkIndex = parse_index(body, info)
        self.broker: int = index.broker
        self.written_at: datetime = index.written_at
        self.partitions: Collection[tuple[TopicPartition, str | None]] = {
            (TopicPartition(entry.topic, entry.partition), entry.topic_id) for entry in index.entries
        }
