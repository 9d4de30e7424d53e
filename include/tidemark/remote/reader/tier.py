"""The remote tier of a cluster for a consumer: many partitions, read ahead by a few threads within a bound.

Promises: the blocks of a partition come in order, from the offset given to :meth:`RemoteTier.read`; an error is raised
at its offset; over all partitions, the bytes read ahead and not taken stay below ``prefetch_bytes`` (except for one
block of each). After :meth:`RemoteTier.close` only threads that wait for a store's answer remain, and end with it.

Relies on the catalogue for the stretches to read, and on its caller for positions: nothing is committed or stored here.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Final, Self

from tidemark.formats.keys import TopicPartition
from tidemark.remote.catalog.storage import Storage
from tidemark.remote.reader.blocks import Block
from tidemark.remote.reader.catalog_cache import CatalogCache, Entry
from tidemark.remote.reader.partition_reader import Means, OnGap, PartitionReader, Step
from tidemark.remote.reader.range_requests import RANGE_BYTES, Buffers, Closed, Counters, Requests
from tidemark.remote.reader.read_ahead_buffer import Lane
from tidemark.remote.reader.thread_pool import ThreadPool, Work
from tidemark.remote.topics import RemotePartition, RemoteTopics
from tidemark.store.retrying import repeating

log = logging.getLogger(__name__)

_CLOSE_SECONDS: Final = 2.0
_RANGES_PER_SHARE: Final = 4
_LEAST_RANGE: Final = 256 << 10
_SPARE_BUFFERS: Final = 4


class RemoteTier:
    """Reads the partitions of ``storage``'s cluster. Thread-safe; usable with ``with``.

    ``committed`` leaves out undecided and aborted records. A recorded gap that nobody acknowledged is a
    :class:`tidemark.errors.GapError`, or is passed over with a warning (``on_gap="skip"``). For a caller that reads
    ``kafka_too``, so is an acknowledged one of offsets that Kafka's own remote tier has. While a partition is read
    its catalogue is refreshed every ``refresh_seconds``. A thread of the tier calls ``on_ready`` when there is a block
    to take, or an error, or when the end was reached; it must return at once.
    """

    def __init__(
        self,
        storage: Storage,
        *,
        committed: bool,
        on_gap: OnGap = "error",
        prefetch_bytes: int = 32 << 20,
        threads: int = 4,
        refresh_seconds: float = 10.0,
        check_crcs: bool = True,
        on_ready: Callable[[], None] = lambda: None,
        kafka_too: bool = False,
    ) -> None:
        self.counters = Counters()
        self._committed = committed
        self._on_gap: OnGap = on_gap
        self._check_crcs = check_crcs
        self._prefetch_bytes = prefetch_bytes
        self._on_ready = on_ready
        self._requests = Requests(self.counters)
        repeated = storage.through(lambda store: repeating(store, self._requests))
        self.topics = RemoteTopics(repeated, refresh_seconds / 2, kafka_too=kafka_too)
        self._known = CatalogCache(self.topics, refresh_seconds)
        self._lock = threading.RLock()
        self._lanes: dict[TopicPartition, Lane] = {}
        self._entries: dict[TopicPartition, Entry] = {}
        self._turn = 0
        self._refresh_seconds = refresh_seconds
        self._due_at = 0.0  # when (monotonic) a catalogue may be due
        self._workers = ThreadPool(threads, self._lock, self._next_step)
        self._means = Means(
            repeated,
            self._requests,
            Buffers(_SPARE_BUFFERS),
            self.counters,
            self._workers.submit,
            self._range_bytes,
            lambda: self._share,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def partition(self, topic: str, partition: int, topic_id: str | None = None) -> RemotePartition | None:
        """The catalogue of a partition of the incarnation ``topic_id``, or of the newest; None if none was seen.

        The first call makes requests; later calls return the known state, which is refreshed in the background once it
        is older than ``refresh_seconds``. :meth:`read` reads the last call's incarnation. Raises the catalogue's
        errors.
        """
        tp = TopicPartition(topic, partition)
        entry = self._known.entry(topic, partition, topic_id)
        with self._lock:
            before = self._entries.get(tp)
            self._entries[tp] = entry
            if before is not None and before is not entry:
                self._known.forget(before)
                if tp in self._lanes:
                    self._lanes.pop(tp).drop()
        known = entry.get()
        if known is not None and entry.due_in <= 0:
            with self._lock:
                self._refresh_later(tp, entry)
        return known

    def read(self, tp: TopicPartition, offset: int) -> None:
        """Read ``tp`` from ``offset`` on; continue if the reader is there already. Makes no request itself."""
        tp = TopicPartition(*tp)
        with self._lock:
            lane = self._lanes.get(tp)
            if lane is not None and lane.position == offset:
                return
            if lane is not None and lane.seek(offset):
                self._workers.wake()
                return
            self._begin(tp, offset)

    def take(self, tp: TopicPartition, max_rows: int | None = None) -> Block | None:
        """The next block of ``tp``, cut to ``max_rows``; None if there is none yet, or ``tp`` is not read.

        Raises the error that reading met once everything before it was taken: GapError, OutOfRange (retention removed
        the offset), SegmentError, FormatError or a kind of StoreError. :meth:`read` then tries again.
        """
        with self._lock:
            lane = self._lanes.get(tp)
            if lane is None:
                return None
            if lane.stale:
                log.info("%s: another branch, or other masks; reading again from offset %s", tp, lane.position)
                self._begin(TopicPartition(*tp), lane.position)
                return None
            before = lane.waiting
            try:
                block = lane.take(max_rows)
            except Exception:
                self._lanes.pop(tp).drop()
                raise
            if lane.waiting < before:  # a whole block makes room; a part makes none, and waking threads is expensive
                self._workers.wake()
        if block is not None:
            self.counters.add(records=len(block.rows))
        return block

    def at_end(self, tp: TopicPartition) -> bool:
        """True once everything that can be read of ``tp`` has been taken, as far as the catalogue knows."""
        with self._lock:
            lane = self._lanes.get(tp)
            return lane is not None and lane.at_end

    def stop(self, tp: TopicPartition) -> None:
        """Stop reading ``tp``, and drop the blocks read ahead."""
        with self._lock:
            lane = self._lanes.pop(tp, None)
            if lane is not None:
                lane.drop()
                self._workers.wake()

    def forget(self, tp: TopicPartition) -> None:
        """Stop reading ``tp``, and drop its catalogue. A query that still runs on the catalogue completes."""
        with self._lock:
            self.stop(tp)
            entry = self._entries.pop(tp, None)
        if entry is not None:
            self._known.forget(entry)

    def close(self) -> None:
        """End reading. A thread that waits for an answer is left to end with it, after a short wait."""
        self._requests.close()
        with self._lock:
            for lane in self._lanes.values():
                lane.drop()
            self._lanes.clear()
        self._workers.close(_CLOSE_SECONDS)

    def _begin(self, tp: TopicPartition, offset: int) -> None:
        before = self._lanes.pop(tp, None)
        if before is not None:
            before.drop()
        if tp not in self._entries:
            self._entries[tp] = self._known.entry(tp.topic, tp.partition, None)
        reading = PartitionReader(
            self._entries[tp].get,
            tp,
            offset,
            self._means,
            committed=self._committed,
            on_gap=self._on_gap,
            check_crcs=self._check_crcs,
        )
        self._lanes[tp] = Lane(reading, offset)
        self._due_at = 0.0
        self._workers.wake()

    @property
    def _share(self) -> int:
        """The most bytes that a partition may have read ahead."""
        return self._prefetch_bytes // max(1, len(self._lanes))

    def _range_bytes(self) -> int:
        return max(_LEAST_RANGE, min(RANGE_BYTES, self._share // _RANGES_PER_SHARE))

    def _next_step(self) -> tuple[Work | None, float | None]:
        """A step of the next partition in turn that can make one, or the seconds until a catalogue is due."""
        if time.monotonic() >= self._due_at:
            self._due_at = time.monotonic() + self._refresh_due()
        lanes, share = list(self._lanes.values()), self._share
        for number in range(len(lanes)):
            lane = lanes[(self._turn + number) % len(lanes)]
            if lane.ready(share):
                self._turn += number + 1
                lane.begin_step()
                return partial(self._step, lane), None
        return None, max(0.0, self._due_at - time.monotonic()) if lanes else None

    def _refresh_due(self) -> float:
        """Have due catalogues refreshed; return the seconds until another one may be due."""
        seconds = self._refresh_seconds
        for tp in self._lanes:
            entry = self._entries[tp]
            if not entry.refreshing and (due_in := entry.due_in) <= 0:
                self._refresh_later(tp, entry)
            elif not entry.refreshing:
                seconds = min(seconds, due_in)
        return seconds

    def _step(self, lane: Lane) -> None:
        result: Step | Exception
        try:
            result = lane.reading.step()
        except Exception as error:  # noqa: BLE001  # the reader gets every error, at its offset
            result = error
        with self._lock:
            notify = lane.end_step(result)  # this thread looks for the next step itself: no other need wake
        if notify:
            self._on_ready()

    def _refresh_later(self, tp: TopicPartition, entry: Entry) -> None:
        """Refresh a catalogue, in a thread of the tier."""
        if not entry.refreshing:
            entry.refreshing = True
            self._workers.submit(partial(self._refresh, tp, entry))

    def _refresh(self, tp: TopicPartition, entry: Entry) -> None:
        failed: Exception | None = None
        try:
            entry.refresh()
        except Exception as error:  # noqa: BLE001  # a reader that waits for more gets every error
            failed = error
        with self._lock:
            entry.refreshing = False
            lane = self._lanes.get(tp)
            waits = lane is not None and lane.asleep and self._entries.get(tp) is entry
            if lane is not None and waits:
                lane.wake()
                if failed is not None:
                    lane.fail(failed)
            self._workers.wake()
        if failed is not None and waits:
            self._on_ready()
        elif failed is not None and not isinstance(failed, Closed):
            log.warning("%s: its catalogue could not be looked at again: %s", tp, failed)
