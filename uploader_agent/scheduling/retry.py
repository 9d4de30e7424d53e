"""The handling of failed jobs: their reports, and the pause before the next try."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Hashable

import structlog

from tidemark.backoff import Backoff
from tidemark.errors import ContinuityError, FormatError, PreconditionFailed, Refused, StoreError
from tidemark.formats.keys import TopicPartition
from uploader_agent.disk.segment_files import SegmentChanged
from uploader_agent.observability.log_config import ErrorDeduplicator, Level
from uploader_agent.observability.metrics import Metrics
from uploader_agent.stored.watermark import Fenced

logger = structlog.get_logger(__name__)

_QUIET = (SegmentChanged, PreconditionFailed)
"""Errors that mean that the partition has changed in the meantime: the next look at it plans a new job."""

_LOUD = (FormatError, ContinuityError, OSError)
"""Errors after which a person must act; the agent continues to try."""


class Failures:
    """Failures in a row by partition, and their reports in the log and the metrics. Thread-safe.

    Refusals by the store are one trouble, even of many partitions: it is logged once for all of them, and is over when
    a segment was uploaded, or when none of the refused partitions is left.
    """

    def __init__(
        self,
        backoff: Backoff,
        metrics: Metrics,
        repeats: ErrorDeduplicator,
        spread: Callable[[float, float], float] = random.uniform,
    ) -> None:
        """A pause lies between the one of ``backoff`` and its half; ``spread`` chooses where."""
        self.backoff = backoff
        self._metrics = metrics
        self._repeats = repeats
        self._spread = spread
        self._lock = threading.Lock()
        self._in_a_row: dict[TopicPartition, int] = {}
        self._troubles: dict[TopicPartition, dict[Hashable, dict[str, str]]] = {}
        self._refused: set[TopicPartition] = set()

    def failed(self, tp: TopicPartition, error: Exception) -> tuple[float, str | None]:
        """Report a failure; return the pause in seconds, and the message for the partition, or None without trouble."""
        kind = type(error).__name__
        self._metrics.failures.labels(kind).inc()
        with self._lock:
            failures = self._in_a_row[tp] = self._in_a_row.get(tp, 0) + 1
            longest = self.backoff.after(failures)
            pause = self._spread(longest / 2, longest)
            event: dict[str, object] = {"partition": str(tp), "kind": kind, "error": str(error)}
            if isinstance(error, _QUIET):
                logger.debug("job_outdated", **event, again_in=round(pause, 3))
                return pause, None
            self._report(tp, kind, error, event, pause)
        return pause, f"{kind}: {error}"

    def succeeded(self, tp: TopicPartition, *, wrote: bool) -> None:
        """Note that a job of the partition is done; ``wrote`` if it has written to the store."""
        with self._lock:
            self._in_a_row.pop(tp, None)
            for key, details in self._troubles.pop(tp, {}).items():
                self._repeats.cleared(key, "job_works_again", **details)
            self._accepted(set(self._refused) if wrote else {tp})

    def forget(self, tp: TopicPartition) -> None:
        """Drop the failures of a partition that this broker no longer leads."""
        with self._lock:
            self._in_a_row.pop(tp, None)
            for key, details in self._troubles.pop(tp, {}).items():
                self._repeats.cleared(key, "partition_left", **details)
            self._accepted({tp})

    def _report(self, tp: TopicPartition, kind: str, error: Exception, event: dict[str, object], pause: float) -> None:
        if isinstance(error, Refused):
            self._refused.add(tp)
            self._metrics.store_refused.set(1)
            self._repeats.failed("refused", "store_refuses", "error", **event)
            return
        key: Hashable = (tp, kind)
        self._troubles.setdefault(tp, {})[key] = {"partition": str(tp), "kind": kind}
        name = "leadership_lost" if isinstance(error, Fenced) else "job_failed"
        expected = isinstance(error, (StoreError, Fenced))
        level: Level = "warning" if expected else "error"
        if not expected and not isinstance(error, _LOUD):
            event["exc_info"] = error
        self._repeats.failed(key, name, level, **event, again_in=round(pause, 3))

    def _accepted(self, partitions: set[TopicPartition]) -> None:
        """Note that the store no longer refuses the requests of ``partitions``."""
        if not self._refused:
            return
        self._refused -= partitions
        if not self._refused:
            self._metrics.store_refused.set(0)
            self._repeats.cleared("refused", "store_accepts_again")
