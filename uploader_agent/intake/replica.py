"""The replica of one slot: followers of all partitions that the slot owns, whose spool an agent uploads from.

A slot is to the store what a broker is: its number takes the place of a broker's id. Each partition belongs to one
slot, by highest random weight over its topic id and number, so another number of slots moves few partitions.

Its thread alone writes the spool. It reads ``offset.wm`` when it begins a spool, and removes segments that
``offset.wm`` accounts for. An error of the disk closes all files; they are opened again as after a restart.

A :class:`Fetcher` sends requests for what the followers want, and hands out the answers. One request at a time is in
flight to each broker. The partition that came first in a request goes to the end of the line: the first one has room
for a batch of any size.
"""

from __future__ import annotations

import hashlib
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
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
from uploader_agent.intake.fetching import (
    Cluster,
    FetchAnswer,
    FetchedPart,
    FetchStopped,
    FrameTooLarge,
    Retention,
    StopReason,
    TopicAnswer,
    TopicLeaders,
    Wanted,
)
from uploader_agent.intake.follower import FollowerState, PartitionFollower, StoredEnd, stored_end
from uploader_agent.intake.leader_logs import LogAsked, leader_logs
from uploader_agent.intake.spool import PartitionSpool
from uploader_agent.log_source import FoundParting, LogSource
from uploader_agent.observability.metrics import Metrics
from uploader_agent.runtime import MACHINE, Runtime, Worker
from uploader_agent.settings import FetchSettings
from uploader_agent.stored.incarnations import Resolve
from uploader_agent.tuning import STANDARD

logger = structlog.get_logger(__name__)

_WAITS: Final = 16
"""New spools that wait for the disk, or for the store, at once."""

_TURN_SECONDS: Final = 0.1
"""The longest wait for an answer."""

_MOST_IDLE: Final = 3
"""Answers without a batch after which there is none below the high watermark: compaction may have removed the last."""

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


class Fetcher:
    """Fetches for the followers ``line``, in the order of their next requests. For one thread.

    ``unasked`` is true if a follower may be in no request: only then is there something to ask, for thousands that
    are idle. ``heard`` becomes true when followers hear of their topics. ``grown_at`` is when a spool grew last, or a
    broker asked to be left alone; ``throttled`` counts the seconds for which they did, ``fetched`` the bytes.
    """

    def __init__(self, cluster: Cluster, clock: Callable[[], float]) -> None:
        self.line: deque[PartitionFollower] = deque()
        self.followers: dict[TopicPartition, PartitionFollower] = {}
        self.unasked = True
        self.heard = False
        self._learns = False
        self._learn_at = clock()
        self.grown_at = clock()
        self.throttled = 0.0
        self.fetched = 0
        self._cluster, self._clock = cluster, clock
        self._sent: dict[int, list[Wanted]] = {}
        """The request in flight to each broker."""
        self._near: defaultdict[int, bool] = defaultdict(bool)
        """True if the last request to a broker allowed it to name a near replica."""
        self._free_at: defaultdict[int, float] = defaultdict(float)
        """When a broker that throttles, or does not answer, is asked again."""
        self._still: dict[int, list[Wanted]] = {}
        """The requests that are sent again as they are."""
        self._still_until: defaultdict[int, float] = defaultdict(float)
        """When the next request to a broker differs even if there is no news."""
        self._goals: dict[TopicPartition, int] = {}
        """The first high watermark of each follower's leader, as an end for those that copy no further."""

    def has_reached_goal(self, follower: PartitionFollower) -> bool:
        """True if the spool has everything below the first high watermark that was heard."""
        if follower.state is not FollowerState.FOLLOWING or follower.high_watermark is None:
            return False
        goal = self._goals.setdefault(follower.tp, follower.high_watermark)
        # An unclean election may have taken back offsets below it.
        goal = self._goals[follower.tp] = min(goal, follower.log_end or 0)
        return (follower.spool.end or 0) >= goal or follower.idle >= _MOST_IDLE

    def add(self, follower: PartitionFollower) -> None:
        """Fetch for ``follower`` from now on."""
        self.followers[follower.tp] = follower
        self.line.append(follower)
        self.unasked = True

    def remove(self, follower: PartitionFollower) -> None:
        """Fetch for ``follower`` no more."""
        del self.followers[follower.tp]
        self.line.remove(follower)
        self.unasked = True

    def asking(self) -> set[str]:
        """The topics of followers that wait for their leader.

        None within a tenth second of the last :meth:`learn`, nor while its answer is awaited.
        """
        now = self._clock()
        if self._learns or not self.unasked or now < self._learn_at:
            return set()
        return {follower.tp.topic for follower in self.line if follower.asks_for_leader(now)}

    def learn(self, names: Collection[str] | None, take: Callable[[Mapping[str, TopicAnswer]], None]) -> None:
        """Begin to ask who leads the topics ``names``, or all, unless that is being asked already.

        At the answer ``take`` adds followers, and those that there are learn of their leaders.
        """
        if not self._learns:
            self._learns, self._learn_at = True, self._clock() + _TURN_SECONDS
            self._cluster.start(self._learn(names, take))

    async def _learn(self, names: Collection[str] | None, take: Callable[[Mapping[str, TopicAnswer]], None]) -> None:
        try:
            topics = await self._cluster.topics(names)
        except BrokerUnavailable as error:
            for follower in self.line:
                if follower.asks_for_leader(self._clock()):
                    follower.unanswered(error, self._clock())
            return
        finally:
            self.heard, self._learns = True, False
        take(topics)
        by_broker: defaultdict[int, dict[TopicPartition, LogAsked]] = defaultdict(dict)
        for follower in self.line:
            if names is None or follower.tp.topic in names:
                before = follower.state
                leader = follower.hear(topics.get(follower.tp.topic), self._clock())
                self.unasked |= follower.state is not before
                if leader is not None:
                    by_broker[leader.broker][follower.tp] = LogAsked(leader, follower.known)
        for broker, asked in by_broker.items():
            self._cluster.start(self._ask_for_logs(broker, asked, {tp: self.followers[tp] for tp in asked}))

    async def _ask_for_logs(
        self,
        broker: int,
        asked: Mapping[TopicPartition, LogAsked],
        followers: Mapping[TopicPartition, PartitionFollower],
    ) -> None:
        logs = await leader_logs(self._cluster, broker, asked)
        # Each of them reads its stored end, if its spool is new.
        in_parallel(lambda tp: followers[tp].take_log(asked[tp].leader, logs[tp], self._clock()), [*logs], _WAITS)
        self.unasked = True

    def turn(self, rests: Callable[[PartitionFollower], bool]) -> None:
        """Send requests for the followers that do not rest, and hand out the answers that come within a tenth second.

        Raises OSError if a spool cannot be written, and BrokerError if a broker refuses for good.
        """
        self._request(rests)
        for answer in self._cluster.answers(_TURN_SECONDS):
            if not self._repeats(answer):
                self._take(answer)

    def _request(self, rests: Callable[[PartitionFollower], bool]) -> None:
        still, self._still = self._still, {}
        if not self.unasked:
            for broker, wanted_again in still.items():
                self._send(broker, wanted_again)
            return
        self.unasked, now = False, self._clock()
        by_broker: defaultdict[int, list[Wanted]] = defaultdict(list)
        until: defaultdict[int, float] = defaultdict(lambda: float("inf"))
        for follower in self.line:
            if rests(follower):
                continue
            wanted = follower.wanted(now)
            if wanted is None or now < self._free_at[wanted.broker]:
                self.unasked = True
            elif wanted.broker not in self._sent:
                by_broker[wanted.broker].append(wanted)
                until[wanted.broker] = min(until[wanted.broker], follower.wanted_until(now))
        for broker, all_wanted in by_broker.items():
            # A request names the own rack or not; where partitions differ, the two kinds take turns.
            both = len({wanted.near for wanted in all_wanted}) > 1
            self._near[broker] = near = not self._near[broker] if both else all_wanted[0].near
            self._still_until[broker] = until[broker]
            self._send(broker, [wanted for wanted in all_wanted if wanted.near == near])

    def _send(self, broker: int, wanted: list[Wanted]) -> None:
        self._sent[broker] = wanted
        self._cluster.send(broker, wanted)

    def _repeats(self, answer: FetchAnswer) -> bool:
        """True if the request is sent again as it is: then nobody looks at thousands of partitions that are idle."""
        news = self.unasked or answer.parts or answer.throttled or answer.error
        if news or answer.broker not in self._sent or self._clock() >= self._still_until[answer.broker]:
            return False
        self._still[answer.broker] = self._sent.pop(answer.broker)
        return True

    def _take(self, answer: FetchAnswer) -> None:
        now, sent, self.unasked = self._clock(), self._sent.pop(answer.broker, []), True
        if answer.throttled:
            self.throttled += answer.throttled
            self.grown_at = now + answer.throttled
            self._free_at[answer.broker] = now + answer.throttled
        self._take_parts(answer.parts, now)
        if isinstance(answer.error, FrameTooLarge) and answer.error.tp in self.followers:
            self.followers[answer.error.tp].stop(answer.error)
        elif answer.error is not None:
            self._free_at[answer.broker] = now + 5 * _TURN_SECONDS
            for wanted in sent:
                if wanted.tp in self.followers:
                    self.followers[wanted.tp].unanswered(answer.error, now)
        if sent and (first := self.followers.get(sent[0].tp)) is not None:
            self.line.remove(first)
            self.line.append(first)

    def _take_parts(self, parts: Sequence[FetchedPart], now: float) -> None:
        def take(follower: PartitionFollower, part: FetchedPart) -> None:
            before, size = follower.spool.end, follower.spool.size
            follower.take(part, now)
            if follower.spool.end != before:
                grown.append(max(0, follower.spool.size - size))

        grown = list[int]()
        known = [(self.followers.get(part.wanted.tp), part) for part in parts]
        told = [(found, part) for found, part in known if found and found.topic_id == part.wanted.topic_id]
        begin = [news for news in told if news[0].spool.end is None]
        go_on = [news for news in told if news[0].spool.end is not None]
        in_parallel(lambda news: take(*news), begin, _WAITS)
        for follower, part in go_on:
            take(follower, part)
        if grown:
            self.grown_at = max(self.grown_at, now)
            self.fetched += sum(grown)


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
        self.partings: Mapping[tuple[TopicPartition, str], FoundParting] = {}
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
        return follower.ended or self._fetcher.has_reached_goal(follower)

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
        self._follow([(tp, topic_id) for tp, topic_id in found if tp not in self._fetcher.followers], _WAITS)

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
        if full:
            # Each time: an answer, or the batches around an election, may come once the spool is full already.
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
        self.partings = {
            key: self.partings.get(key) or FoundParting(parting, found_at) for key, parting in parted.items()
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
