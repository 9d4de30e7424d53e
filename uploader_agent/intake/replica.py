"""The replica of one slot: followers of all partitions that the slot owns, whose spool an agent uploads from.

A slot is to the store what a broker is: its number takes the place of a broker's id. Each partition belongs to one
slot, by highest random weight over its topic id and number, so another number of slots moves few partitions.

Its thread alone writes the spool. It reads ``offset.wm`` when it begins a spool, and removes segments that
``offset.wm`` accounts for. An error of the disk closes all files; they are opened again as after a restart.
"""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Final

import structlog
from typing_extensions import override

from tidemark.concurrency import in_parallel
from tidemark.errors import FormatError
from tidemark.formats.keys import TopicPartition
from tidemark.kafka_log import Lineage
from uploader_agent.broker.admin import BrokerUnavailable, Offsets
from uploader_agent.disk.log_dirs import find_partitions, topic_id_of
from uploader_agent.intake.fetcher import WAITS, Fetcher, FirstHighWatermarks
from uploader_agent.intake.fetching import Cluster, FetchStopped, Retention, StopReason, TopicAnswer, TopicLeaders
from uploader_agent.intake.follower import FollowerState, PartitionFollower
from uploader_agent.intake.last_stored import StoredEnd, stored_end
from uploader_agent.intake.spool import PartitionSpool
from uploader_agent.log_source import FoundParting, LogSource
from uploader_agent.observability.metrics import Metrics
from uploader_agent.runtime import MACHINE, Runtime
from uploader_agent.settings import FetchSettings
from uploader_agent.stored.incarnations import Resolve
from uploader_agent.tuning import STANDARD
from uploader_agent.worker import Worker

logger = structlog.get_logger(__name__)

_REFRESH_SECONDS: Final = 10.0
"""Time after which the replica looks for new topics and partitions."""

_PAUSE_SECONDS: Final = 5.0
"""Time after an error of the disk, or of all partitions, before the replica tries again."""

_MEASURE_SECONDS, _STANDS_SECONDS = 1.0, 10.0
"""Time between two measurements of the spool, and of one that has room and did not grow."""

_RETENTION_SECONDS: Final = 60.0
"""Time between two questions about the topics' retention."""

_LEFT_SECONDS: Final = 10.0
"""Time between two comparisons with it."""

_TELL_SECONDS: Final = 300.0

_PATIENCE_SECONDS: Final = 60.0
"""Time without a new batch after which :meth:`SlotReplica.catch_up` gives up."""


def slot_of(topic_id: str, partition: int, slots: int) -> int:
    """The slot, of ``slots``, that owns a partition."""

    def weight(slot: int) -> bytes:
        return hashlib.blake2b(f"{topic_id} {partition} {slot}".encode(), digest_size=8).digest()

    return max(range(slots), key=weight)


def owns(settings: FetchSettings, topic_id: str, partition: int) -> bool:
    """True if a partition is of the slot of ``settings``."""
    return slot_of(topic_id, partition, settings.slots) == settings.slot


class SlotReplica(LogSource):
    """The replica of ``settings.slot``, in segments of ``segment`` bytes; ``resolve`` finds what is stored."""

    origin = "fetch"
    marks_gaps = True
    has_whole_log = False

    def __init__(
        self,
        settings: FetchSettings,
        cluster: Cluster,
        resolve: Resolve,
        metrics: Metrics,
        runtime: Runtime = MACHINE,
        segment: int = STANDARD.fetch_segment,
    ) -> None:
        self._runtime = runtime
        self._segment = segment
        self._settings, self._cluster = settings, cluster
        self._accepts_topic: Callable[[str], bool] = lambda _: True
        self._resolve, self._metrics, self._clock = resolve, metrics, runtime.monotonic
        self._fetcher = Fetcher(cluster, self._clock)
        self._goals = FirstHighWatermarks()
        self._opened = self._listed = False
        self._refresh_at = self._measure_at = self._clock()
        self._full = False
        self._size = self._measured_fetched = 0
        self._stored: dict[tuple[TopicPartition, str], int] = {}
        """The end of the offsets that ``offset.wm`` accounts for."""
        self._lock = threading.Lock()
        self._news: dict[tuple[TopicPartition, str], int] = {}
        self._again: set[tuple[TopicPartition, str]] = set()
        self.worker = Worker("replica", self._take_turn, runtime, failed=self._has_failed, ended=self.close)
        self.over: Mapping[tuple[TopicPartition, str], int] = {}
        """The ends of the spools of topics that were deleted, until the store has them; replaced as a whole."""
        self._retention: Mapping[str, Retention] = {}
        self._retention_at = self._left_at = self._clock()
        self._left: Mapping[tuple[TopicPartition, str], float] = {}
        """What is left of each partition's retention; replaced as a whole."""
        self._parted: Mapping[tuple[TopicPartition, str], FoundParting] = {}
        """The partitions whose leader has another log; replaced as a whole."""
        self._refused: dict[str, FetchStopped] = {}
        """The topics that no broker describes, and the partitions with a directory that cannot be used."""
        self._told: set[str] = set()
        self._tell_at = self._clock() + _TELL_SECONDS

    # -- what the spool allows to conclude ----------------------------------------------------------------------------

    @override
    def lost_below(self, end: int, offsets: Offsets | None) -> int:
        """See :class:`LogSource`. What the spool lacks above the leader's log start can still be fetched."""
        return min(end, offsets.log_start_offset or 0) if offsets else 0

    @override
    def stored(self, tp: TopicPartition, topic_id: str | None, end: int) -> None:
        with self._lock:
            self._news[tp, topic_id or ""] = end

    @override
    def begin_again(self, tp: TopicPartition, topic_id: str | None) -> None:
        with self._lock:
            self._again.add((tp, topic_id or ""))

    @override
    def retention_left(self, tp: TopicPartition, topic_id: str | None) -> float | None:
        return self._left.get((tp, topic_id or ""))

    @override
    def parting(self, tp: TopicPartition, topic_id: str | None) -> FoundParting | None:
        return self._parted.get((tp, topic_id or ""))

    # -- the thread ---------------------------------------------------------------------------------------------------

    @override
    @contextmanager
    def running(self, accepts_topic: Callable[[str], bool]) -> Iterator[Worker | None]:
        self._accepts_topic = accepts_topic
        self.worker.start()
        try:
            yield self.worker
        finally:
            self.worker.stop()
            self.worker.join()

    @override
    def catch_up(self, accepts_topic: Callable[[str], bool]) -> None:
        self._accepts_topic = accepts_topic
        self._turn()
        while (
            late := [follower for follower in self._fetcher.line if not self._is_caught_up(follower)]
        ) or not self._listed:
            if self._clock() - self._fetcher.grown_at > _PATIENCE_SECONDS or self._full:
                logger.warning("spool_not_caught_up", partitions=[str(follower.tp) for follower in late])
                return
            self._turn()

    def _is_caught_up(self, follower: PartitionFollower) -> bool:
        return follower.ended or self._goals.reached(follower)

    def _take_turn(self) -> float:
        self._turn()
        return 0.0

    def _has_failed(self, error: Exception) -> float:
        """Report an error, which does not end the thread: all partitions need it, and files open as after a kill."""
        logger.warning("replica_failed", error=f"{type(error).__name__}: {error}", again=_PAUSE_SECONDS)
        with suppress(OSError):
            self.close()
        return _PAUSE_SECONDS

    def _turn(self) -> None:
        if not self._opened:
            self._open_directories()
        self._take_news()
        self._ask_for_leaders()
        before = self._fetcher.fetched, self._fetcher.throttled
        self._fetcher.turn(self._rests)
        self._metrics.fetched_bytes.inc(self._fetcher.fetched - before[0])
        self._metrics.fetch_throttled.inc(self._fetcher.throttled - before[1])
        if self._fetcher.heard or self.over:
            self._end_deleted()
        grown = self._fetcher.fetched - self._measured_fetched
        if self._clock() >= self._measure_at or (self._size + grown >= self._settings.spool_max and not self._full):
            self._measure()

    def _rests(self, follower: PartitionFollower) -> bool:
        """True if nothing is to be fetched. A full spool still follows elections: it is sealed under the new epoch."""
        return follower.ended or (self._full and follower.state is FollowerState.FOLLOWING)

    def close(self) -> None:
        """Close the spool's files; the next turn opens them again."""
        for follower in self._fetcher.line:
            follower.spool.close()
        self._fetcher, self._opened = Fetcher(self._cluster, self._clock), False
        self._measured_fetched = 0

    # -- partitions ---------------------------------------------------------------------------------------------------

    def _open_directories(self) -> None:
        """Follow what the spool has, even of topics that were deleted in the meantime."""
        self._settings.spool.mkdir(parents=True, exist_ok=True)
        found = find_partitions([self._settings.spool]).partitions
        topic_ids = ((tp, topic_id_of(folder)) for tp, folder in found.items() if self._accepts_topic(tp.topic))
        self._follow([(tp, topic_id) for tp, topic_id in topic_ids if topic_id is not None], threads=1)
        self._opened = True

    def _follow(self, partitions: Iterable[tuple[TopicPartition, str]], threads: int) -> None:
        """Follow the ``partitions`` of this slot. Raises the last error of the disk, once the others are followed."""
        ours = [(tp, topic_id) for tp, topic_id in partitions if owns(self._settings, topic_id, tp.partition)]
        failure: OSError | None = None
        for (tp, topic_id), opened in zip(ours, in_parallel(lambda own: self._open(*own), ours, threads), strict=True):
            match opened:
                case PartitionSpool():
                    self._fetcher.add(PartitionFollower(tp, topic_id, opened, self._stored_end))
                case FetchStopped():
                    self._refused[str(tp)] = opened
                case OSError():
                    failure = opened
        if failure is not None:
            raise failure

    def _open(self, tp: TopicPartition, topic_id: str) -> PartitionSpool | FetchStopped | OSError:
        """A partition's spool, or the reason for which it cannot be used."""
        try:
            return PartitionSpool(self._settings.spool, tp, topic_id, self._segment)
        except FormatError as error:
            return FetchStopped(StopReason.SPOOL, f"{error}; remove the directory")
        except OSError as error:
            return error

    def _ask_for_leaders(self) -> None:
        if self._clock() >= self._refresh_at:
            self._fetcher.learn(None, self._follow_new)
        elif asking := self._fetcher.asking():
            self._fetcher.learn(asking, lambda _: None)

    def _follow_new(self, topics: Mapping[str, TopicAnswer]) -> None:
        self._listed, self._refresh_at = True, self._clock() + _REFRESH_SECONDS
        accepted = {name for name in topics.keys() | self._names() if self._accepts_topic(name)}
        for follower in [follower for follower in self._fetcher.line if follower.tp.topic not in accepted]:
            follower.spool.close()
            self._fetcher.remove(follower)
        answers = {name: topics[name] for name in accepted & topics.keys()}
        self._refused = {name: answer for name, answer in answers.items() if isinstance(answer, FetchStopped)}
        described = {name: answer for name, answer in answers.items() if isinstance(answer, TopicLeaders)}
        found = [
            (TopicPartition(name, partition), topic_id)
            for name, (topic_id, leaders) in described.items()
            for partition in leaders
        ]
        self._follow([(tp, topic_id) for tp, topic_id in found if tp not in self._fetcher.followers], WAITS)

    def _names(self) -> set[str]:
        return {follower.tp.topic for follower in self._fetcher.line}

    def _end_deleted(self) -> None:
        """Have the rest of deleted topics sealed, and remove the spools of which the store has everything."""
        over: dict[tuple[TopicPartition, str], int] = {}
        for follower in [follower for follower in self._fetcher.line if follower.state is FollowerState.OVER]:
            key, spool = (follower.tp, follower.topic_id), follower.spool
            if spool.end is None or self._stored.get(key, 0) >= spool.end:
                logger.info("spool_removed", partition=str(follower.tp), topic_id=follower.topic_id)
                spool.remove()
                self._fetcher.remove(follower)
                self._stored.pop(key, None)
                self._refresh_at = self._clock()  # another topic may have the name
            else:
                spool.roll()
                over[key] = spool.end
        self.over, self._fetcher.heard = over, False

    def _take_news(self) -> None:
        with self._lock:
            stored, again = self._news, self._again
            self._news, self._again = {}, set()
        self._stored |= stored
        for tp, topic_id in stored.keys() | again:
            follower = self._fetcher.followers.get(tp)
            if follower is None or follower.topic_id != topic_id:
                continue
            if (tp, topic_id) in again:
                logger.warning("spool_begun_again", partition=str(tp), began_at=follower.spool.start)
                follower.begin_again(self._clock())
                self._fetcher.unasked = True
            else:
                follower.spool.drop_below(stored[tp, topic_id])

    def _measure(self) -> None:
        """Note the size of the spool. While it is full, nothing is fetched, and all segments end, to be sealed."""
        self._size = sum(follower.spool.size for follower in self._fetcher.line)
        grown, self._measured_fetched = self._fetcher.fetched != self._measured_fetched, self._fetcher.fetched
        full = self._size >= self._settings.spool_max
        if full and not self._full:
            logger.warning("spool_full", size=self._size, spool_max=self._settings.spool_max)
            for follower in self._fetcher.line:
                follower.spool.roll()
        self._fetcher.unasked |= full != self._full
        self._full = full
        self._metrics.spool_bytes.set(self._size)
        if self._clock() >= self._left_at:
            self._measure_retention()
        self._tell()
        self._measure_at = self._clock() + (_MEASURE_SECONDS if grown or full else _STANDS_SECONDS)

    def _tell(self) -> None:
        """Count what has stopped; log it once, and every five minutes with the partitions that wait."""
        line, now = self._fetcher.line, self._clock()
        stopped = {str(follower.tp): follower.error for follower in line if isinstance(follower.error, FetchStopped)}
        stopped |= self._refused
        parted = {(follower.tp, follower.topic_id): follower.parting for follower in line if follower.parting}
        found_at = self._runtime.utc_now()
        self._parted = {
            key: self._parted.get(key) or FoundParting(parting, found_at) for key, parting in parted.items()
        }
        counts = Counter(error.reason for error in stopped.values())
        for reason in StopReason:
            self._metrics.stopped_partitions.labels(reason).set(counts[reason])
        if now < self._tell_at and stopped.keys() <= self._told:
            return
        waiting = [str(follower.error) for follower in line if follower.error and follower.asks_for_leader(now)]
        self._told, self._tell_at = {*stopped}, now + _TELL_SECONDS
        for name, error in stopped.items():
            logger.error("partition_stopped", partition=name, error=str(error), remedy="mend that, and start again")
        if waiting:
            logger.warning("partitions_wait", partitions=len(waiting), error=waiting[0])

    def _measure_retention(self) -> None:
        """Compare age and size of what is to be fetched with the time and the bytes that the brokers keep."""
        line, now = self._fetcher.line, self._clock()
        self._left_at = now + _LEFT_SECONDS
        if now >= self._retention_at:
            self._retention_at = now + _RETENTION_SECONDS
            self._cluster.start(self._ask_for_retention())
        left: dict[tuple[TopicPartition, str], float] = {}
        for follower in line:
            kept = self._retention.get(follower.tp.topic)
            if kept is not None and follower.high_watermark is not None:
                left[follower.tp, follower.topic_id] = self._retention_left(follower, follower.high_watermark, kept)
        self._left = left
        self._metrics.retention_left.set(min(left.values(), default=1.0))

    def _retention_left(self, follower: PartitionFollower, high_watermark: int, kept: Retention) -> float:
        missing = max(0, high_watermark - (follower.spool.end or 0))
        age = self._runtime.time() - (follower.newest or 0) / 1000 if missing and follower.newest is not None else 0.0
        used = [] if kept.seconds is None else [age / max(kept.seconds, 0.001)]
        used += [] if kept.bytes is None else [missing * (follower.bytes_per_offset or 0) / max(kept.bytes, 1)]
        return round(min(1.0, max(0.0, 1 - max(used, default=0.0))), 3)

    async def _ask_for_retention(self) -> None:
        try:
            self._retention = await self._cluster.retention(self._names())
        except BrokerUnavailable as error:
            logger.warning("retention_unknown", error=str(error))

    def _stored_end(self, tp: TopicPartition, topic_id: str, lineage: Lineage) -> StoredEnd:
        _, partition = self._resolve(tp, topic_id)
        return stored_end(partition, topic_id, lineage)
