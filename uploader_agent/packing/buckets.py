"""A packer for each bucket, with a thread of its own: a packer that hangs or fails delays no other."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from tidemark.formats.keys import TopicPartition
from tidemark.formats.raw.watermark_index import DamagedHead
from uploader_agent.observability.health import Stalled
from uploader_agent.packing.head_maintenance import HeadMaintenance
from uploader_agent.packing.packer import Packer
from uploader_agent.packing.thread import PackThread
from uploader_agent.partitions.led_partition import LedPartition
from uploader_agent.runtime import Runtime, Thread
from uploader_agent.stored.destinations import Bucket


class BucketPacker(NamedTuple):
    """The packer of a bucket, its head maintenance, and the thread of both."""

    packer: Packer
    head_maintenance: HeadMaintenance
    thread: PackThread


class PackBuckets:
    """The packers of all buckets. Thread-safe. A bucket's packer is made when the bucket is first used."""

    def __init__(
        self, make: Callable[[Bucket], BucketPacker], watch: Callable[[str, Thread], None], runtime: Runtime
    ) -> None:
        """Begin without buckets. ``watch`` is called with each thread before it is started."""
        self._make = make
        self._watch = watch
        self._runtime = runtime
        self._lock = threading.Lock()
        self._buckets: dict[Bucket, BucketPacker] = {}
        self._started = self._stopped = False

    def open(self, buckets: Iterable[Bucket]) -> None:
        """Maintain this broker's heads in ``buckets``."""
        for bucket in buckets:
            self.of(bucket)

    def of(self, bucket: Bucket) -> BucketPacker:
        """The packer of ``bucket``."""
        with self._lock:
            if bucket not in self._buckets:
                self._buckets[bucket] = self._make(bucket)
                if self._started and not self._stopped:
                    self._start(self._buckets[bucket].thread)
            return self._buckets[bucket]

    @property
    def all(self) -> list[BucketPacker]:
        """The packers of all known buckets."""
        with self._lock:
            return [*self._buckets.values()]

    def start(self) -> None:
        """Pack from now on."""
        with self._lock:
            self._started = True
            for bucket in self._buckets.values():
                self._start(bucket.thread)

    def pack(self, partitions: Iterable[LedPartition]) -> None:
        """Pack the new batches of ``partitions``, soon."""
        for bucket, members in _by_bucket(partitions):
            self.of(bucket).thread.pack(members)

    def look(self, partitions: Iterable[LedPartition]) -> None:
        """Find out how far surveyed ``partitions`` are packed, and write nothing."""
        for bucket, members in _by_bucket(partitions):
            self.of(bucket).packer.look(members)

    def settled_head(self, bucket: Bucket) -> int | None:
        """The version of the settled head of ``bucket``; None if it is not settled, and it is then settled soon.

        Raises the error of the last try to settle it.
        """
        found = self.of(bucket)
        head = found.packer.head
        if head.settled:
            return head.version
        head.awaited = True
        found.thread.maintain()
        if head.not_settled is not None:
            raise head.not_settled
        return None

    def settle_awaited(self) -> None:
        """Settle the heads that seals wait for, while no thread packs."""
        for bucket in self.all:
            if bucket.packer.head.awaited:
                bucket.head_maintenance.look()

    def forget(self, tps: Collection[TopicPartition]) -> None:
        """Drop partitions that this broker no longer leads, or leads under another epoch."""
        for bucket in self.all:
            bucket.thread.forget(tps)

    def stop(self, timeout: float) -> None:
        """Begin no more ticks; wait at most ``timeout`` seconds for the running ones."""
        with self._lock:
            self._stopped = True
        until = self._runtime.monotonic() + timeout
        for bucket in self.all:
            bucket.thread.stop()
        for bucket in self.all:
            bucket.thread.join(max(0.0, until - self._runtime.monotonic()))

    @property
    def left(self) -> frozenset[TopicPartition]:
        """The partitions of entries of other leaderships, in all heads."""
        return frozenset[TopicPartition]().union(*(bucket.head_maintenance.left for bucket in self.all))

    def stalled(self) -> Stalled | None:
        """The longest stall of a bucket; None if no partition waits."""
        stalls = [bucket.packer.backlog.stalled() for bucket in self.all]
        return max(filter(None, stalls), key=lambda stall: stall.seconds, default=None)

    def damaged(self) -> tuple[DamagedHead, ...]:
        """The last damage of each head that was ever damaged, even if the head was made again."""
        return tuple(filter(None, (bucket.packer.head.damage for bucket in self.all)))

    def _start(self, thread: PackThread) -> None:
        self._watch(thread.name, thread.thread)
        thread.start()


def _by_bucket(partitions: Iterable[LedPartition]) -> Collection[tuple[Bucket, list[LedPartition]]]:
    members: dict[Bucket, list[LedPartition]] = defaultdict(list)
    for partition in partitions:
        members[partition.bucket].append(partition)
    return members.items()
