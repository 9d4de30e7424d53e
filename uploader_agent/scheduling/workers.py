"""The threads that carry out jobs, and report failures."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import structlog

from tidemark.errors import SlowDown
from tidemark.formats.keys import TopicPartition
from tidemark.retry import Backoff
from uploader_agent.observability.health import Health
from uploader_agent.observability.log_config import ErrorDeduplicator
from uploader_agent.observability.metrics import Metrics
from uploader_agent.partitions.jobs import Job
from uploader_agent.partitions.led_partition import LedPartition
from uploader_agent.runtime import MACHINE, Runtime
from uploader_agent.scheduling.retry import Failures
from uploader_agent.scheduling.upload_queue import UploadQueue
from uploader_agent.settings import UploadSettings
from uploader_agent.upload.eligibility import SealRun
from uploader_agent.worker import Worker

logger = structlog.get_logger(__name__)


class PartitionJob(NamedTuple):
    """A job of a partition."""

    partition: LedPartition
    job: Job

    @property
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
