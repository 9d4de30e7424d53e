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
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Final, Self, TypeVar

from tidemark.formats.keys import TopicPartition
from tidemark.remote.partition import RemotePartition
from tidemark.remote.reader.blocks import Block
from tidemark.remote.reader.partition_reader import (
    RANGE_BYTES,
    Buffers,
    Closed,
    Counters,
    Means,
    OnGap,
    PartitionReader,
    Requests,
    Step,
    naming,
)
from tidemark.remote.topics import START_MAX_AGE, RemoteTopics
from tidemark.storage import Storage
from tidemark.store.retrying import repeating

log = logging.getLogger(__name__)

_CLOSE_SECONDS: Final = 2.0
_RANGES_PER_SHARE: Final = 4
_LEAST_RANGE: Final = 256 << 10
_SPARE_BUFFERS: Final = 4

T = TypeVar("T")
Work = Callable[[], None]

_THREADS_PER_STEPPER: Final = 4


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
        with self._lock:
            entry = self._entry(tp, topic_id)
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
            self._entries.pop(tp, None)

    def close(self) -> None:
        """End reading. A thread that waits for an answer is left to end with it, after a short wait."""
        self._requests.close()
        with self._lock:
            for lane in self._lanes.values():
                lane.drop()
            self._lanes.clear()
        self._workers.close(_CLOSE_SECONDS)

    def _entry(self, tp: TopicPartition, topic_id: str | None) -> Entry:
        """The kept catalogue of an incarnation; that of another one goes, with what was read ahead of it."""
        before = self._entries.get(tp)
        if before is not None and before.topic_id == topic_id:
            return before
        if before is not None and tp in self._lanes:
            self._lanes.pop(tp).drop()
        self._entries[tp] = Entry(self.topics, tp, topic_id, self._refresh_seconds)
        return self._entries[tp]

    def _begin(self, tp: TopicPartition, offset: int) -> None:
        before = self._lanes.pop(tp, None)
        if before is not None:
            before.drop()
        entry = self._entries.get(tp) or self._entry(tp, None)
        reading = PartitionReader(
            entry.get,
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


class ThreadPool:
    """``count`` threads. ``next_step``, called under ``lock``, returns work, or seconds until there may be some.

    Most of the threads carry out requests, the others make steps. A thread that waits for a store's answer cannot
    decode, so other threads do that. They are few, because the allocator gives each thread that allocates much its own
    memory, and the thread keeps it. The two kinds of threads wait separately, so that no thread is woken without work.
    """

    def __init__(
        self, count: int, lock: threading.RLock, next_step: Callable[[], tuple[Work | None, float | None]]
    ) -> None:
        if count < 1:
            raise ValueError(f"there must be at least one thread to read with, not {count}: nothing would ever come")
        self._lock = lock
        self._for_steps = threading.Condition(lock)
        self._for_requests = threading.Condition(lock) if count > 1 else self._for_steps
        self._next_step = next_step
        self._jobs: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._closed = False
        self._seconds: float | None = None
        self._threads = [
            threading.Thread(target=self._work, args=duty, name=f"tidemark-remote-{number}", daemon=True)
            for number, duty in enumerate(self._shared_out(count))
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, request: Callable[[], T]) -> Future[T]:
        """Have ``request`` carried out; cancelled at once if the pool is closed."""
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                future.cancel()
            else:
                self._jobs.append((future, request))
                self._for_requests.notify()
        return future

    def wake(self) -> None:
        """Wake the threads for steps: there may be one to make, or a new time for the next one."""
        with self._lock:
            self._for_steps.notify_all()

    def close(self, seconds: float) -> None:
        """Begin no more work, and wait for the threads at most ``seconds``. A request under way ends by itself."""
        with self._lock:
            self._closed = True
            jobs, self._jobs = self._jobs, deque()
            self._for_requests.notify_all()
            self._for_steps.notify_all()
        for future, _ in jobs:
            future.cancel()
        until = time.monotonic() + seconds
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, until - time.monotonic()))

    def _shared_out(self, count: int) -> list[tuple[Callable[[], Work | None], threading.Condition]]:
        """The duty of each thread, and the condition that it waits on without work."""
        if count == 1:
            return [(lambda: self._request() or self._step(), self._for_steps)]
        steppers = max(1, count // _THREADS_PER_STEPPER)
        requesters = count - steppers
        return [(self._step, self._for_steps)] * steppers + [(self._request, self._for_requests)] * requesters

    def _work(self, look: Callable[[], Work | None], news: threading.Condition) -> None:
        """Do the work that ``look`` returns, until closed."""
        while True:
            with self._lock:
                while (work := look()) is None and not self._closed:
                    news.wait(self._seconds)
                if self._closed:
                    return
            assert work is not None
            work()

    def _step(self) -> Work | None:
        step, self._seconds = self._next_step()
        return step

    def _request(self) -> Work | None:
        return partial(self._carry_out, *self._jobs.popleft()) if self._jobs else None

    def _carry_out(self, future: Future[Any], request: Callable[[], Any]) -> None:
        if future.set_running_or_notify_cancel():
            try:
                result = request()
            except Exception as error:  # noqa: BLE001  # every error is set on the future
                future.set_exception(error)
            else:
                future.set_result(result)
        self.wake()


class Lane:
    """The blocks of ``reading`` that were read ahead and not yet taken, for a reader at ``position``.

    ``held`` is their size in bytes. ``ended`` is true if nothing more could be read at the last try. Not thread-safe:
    the tier's lock guards it.
    """

    def __init__(self, reading: PartitionReader, position: int) -> None:
        self.reading = reading
        self.position = position
        self.held = 0
        self.ended = False
        self._blocks: deque[tuple[Block, int]] = deque()
        self._error: Exception | None = None
        self._running = False
        self._dropped = False
        self._asleep = False
        self._awaited: Future[Any] | None = None

    @property
    def at_end(self) -> bool:
        """True once everything that could be read has been taken."""
        return self.ended and not self._blocks and self._error is None

    @property
    def waiting(self) -> int:
        """The number of blocks that are not taken, or not wholly."""
        return len(self._blocks)

    @property
    def stale(self) -> bool:
        """True if the log has left its branch, or the masks have changed: blocks that were read ahead may be void."""
        partition = self.reading.partition
        return partition is not None and partition.basis != self.reading.basis

    def ready(self, share: int) -> bool:
        """True if a step can be made now, with ``share`` bytes for the blocks read ahead."""
        if self._running or self._asleep or self._error is not None:
            return False
        if self._awaited is not None and not self._awaited.done():
            return False
        return not self._blocks or self.held + self.reading.in_flight < share

    def begin_step(self) -> None:
        """Note that a thread steps from now on."""
        self._running = True
        self._awaited = None

    def end_step(self, result: Step | Exception) -> bool:
        """Take the result of the step; return true if the reader must be notified."""
        self._running = False
        if self._dropped:
            self.reading.drop()
            return False
        if isinstance(result, Future):
            self._awaited = result
            return False
        if result is None:
            self._asleep = self.ended = True
        elif isinstance(result, Block):
            size = result.rows.get_total_buffer_size()
            self._blocks.append((result, size))
            self.held += size
            self.ended = False
        else:
            self.fail(result)
        return True

    def fail(self, error: Exception) -> None:
        """Note ``error``, met after all blocks."""
        self._error = error
        self.ended = False

    def wake(self) -> None:
        """Note that there may be more to read."""
        self._asleep = False

    @property
    def asleep(self) -> bool:
        """True while it waits for news from the catalogue."""
        return self._asleep

    def drop(self) -> None:
        """End reading here."""
        self._dropped = True
        if not self._running:
            self.reading.drop()

    def seek(self, offset: int) -> bool:
        """Move the reader to ``offset``; return false if that was not read ahead."""
        if offset == self.position:
            return True
        if offset < self.position:
            return False
        while self._blocks and self._blocks[0][0].next_offset <= offset:
            block, size = self._blocks.popleft()
            self.held -= size
            self.position = block.next_offset
        if self._blocks:
            block, size = self._blocks[0]
            self._blocks[0] = block.since(offset), size
            self.position = offset
        return offset == self.position

    def take(self, max_rows: int | None) -> Block | None:
        """The next block, of at most ``max_rows``. Raises the error met, once everything before it was taken."""
        if not self._blocks:
            if self._error is not None:
                raise self._error
            return None
        block, size = self._blocks[0]
        if max_rows is not None and len(block.rows) > max_rows:
            block, rest = block.cut(max_rows)
            self._blocks[0] = rest, size
        else:
            self._blocks.popleft()
            self.held -= size
        self.position = block.next_offset
        return block


class Entry:
    """The catalogue of a partition, which is refreshed at intervals; None while the remote tier has not seen it."""

    def __init__(self, topics: RemoteTopics, tp: TopicPartition, topic_id: str | None, seconds: float) -> None:
        """Start with nothing read; it is due ``seconds`` after each look."""
        self.refreshing = False
        self.topic_id = topic_id
        self._tp = tp
        self._topics = topics
        self._seconds = seconds
        self._partition: RemotePartition | None = None
        self._looked_at: float | None = None
        self._lock = threading.Lock()

    @property
    def due_in(self) -> float:
        """Seconds until the next refresh; 0 or less if it is due, infinite before the first look."""
        return float("inf") if self._looked_at is None else self._looked_at + self._seconds - time.monotonic()

    def get(self) -> RemotePartition | None:
        """The partition; with requests at the first call, and again if it was not there at the last look."""
        with self._lock:
            if self._partition is None and (self._looked_at is None or self.due_in <= 0):
                with naming(str(self._tp)):
                    self._partition = self._topics.partition(*self._tp, self.topic_id)
                self._looked_at = time.monotonic()
            return self._partition

    def refresh(self) -> None:
        """Read the changes of the partition, or look for it if it was not there."""
        partition = self._partition
        if partition is None:
            self.get()
            return
        try:
            with naming(str(self._tp)):
                partition.refresh(START_MAX_AGE)
        finally:
            self._looked_at = time.monotonic()
