"""When and where partitions are packed: the loop's ticks, and for each bucket a packer with a thread of its own.

A packer that hangs or fails delays no other. :class:`Ticks` is the loop's part, which looks at the disk and asks the
broker. It hands the due partitions to :class:`Buckets`, which has a :class:`BucketThread` for each bucket.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from typing import Final

import structlog

from tidemark.backoff import Backoff
from tidemark.formats.keys import Endpoint, TopicPartition
from tidemark.formats.raw.watermark_index import PACKS_PER_FRESHNESS, DamagedHead
from uploader_agent.observability.health import Failing
from uploader_agent.packing.head_maintenance import Maintenance
from uploader_agent.packing.packer import Packer
from uploader_agent.partitions.leadership import Leadership
from uploader_agent.partitions.led_partition import LedPartition
from uploader_agent.partitions.poller import OffsetsAnswer, Poller
from uploader_agent.runtime import Runtime, Thread, Worker
from uploader_agent.scheduling.throttle import StoreTraffic

logger = structlog.get_logger(__name__)

TICK_BACKOFF: Final = Backoff(1.0, 10.0)
"""The pauses after which a failed tick is repeated."""

_ANSWER_PATIENCE = 1.0
"""Seconds for which a tick waits for the broker's answers. A partition with a later answer is packed after it."""

GATHERING_SECONDS = 60.0
"""Seconds for which a quiet tail waits for others to become quiet, or a tenth of ``tail_after`` if that is less."""


class Buckets:
    """The packers of all buckets. Thread-safe.

    The buckets of all replicas are opened before any of them is led, so that each led partition has its packer.
    """

    def __init__(self, runtime: Runtime) -> None:
        """Begin without buckets."""
        self._runtime = runtime
        self._watch: Callable[[str, Thread], None] | None = None
        self._lock = threading.Lock()
        self._buckets: dict[Endpoint, BucketThread] = {}
        self._stopped = False

    def open(self, buckets: Iterable[Endpoint], make: Callable[[Endpoint], BucketThread]) -> None:
        """Maintain this broker's heads in ``buckets``: ``make`` is called for those that are not open yet."""
        with self._lock:
            for bucket in buckets:
                if bucket not in self._buckets:
                    self._buckets[bucket] = make(bucket)
                    if not self._stopped:
                        self._start(self._buckets[bucket])

    def of(self, bucket: Endpoint) -> BucketThread:
        """The thread of an open ``bucket``."""
        with self._lock:
            return self._buckets[bucket]

    @property
    def all(self) -> list[BucketThread]:
        """The threads of all known buckets."""
        with self._lock:
            return [*self._buckets.values()]

    def start(self, watch: Callable[[str, Thread], None]) -> None:
        """Pack from now on. ``watch`` is called with each thread before it is started."""
        with self._lock:
            self._watch = watch
            for bucket in self._buckets.values():
                self._start(bucket)

    def pack(self, partitions: Iterable[LedPartition]) -> None:
        """Pack the new batches of ``partitions``, soon."""
        for bucket, members in _by_bucket(partitions):
            self.of(bucket).pack(members)

    def read_tails(self, partitions: Iterable[LedPartition]) -> None:
        """Find out how far surveyed ``partitions`` are packed, and write nothing."""
        for bucket, members in _by_bucket(partitions):
            self.of(bucket).packer.read_tails(members)

    def settled_head(self, bucket: Endpoint) -> int | None:
        """The version of the settled head of ``bucket``; None if it is not settled, and it is then settled soon.

        Raises the error of the last try to settle it.
        """
        found = self.of(bucket)
        head = found.packer.head
        if head.settled:
            return head.version
        head.await_settling()
        found.maintain()
        if head.not_settled is not None:
            raise head.not_settled
        return None

    def settle_awaited(self) -> None:
        """Settle the heads that seals wait for, while no thread packs."""
        for bucket in self.all:
            if bucket.packer.head.awaited:
                bucket.head_maintenance.maintain()

    def forget(self, tps: Collection[TopicPartition]) -> None:
        """Drop partitions that this broker no longer leads, or leads under another epoch."""
        for bucket in self.all:
            bucket.forget(tps)

    def stop(self, timeout: float) -> None:
        """Begin no more ticks; wait at most ``timeout`` seconds for the running ones."""
        with self._lock:
            self._stopped = True
        until = self._runtime.monotonic() + timeout
        for bucket in self.all:
            bucket.worker.stop()
        for bucket in self.all:
            bucket.worker.join(max(0.0, until - self._runtime.monotonic()))

    @property
    def of_other_leaderships(self) -> frozenset[TopicPartition]:
        """The partitions of entries of other leaderships, in all heads."""
        return frozenset[TopicPartition]().union(*(bucket.head_maintenance.of_other_leaderships for bucket in self.all))

    def stalled(self) -> Failing | None:
        """The longest stall of a bucket; None if no partition waits."""
        stalls = [bucket.packer.backlog.stalled() for bucket in self.all]
        return max(filter(None, stalls), key=lambda stall: stall.seconds, default=None)

    def damaged(self) -> tuple[DamagedHead, ...]:
        """The last damage of each head that was ever damaged, even if the head was made again."""
        return tuple(filter(None, (bucket.packer.head.damage for bucket in self.all)))

    def _start(self, bucket: BucketThread) -> None:
        if self._watch is not None:
            self._watch(bucket.worker.name, bucket.worker)
            bucket.worker.start()


def _by_bucket(partitions: Iterable[LedPartition]) -> Collection[tuple[Endpoint, list[LedPartition]]]:
    members: dict[Endpoint, list[LedPartition]] = defaultdict(list)
    for partition in partitions:
        members[partition.bucket].append(partition)
    return members.items()


class BucketThread:
    """Packs in one bucket, and maintains its head. Thread-safe.

    It wakes when there are batches to pack, and to maintain the head.
    """

    def __init__(
        self,
        name: str,
        packer: Packer,
        head_maintenance: Maintenance,
        interval: Callable[[], float],
        traffic: StoreTraffic,
        runtime: Runtime,
    ) -> None:
        """Maintain the head every ``interval()`` seconds. In ``traffic``, packs have priority over segments."""
        self._traffic = traffic
        self.packer = packer
        self.head_maintenance = head_maintenance
        self._interval = interval
        self._clock = runtime.monotonic
        self._lock = threading.Lock()
        self._wanted: dict[TopicPartition, LedPartition] = {}
        self._failed: dict[TopicPartition, LedPartition] = {}
        self._repeat_at = float("inf")
        self._pause = TICK_BACKOFF.first
        self._maintain_at = 0.0
        self.worker = Worker(name, self._turn, runtime)

    def pack(self, partitions: Collection[LedPartition]) -> None:
        """Pack the new batches of ``partitions``, soon."""
        self.packer.backlog.add(partitions)
        with self._lock:
            self._wanted |= {partition.tp: partition for partition in partitions}
        self.worker.wake()

    def maintain(self) -> None:
        """Maintain the head now."""
        with self._lock:
            self._maintain_at = 0.0
        self.worker.wake()

    def forget(self, tps: Collection[TopicPartition]) -> None:
        """Drop partitions that this broker no longer leads, or leads under another epoch."""
        with self._lock:
            for tp in tps:
                self._wanted.pop(tp, None)
                self._failed.pop(tp, None)
                self.packer.forget(tp)

    def _turn(self) -> float:
        with self._lock:
            wanted = self._take()
        self._work(wanted)
        return max(0.0, min(self._repeat_at, self._maintain_at) - self._clock())

    def _take(self) -> list[LedPartition]:
        wanted = {**self._failed, **self._wanted} if self._clock() >= self._repeat_at else self._wanted
        if wanted is not self._wanted:
            self._failed, self._repeat_at = {}, float("inf")
        self._wanted = {}
        return [*wanted.values()]

    def _work(self, wanted: list[LedPartition]) -> None:
        try:
            with self._traffic.first():
                failed = self.packer.pack(wanted) if wanted else []
            if self._clock() >= self._maintain_at:
                self._maintain_at = self._clock() + self._interval()
                self.head_maintenance.maintain()
        except Exception:
            logger.exception("packing_failed")  # the thread must go on: other partitions wait
            failed = wanted
        if not failed:
            self._pause = TICK_BACKOFF.first if wanted else self._pause
            return
        with self._lock:
            self._failed |= {partition.tp: partition for partition in failed}
            self._repeat_at = min(self._repeat_at, self._clock() + self._pause)
        self._pause = TICK_BACKOFF.longer(self._pause)


class Ticks:
    """The ticks of all led partitions, for the loop. ``pack`` is called with the partitions of a tick.

    A tick is a third of the shortest freshness of a led topic. A partition is due when its oldest byte that is not
    stored will be older than a third of its own freshness at the next tick. A quiet tail is due in the next tick; if
    there is none soon, it gets a tick of its own. The loop asks the broker for the high watermarks of all due
    partitions in one question. Once it has answered, another thread packs them.
    """

    def __init__(
        self,
        leadership: Leadership,
        poller: Poller,
        pack: Callable[[Collection[LedPartition]], object],
        runtime: Runtime,
    ) -> None:
        self._leadership = leadership
        self._poller = poller
        self._pack = pack
        self._clock = runtime.monotonic
        self._fresh: list[LedPartition] = []
        self._quiet: dict[TopicPartition, LedPartition] = {}
        self._interval = float("inf")
        self._next_tick = float("inf")
        self._due: dict[TopicPartition, LedPartition] = {}
        self._unanswered: set[TopicPartition] = set()
        self._late: dict[TopicPartition, LedPartition] = {}
        """The partitions of the last tick without an answer in time: for thousands, the broker takes seconds."""
        self._answers_due = float("inf")

    @property
    def next_time(self) -> float:
        """The time at which :meth:`turn` is due; infinity while no partition is to be packed."""
        return min(self._next_tick, self._answers_due)

    def reconsider(self) -> None:
        """Compute the ticks again, after a change of the leadership or the settings."""
        led = self._leadership.partitions
        self._fresh = [partition for partition in led.values() if partition.freshness is not None]
        ticks = (partition.freshness / PACKS_PER_FRESHNESS for partition in self._fresh if partition.freshness)
        self._interval = min(ticks, default=float("inf"))
        self._quiet = {tp: partition for tp, partition in self._quiet.items() if led.get(tp) is partition}
        self._next_tick = (
            min(self._next_tick, self._clock() + self._interval) if self._fresh or self._quiet else float("inf")
        )
        self._late = {}

    def add_quiet(self, partition: LedPartition, tail_after: float) -> None:
        """Pack the tail of ``partition`` soon, since nothing was appended for ``tail_after`` seconds."""
        self._quiet[partition.tp] = partition
        self._next_tick = min(self._next_tick, self._clock() + min(GATHERING_SECONDS, tail_after / 10))

    def turn(self) -> set[TopicPartition]:
        """Begin and end the ticks that are due; return the partitions that have changed on the disk."""
        now = self._clock()
        if now >= self._answers_due:
            self._pack_due()
        return self._begin(now) if now >= self._next_tick else set()

    def answered(self, answer: OffsetsAnswer) -> None:
        """Note an answer or a failure of the broker."""
        late = [self._late.pop(tp) for tp in answer.asked.keys() & self._late.keys()]
        if late:
            self._pack_ready(late)
        if self._unanswered:
            self._unanswered -= answer.asked.keys()
            if not self._unanswered:
                self._pack_due()

    def _begin(self, now: float) -> set[TopicPartition]:
        self._next_tick = max(self._next_tick + self._interval, now + self._interval / 2)
        changed = {partition.tp for partition in self._fresh if partition.look()}
        due = self._quiet | {partition.tp: partition for partition in self._fresh if self._is_due(partition)}
        self._quiet = {}
        ask = {tp for tp, partition in due.items() if partition.outdated}
        self._due |= due
        if ask:
            self._unanswered |= ask
            self._answers_due = now + min(_ANSWER_PATIENCE, self._interval / 2)
            self._poller.ask_offsets(self._leadership.ask(ask))
        elif due:
            self._pack_due()
        return changed

    def _is_due(self, partition: LedPartition) -> bool:
        age = partition.unstored_age(self._clock())
        if not age:
            return age is None
        return partition.freshness is not None and age + self._interval >= partition.freshness / PACKS_PER_FRESHNESS

    def _pack_due(self) -> None:
        """Pack all due partitions for which the broker has answered."""
        self._late = {tp: self._due[tp] for tp in self._unanswered}
        due, self._due, self._unanswered, self._answers_due = self._due, {}, set(), float("inf")
        self._pack_ready(due.values())

    def _pack_ready(self, due: Iterable[LedPartition]) -> None:
        ready = [partition for partition in due if (partition.high_watermark or 0) > partition.stored_end]
        if ready:
            self._pack(ready)
