"""A packer for each bucket, with a thread of its own: one that hangs or fails holds up no other."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from tidemark.formats.keys import TopicPartition
from tidemark.formats.watermark_index import DamagedHead
from uploader_agent.observability.health import Stalled
from uploader_agent.packing.head_maintenance import HeadMaintenance
from uploader_agent.packing.packer import Packer
from uploader_agent.packing.thread import PackThread
from uploader_agent.partitions.led_partition import LedPartition
from uploader_agent.remote.destinations import Bucket
from uploader_agent.runtime import Runtime, Thread


class BucketPacker(NamedTuple):
    """What packs in one bucket."""

    packer: Packer
    head_maintenance: HeadMaintenance
    thread: PackThread


class PackBuckets:
    """Thread-safe. The packer of a bucket is made when something is first to be packed, or looked after, there."""

    def __init__(
        self,
        make: Callable[[Bucket], BucketPacker],
        watch: Callable[[str, Thread], None],
        runtime: Runtime,
    ) -> None:
        """``watch`` is told of each thread before it is started."""
        self._make = make
        self._watch = watch
        self._runtime = runtime
        self._lock = threading.Lock()
        self._buckets: dict[Bucket, BucketPacker] = {}
        self._started = self._stopped = False

    def open(self, buckets: Iterable[Bucket]) -> None:
        """Look after this broker's heads in ``buckets``."""
        for bucket in buckets:
            self.of(bucket)

    def of(self, bucket: Bucket) -> BucketPacker:
        """What packs in ``bucket``."""
        with self._lock:
            if bucket not in self._buckets:
                self._buckets[bucket] = self._make(bucket)
                if self._started and not self._stopped:
                    self._start(self._buckets[bucket].thread)
            return self._buckets[bucket]

    @property
    def all(self) -> list[BucketPacker]:
        """What packs in each bucket that is known of."""
        with self._lock:
            return [*self._buckets.values()]

    def start(self) -> None:
        """Pack from now on."""
        with self._lock:
            self._started = True
            for one in self._buckets.values():
                self._start(one.thread)

    def pack(self, partitions: Iterable[LedPartition]) -> None:
        """Pack what is new of ``partitions``, soon."""
        for bucket, members in _by_bucket(partitions):
            self.of(bucket).thread.pack(members)

    def look(self, partitions: Iterable[LedPartition]) -> None:
        """Find out what is packed of surveyed ``partitions``, and write nothing."""
        for bucket, members in _by_bucket(partitions):
            self.of(bucket).packer.look(members)

    def forget(self, tps: Collection[TopicPartition]) -> None:
        """The partitions are not ours any more, or under another leadership."""
        for one in self.all:
            one.thread.forget(tps)

    def stop(self, timeout: float) -> None:
        """Begin nothing more; wait for what is under way, at most ``timeout`` seconds."""
        with self._lock:
            self._stopped = True
        until = self._runtime.monotonic() + timeout
        for one in self.all:
            one.thread.stop()
        for one in self.all:
            one.thread.join(max(0.0, until - self._runtime.monotonic()))

    @property
    def left(self) -> frozenset[TopicPartition]:
        """The partitions of entries of other leaderships, in all heads."""
        return frozenset[TopicPartition]().union(*(one.head_maintenance.left for one in self.all))

    def stalled(self) -> Stalled | None:
        """The bucket in which something has waited longest to be packed; None if nothing waits."""
        waits = (one.packer.backlog.stalled() for one in self.all)
        return max((one for one in waits if one is not None), key=lambda one: one.seconds, default=None)

    def damaged(self) -> tuple[DamagedHead, ...]:
        """The last damage of each head that had some, made again or not."""
        found = (one.packer.head.damage for one in self.all)
        return tuple(one for one in found if one is not None)

    def _start(self, thread: PackThread) -> None:
        self._watch(thread.name, thread.thread)
        thread.start()


def _by_bucket(partitions: Iterable[LedPartition]) -> Collection[tuple[Bucket, list[LedPartition]]]:
    found: dict[Bucket, list[LedPartition]] = defaultdict(list)
    for one in partitions:
        found[one.bucket].append(one)
    return found.items()
