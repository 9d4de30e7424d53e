"""The known state of partitions, without a request: the catalogue's, and Kafka's log start and end.

Threads of their own answer queries, because `poll` must not wait for storage; each answer wakes the caller. A query
under way is not repeated.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NamedTuple

from kafka import errors as kafka_errors
from kafka.errors import KafkaError
from kafka.protocol.consumer import ListOffsetsRequest, OffsetSpec

from tidemark.errors import TidemarkError
from tidemark.formats.keys import TopicPartition
from tidemark.formats.raw.incarnations import topic_id_text
from tidemark.remote.partition import RemotePartition
from tidemark.remote.reader.tier import RemoteTier
from tidemark.remote.topics import START_MAX_AGE

log = logging.getLogger(__name__)

THREADS: Final = 4
_ASKING_THREADS: Final = 2
_NEVER: Final = float("-inf")
_LOCAL_STARTS: Final = 8
"""The first version of ListOffsets that asks for the start of the disk."""

Times = Mapping[TopicPartition, int]
Found = dict[TopicPartition, Any]
"""kafka-python's ``OffsetAndTimestamp`` by partition; a partition without an answer is left out."""


class LogRange(NamedTuple):
    """The offsets ``[start, end)`` of a log; at read_committed the end is the last stable offset.

    From ``disk_start`` on they are on the broker's disk. Those below only Kafka's own remote tier has (KIP-405), and
    the broker reads them back from its store.
    """

    start: int
    end: int
    disk_start: int


_UNASKED: Final = LogRange(0, 0, 0)


class Brokers:
    """Queries to the brokers about offsets and topics, as kafka-python's own requests, from any thread.

    They go through a consumer's manager and loop, and through a plain ``Fetcher`` that fetches nothing.
    """

    def __init__(self, manager: Any, net: Any, plain: Any, timeout_ms: float) -> None:
        self._manager = manager
        self._net = net
        self._plain = plain
        self._timeout_ms = timeout_ms

    def offsets(self, times: Times, timeout_ms: float | None) -> Found:
        """Offsets from ListOffsets: at a time, or at the log's start or end."""
        offsets: Found = self._plain.offsets_by_times(dict(times), timeout_ms)
        return {tp: offset for tp, offset in offsets.items() if offset is not None}

    def log_range(self, partitions: list[TopicPartition]) -> dict[TopicPartition, LogRange]:
        """The log of each partition; those without an answer are left out. Waits."""
        starts = self.offsets(dict.fromkeys(partitions, OffsetSpec.EARLIEST), self._timeout_ms)
        ends = self.offsets(dict.fromkeys(partitions, OffsetSpec.LATEST), self._timeout_ms)
        on_disk = starts
        if self._know_remote_tiers():
            on_disk = self.offsets(dict.fromkeys(partitions, OffsetSpec.EARLIEST_LOCAL), self._timeout_ms)
        known = starts.keys() & ends.keys() & on_disk.keys()
        return {tp: LogRange(starts[tp].offset, ends[tp].offset, on_disk[tp].offset) for tp in known}

    def _know_remote_tiers(self) -> bool:
        """True if the brokers tell where their disks begin: ListOffsets 8, of Kafka 3.6."""
        versions = self._manager.broker_version_data
        try:
            return versions is not None and versions.api_version(ListOffsetsRequest) >= _LOCAL_STARTS
        except kafka_errors.IncompatibleBrokerVersion:
            return False

    def topic_id(self, topic: str) -> str | None:
        """The topic's id, after a request for metadata if the consumer has none of this topic yet. Waits."""
        cluster = self._manager.cluster
        if cluster.partitions_for_topic(topic) is None:
            cluster.add_topic(topic)
            try:
                self._net.run(self._manager.wait_for, cluster.request_update(), self._timeout_ms)
            except (kafka_errors.KafkaTimeoutError, kafka_errors.UnknownTopicOrPartitionError):
                return None  # the topic may be deleted, and its history is read all the same
        return self.topic_id_now(topic)

    def topic_id_now(self, topic: str) -> str | None:
        """The topic's id in the newest metadata, without a request."""
        return topic_id_text(self._manager.cluster.topic_id(topic))


@dataclass
class Sight:
    """The last seen state of a partition; times are of ``time.monotonic``, and of the moment before the look."""

    topic_id: str | None = None
    remote: RemotePartition | None = None
    remote_at: float = _NEVER
    looked_at: float = _NEVER
    """The last look at the catalogue, answered or not."""
    log_end: tuple[int, datetime] | None = None
    """The log end that an agent saw last, and when, from the last look with ``log_end``."""
    error: Exception | None = None
    kafka: LogRange = _UNASKED
    kafka_at: float = _NEVER
    asking: set[str] = field(default_factory=set)

    @property
    def known(self) -> bool:
        """True if the catalogue was ever read."""
        return self.remote_at > _NEVER


class Scouts:
    """Threads that answer queries. ``wake`` is called after each answer."""

    def __init__(self, catalogue: RemoteTier, brokers: Brokers, wake: Callable[[], None]) -> None:
        self._catalogue = catalogue
        self._brokers = brokers
        self._wake = wake
        self._sights: dict[TopicPartition, Sight] = {}
        self._for_brokers: set[TopicPartition] = set()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._looks = ThreadPoolExecutor(THREADS, thread_name_prefix="tidemark-scout")
        self._pool = ThreadPoolExecutor(_ASKING_THREADS, thread_name_prefix="tidemark-asking")

    def sight(self, tp: TopicPartition) -> Sight:
        """The known state of ``tp``."""
        with self._lock:
            return self._sights.setdefault(tp, Sight())

    def forget(self, tp: TopicPartition) -> None:
        """Drop the state of ``tp``, as when another incarnation of it begins. Answers under way are ignored."""
        with self._lock:
            self._sights.pop(tp, None)
            self._for_brokers.discard(tp)
            self._catalogue.forget(tp)

    def look(self, tp: TopicPartition, *, log_end: bool = False) -> None:
        """Read the catalogue of ``tp`` soon, with ``log_end`` also the log end that agents saw."""
        with self._lock:
            sight = self._sights.setdefault(tp, Sight())
            if "remote" in sight.asking or self._closed.is_set():
                return
            sight.asking.add("remote")
        self._submit(self._looks, lambda: self._look(tp, sight, log_end=log_end))

    def ask_brokers(self, partitions: Iterable[TopicPartition]) -> None:
        """Query log start and end soon; partitions that wait for the same thread share one request."""
        with self._lock:
            for tp in partitions:
                sight = self._sights.setdefault(tp, Sight())
                if "kafka" not in sight.asking:
                    sight.asking.add("kafka")
                    self._for_brokers.add(tp)
        self.run(self._ask)

    def run(self, task: Callable[[], Any]) -> None:
        """Run ``task`` in a thread that never waits for the catalogue, unless this is closed."""
        self._submit(self._pool, task)

    def _submit(self, pool: ThreadPoolExecutor, task: Callable[[], Any]) -> None:
        with self._lock:
            if not self._closed.is_set():
                pool.submit(self._guarded, task)

    def read(self, tp: TopicPartition) -> RemotePartition | None:
        """The catalogue of ``tp``, read now, by this thread, with retries.

        Raises:
            TidemarkError: of the store, or of an object in it.
        """
        return self._read(tp, self._brokers.topic_id(tp.topic))

    def close(self) -> None:
        """Ignore all further answers. A task that waits for a server ends with that answer."""
        with self._lock:
            self._closed.set()
        for pool in (self._looks, self._pool):
            pool.shutdown(wait=False, cancel_futures=True)

    def _guarded(self, task: Callable[[], Any]) -> None:
        try:
            task()
        except Exception:
            if not self._closed.is_set():
                log.exception("a look at partitions failed")
        finally:
            self._wake()

    def _look(self, tp: TopicPartition, sight: Sight, *, log_end: bool) -> None:
        began = time.monotonic()
        remote, error, topic_id, seen = sight.remote, None, sight.topic_id, sight.log_end
        try:
            topic_id = self._brokers.topic_id(tp.topic)
            remote = self._read(tp, topic_id, START_MAX_AGE)
            if log_end:
                seen = remote.observed_log_end() if remote is not None else None
        except (TidemarkError, KafkaError) as met:
            error = met
        with self._lock:
            sight.topic_id, sight.error, sight.looked_at, sight.log_end = topic_id, error, began, seen
            if error is None:
                sight.remote, sight.remote_at = remote, began
            sight.asking.discard("remote")
            if tp not in self._sights:  # forgotten meanwhile
                self._catalogue.forget(tp)

    def _read(self, tp: TopicPartition, topic_id: str | None, start_max_age: float = 0.0) -> RemotePartition | None:
        remote = self._catalogue.partition(tp.topic, tp.partition, topic_id)
        if remote is not None:
            remote.refresh(start_max_age)  # each request is tried again by the catalogue's own stores
        return remote

    def _ask(self) -> None:
        with self._lock:
            wanted = {tp: self._sights[tp] for tp in self._for_brokers}
            self._for_brokers.clear()
        began = time.monotonic()
        ranges: dict[TopicPartition, LogRange] = {}
        try:
            if wanted:
                ranges = self._brokers.log_range(list(wanted))
        except KafkaError as error:
            log.info("the brokers did not report start and end of %s; asking again: %s", list(wanted), error)
        finally:
            with self._lock:
                for tp, sight in wanted.items():
                    sight.asking.discard("kafka")
                    if tp in ranges:
                        sight.kafka, sight.kafka_at = ranges[tp], began
