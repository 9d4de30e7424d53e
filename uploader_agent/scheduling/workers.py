"""The times at which partitions are due, the queue of jobs, and the threads that carry them out and report failures.

The first job of each partition goes before others, partitions take turns, and none takes all workers. The queue holds
no segments' bytes, only the jobs. Two jobs of a partition that write the same objects never run at the same time: of a
tail that grew between them, the shorter could replace the longer. A partition that failed waits for its own back-off
and delays no other. When the store answers that it gets too many requests, fewer jobs run at a time for a while.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

import structlog

from tidemark.backoff import Backoff
from tidemark.errors import SlowDown
from tidemark.formats.keys import TopicPartition
from uploader_agent.observability.health import Health
from uploader_agent.observability.log_config import ErrorDeduplicator
from uploader_agent.observability.metrics import Metrics
from uploader_agent.partitions import jobs
from uploader_agent.partitions.led_partition import LedPartition
from uploader_agent.runtime import MACHINE, Runtime, Worker
from uploader_agent.scheduling.retry import Failures
from uploader_agent.scheduling.throttle import Limit
from uploader_agent.settings import UploadSettings
from uploader_agent.upload.local_run import SealRun

Key = TypeVar("Key", bound=Hashable)
Job = TypeVar("Job", bound=Hashable)

_OUTDATED_KEPT = 1000
"""Outdated moments that may stay in the heap, beyond the number of keys."""


class Timers(Generic[Key]):
    """Keys by the time at which they are due, on the caller's clock: each at most once, at its earliest time.

    Thread-safe.
    """

    def __init__(self) -> None:
        self._times: dict[Key, float] = {}
        self._heap: list[tuple[float, int, Key]] = []
        self._count = 0
        self._lock = threading.Lock()

    def add(self, key: Key, moment: float) -> None:
        """Make ``key`` due at ``moment``, unless it is due before."""
        with self._lock:
            if moment < self._times.get(key, float("inf")):
                self._times[key] = moment
                self._count += 1
                heapq.heappush(self._heap, (moment, self._count, key))
                if len(self._heap) > 2 * len(self._times) + _OUTDATED_KEPT:
                    self._tidy()

    def take(self, now: float) -> set[Key]:
        """Remove and return the keys that are due by ``now``."""
        due: set[Key] = set()
        with self._lock:
            while self._heap and self._heap[0][0] <= now:
                moment, _, key = heapq.heappop(self._heap)
                if self._times.get(key) == moment:  # else it was moved to an earlier time, and taken then
                    del self._times[key]
                    due.add(key)
        return due

    def next_time(self) -> float:
        """The time at which a key may be due next; infinity without keys."""
        with self._lock:
            return self._heap[0][0] if self._heap else float("inf")

    def _tidy(self) -> None:
        """Drop outdated moments: without this, distant ones would stay until their time comes."""
        self._heap = [entry for entry in self._heap if self._times.get(entry[2]) == entry[0]]
        heapq.heapify(self._heap)


@dataclass(slots=True)
class _Lane(Generic[Job]):
    """One partition's jobs in order, and the jobs that are running."""

    waiting: list[Job] = field(default_factory=list)
    running: dict[Job, int] = field(default_factory=dict)  # with the turn in which each was taken
    not_before: float = 0.0
    served: int = 0


class UploadQueue(Generic[Key, Job]):
    """The queue. Thread-safe. At most ``concurrency`` jobs run at a time; ``target`` is the object a job writes."""

    def __init__(
        self, concurrency: int, runtime: Runtime = MACHINE, *, target: Callable[[Job], Hashable] = lambda job: job
    ) -> None:
        self._limit = Limit(concurrency)
        self._target = target
        self._clock = runtime.monotonic
        self._lanes: dict[Key, _Lane[Job]] = {}
        self._changed = runtime.condition()
        self._turn = 0
        self._running = 0
        self._closed = False

    def resize(self, concurrency: int) -> None:
        """From now on let at most ``concurrency`` jobs run; running jobs beyond that end by themselves."""
        with self._changed:
            self._limit.resize(concurrency)
            self._changed.notify_all()

    def replace(self, key: Key, jobs: Sequence[Job]) -> None:
        """Replace the waiting jobs of ``key`` by ``jobs``, in this order; running jobs are not queued again."""
        with self._changed:
            lane = self._lanes.setdefault(key, _Lane())
            lane.waiting = [job for job in jobs if job not in lane.running]
            self._forget_if_empty(key, lane)
            if lane.waiting:
                self._changed.notify_all()

    def drop(self, key: Key) -> None:
        """Drop the waiting jobs of ``key``; running jobs end by themselves."""
        with self._changed:
            lane = self._lanes.get(key)
            if lane is not None:
                lane.waiting = []
                self._forget_if_empty(key, lane)

    def take(self) -> tuple[Key, Job] | None:
        """Wait for the next job and mark it running; None once the queue is closed."""
        with self._changed:
            while not self._closed:
                now = self._clock()
                next_ = self._next(now)
                if next_ is not None:
                    key, lane, job = next_
                    lane.waiting.remove(job)
                    self._turn += 1
                    self._running += 1
                    lane.served = lane.running[job] = self._turn
                    return key, job
                self._changed.wait(self._pause(now))
            return None

    def done(self, key: Key, job: Job, retry_after: float = 0.0, *, slow_down: bool = False) -> None:
        """Note the end of ``job``. No other job of ``key`` starts before ``retry_after`` seconds have passed.

        ``slow_down`` states that the store answered SlowDown.
        """
        with self._changed:
            lane = self._lanes[key]
            started = lane.running.pop(job)
            self._running -= 1
            if slow_down:
                self._limit.slow_down(started, self._turn)
            elif not retry_after:
                self._limit.succeeded(started)
            lane.not_before = self._clock() + retry_after if retry_after else 0.0
            self._forget_if_empty(key, lane)
            self._changed.notify_all()

    def close(self) -> None:
        """Hand out no more jobs."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def wait_idle(self, timeout: float | None = None, *, running_only: bool = False) -> bool:
        """Wait until no job runs and, unless ``running_only``, none waits; return False if the time ran out."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._busy(running_only), timeout)

    def waiting(self) -> int:
        """The number of waiting jobs."""
        with self._changed:
            return sum(len(lane.waiting) for lane in self._lanes.values())

    def unfinished(self) -> int:
        """The number of waiting and running jobs; a failed partition counts as one until its back-off ends."""
        with self._changed:
            now = self._clock()
            lanes = self._lanes.values()
            return sum(len(lane.waiting) + len(lane.running) or int(lane.not_before > now) for lane in lanes)

    def running(self) -> int:
        """The number of running jobs."""
        return self._running

    @property
    def limit(self) -> int:
        """The number of jobs that may run at a time now."""
        return self._limit.now

    def _busy(self, running_only: bool) -> bool:
        return self._running > 0 or (not running_only and any(lane.waiting for lane in self._lanes.values()))

    def _next(self, now: float) -> tuple[Key, _Lane[Job], Job] | None:
        """The least recently served of the lanes that may continue, and its next job."""
        most = self._limit.now
        if self._running >= most:
            return None
        first: tuple[Key, _Lane[Job], Job] | None = None
        for key, lane in self._lanes.items():
            continues = lane.waiting and lane.not_before <= now and len(lane.running) < max(1, most - 1)
            if not continues or (first is not None and lane.served >= first[1].served):
                continue
            if (job := self._free(lane)) is not None:
                first = key, lane, job
                if not lane.served:  # no lane comes before it: after a start, thousands may wait
                    break
        return first

    def _free(self, lane: _Lane[Job]) -> Job | None:
        """The first job with a target that no running job has; when a running job ends, :meth:`done` looks again."""
        taken = {self._target(job) for job in lane.running}
        return next((job for job in lane.waiting if self._target(job) not in taken), None)

    def _pause(self, now: float) -> float | None:
        """Seconds until a lane's back-off ends; None if there is none.

        ``now`` is the reading of :meth:`_next`: a back-off that ended before a later one would be waited for without
        end.
        """
        pauses = [lane.not_before - now for lane in self._lanes.values() if lane.waiting and lane.not_before > now]
        return min(pauses, default=None)

    def _forget_if_empty(self, key: Key, lane: _Lane[Job]) -> None:
        if not lane.waiting and not lane.running and lane.not_before <= self._clock():
            del self._lanes[key]


logger = structlog.get_logger(__name__)


class PartitionJob(NamedTuple):
    """A job of a partition."""

    partition: LedPartition
    job: jobs.Job

    def target(self) -> int | str:
        """The objects that the job writes, as their base offset; for a survey or check, the job itself."""
        return self.job.base_offset if isinstance(self.job, SealRun) else self.job


def is_local(error: Exception) -> bool:
    """True if ``error`` is one of this host's disks, and not of a connection, which Python counts among them."""
    return isinstance(error, OSError) and not isinstance(error, (ConnectionError, TimeoutError))


class UploadWorkers:
    """``settings.concurrency`` threads over one queue. ``revisit`` is called with a partition to look at again."""

    def __init__(
        self,
        queue: UploadQueue[TopicPartition, PartitionJob],
        settings: UploadSettings,
        backoff: Backoff,
        metrics: Metrics,
        health: Health,
        revisit: Callable[[TopicPartition, float], None],
        repeats: ErrorDeduplicator,
        runtime: Runtime = MACHINE,
    ) -> None:
        self._runtime = runtime
        self._queue = queue
        self._metrics = metrics
        self._health = health
        self._revisit = revisit
        self._failures = Failures(backoff, metrics, repeats)
        self._concurrency = settings.concurrency
        self._threads = 0

    def start(self) -> None:
        """Start all threads; they end when the queue is closed."""
        while self._threads < self._concurrency:
            worker = Worker(f"upload-{self._threads}", self._turn, self._runtime)
            self._health.watch(worker.name, worker)
            worker.start()
            self._threads += 1

    def reconfigure(self, settings: UploadSettings) -> None:
        """Apply other settings. If fewer threads are to run, the queue leaves the others without work."""
        self._concurrency = settings.concurrency
        self._queue.resize(settings.concurrency)
        self.start()

    def forget(self, tp: TopicPartition) -> None:
        """Drop the failures of a partition that this broker no longer leads."""
        self._failures.forget(tp)

    def _turn(self) -> float | None:
        """Carry out the next job; the queue, which all threads share, waits for it. None once the queue is closed."""
        if (taken := self._queue.take()) is None:
            return None
        tp, task = taken
        retry_after, slow_down, segment = 0.0, False, isinstance(task.job, SealRun)
        again: float | None = None
        self._measure()
        try:
            again = 0.0 if self._carry_out(task) else None
            task.partition.succeeded()
            self._failures.succeeded(tp, wrote=segment)
            self._health.finished(segment=segment)
        except Exception as error:  # noqa: BLE001 - an error of one partition must not stop the others
            slow_down = isinstance(error, SlowDown)
            retry_after, message = self._failures.failed(tp, error)
            if message:
                task.partition.failed(message, local=is_local(error))
            self._health.failed(f"{tp}: {type(error).__name__}: {error}", segment=segment)
            again = retry_after
        finally:
            self._queue.done(tp, task, retry_after, slow_down=slow_down)
            self._measure()
        if again is not None:
            # Only after the job counts as ended: if it is planned again, it would be taken for a running job.
            self._revisit(tp, again)
        return 0.0

    def _measure(self) -> None:
        self._metrics.running.set(self._queue.running())
        self._metrics.upload_limit.set(self._queue.limit)

    def _carry_out(self, task: PartitionJob) -> bool:
        """Carry out a job; return True if the partition is to be planned again."""
        started = self._runtime.monotonic()
        stored = task.partition.uploader.run(task.job)
        if stored is None or not isinstance(task.job, SealRun):
            return not isinstance(task.job, SealRun)
        manifest, seconds = stored.manifest, self._runtime.monotonic() - started
        size = manifest.objects[manifest.log_name].size
        self._metrics.segments.labels(manifest.state).inc()
        self._metrics.corrupt.inc(manifest.state == "corrupt")
        self._metrics.bytes.inc(size)
        self._metrics.upload_seconds.observe(seconds)
        if manifest.rotated_at is not None:
            self._metrics.rotation_seconds.observe(max(0.0, self._runtime.time() - manifest.rotated_at.timestamp()))
        logger.info(
            "segment_uploaded",
            partition=str(task.partition.tp),
            base_offset=manifest.base_offset,
            next_offset=manifest.next_offset,
            state=manifest.state,
            bytes=size,
            seconds=round(seconds, 3),
        )
        return manifest.next_offset != task.job.end
