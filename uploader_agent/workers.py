"""Threads that carry out jobs, and what becomes of a job that fails: who is told, and when it is tried again."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import NamedTuple

import structlog

from tidemark.errors import AccessDenied, ContinuityError, FormatError, PreconditionFailed, StoreError
from tidemark.layout import TopicPartition
from uploader_agent.eligibility import Work
from uploader_agent.files import SegmentChanged
from uploader_agent.health import Health
from uploader_agent.metrics import Metrics
from uploader_agent.partition import Job, LedPartition
from uploader_agent.queue import UploadQueue
from uploader_agent.settings import UploadSettings
from uploader_agent.watermark import Fenced

logger = structlog.get_logger(__name__)

_QUIET = (SegmentChanged, PreconditionFailed)
"""The world moved on: another look settles it."""

_LOUD = (AccessDenied, FormatError, ContinuityError, OSError)
"""A person must act; the agent goes on trying meanwhile."""


class Task(NamedTuple):
    """A job of a partition."""

    partition: LedPartition
    job: Job


class Backoff:
    """Seconds to wait after the n-th failure in a row: doubling, capped, and spread by up to a half."""

    def __init__(
        self, initial: timedelta, cap: timedelta, spread: Callable[[float, float], float] = random.uniform
    ) -> None:
        self._initial = initial.total_seconds()
        self._cap = cap.total_seconds()
        self._spread = spread

    def after(self, failures: int) -> float:
        """The pause after ``failures`` failures, at least one."""
        longest = min(self._cap, self._initial * 2.0 ** min(failures - 1, 30))
        return self._spread(longest / 2, longest)


class Workers:
    """``settings.concurrency`` threads over one queue. ``revisit`` is told when a partition is worth another look."""

    def __init__(
        self,
        queue: UploadQueue[TopicPartition, Task],
        settings: UploadSettings,
        metrics: Metrics,
        health: Health,
        revisit: Callable[[TopicPartition, float], None],
    ) -> None:
        self._queue = queue
        self._metrics = metrics
        self._health = health
        self._revisit = revisit
        self._backoff = Backoff(settings.retry_initial, settings.retry_cap)
        self._failures: dict[TopicPartition, int] = {}
        self._concurrency = settings.concurrency
        self._threads = 0

    def start(self) -> None:
        """Start all threads; they end when the queue is closed."""
        while self._threads < self._concurrency:
            threading.Thread(target=self._work, name=f"upload-{self._threads}", daemon=True).start()
            self._threads += 1

    def reconfigure(self, settings: UploadSettings) -> None:
        """Take other settings; where fewer are to run, the queue leaves the other threads without work."""
        self._backoff = Backoff(settings.retry_initial, settings.retry_cap)
        self._concurrency = settings.concurrency
        self._queue.resize(settings.concurrency)
        self.start()

    def _work(self) -> None:
        while (taken := self._queue.take()) is not None:
            at, task = taken
            retry_after = 0.0
            try:
                self._carry_out(task)
                task.partition.error = None
                self._failures.pop(at, None)
                self._health.finished(segment=isinstance(task.job, Work))
                if not isinstance(task.job, Work):
                    self._revisit(at, 0.0)
            except Exception as error:  # noqa: BLE001 - whatever one partition does, the others go on
                retry_after = self._failed(task, error)
                self._revisit(at, retry_after)
            finally:
                self._queue.done(at, task, retry_after)

    def _carry_out(self, task: Task) -> None:
        started = time.monotonic()
        stored = task.partition.run(task.job)
        if stored is None:
            return
        manifest, seconds = stored.manifest, time.monotonic() - started
        size = sum(total.size for name, total in manifest.objects.items() if name.endswith((".log", ".corrupt")))
        self._metrics.segments.labels(manifest.state).inc()
        self._metrics.corrupt.inc(manifest.state == "corrupt")
        self._metrics.bytes.inc(size)
        self._metrics.upload_seconds.observe(seconds)
        if manifest.rotated_at is not None:
            self._metrics.rotation_seconds.observe(max(0.0, time.time() - manifest.rotated_at.timestamp()))
        logger.info(
            "segment_uploaded",
            partition=str(task.partition.at),
            base_offset=manifest.base_offset,
            next_offset=manifest.next_offset,
            state=manifest.state,
            bytes=size,
            seconds=round(seconds, 3),
        )

    def _failed(self, task: Task, error: Exception) -> float:
        """Tell who must know; the seconds to wait."""
        at, kind = task.partition.at, type(error).__name__
        failures = self._failures[at] = self._failures.get(at, 0) + 1
        pause = self._backoff.after(failures)
        self._metrics.failures.labels(kind).inc()
        self._health.failed(f"{at}: {kind}: {error}", segment=isinstance(task.job, Work))
        event = {"partition": str(at), "kind": kind, "error": str(error), "again_in": round(pause, 3)}
        if isinstance(error, _QUIET):
            logger.debug("job_outdated", **event)
            return pause
        task.partition.error = f"{kind}: {error}"
        if isinstance(error, Fenced):
            logger.warning("leadership_lost", **event)
        elif isinstance(error, _LOUD):
            logger.error("job_failed", **event)
        elif isinstance(error, StoreError):
            logger.warning("job_failed", **event)
        else:
            logger.error("job_failed", **event, exc_info=error)
        return pause
