"""The thread that writes the watermark indexes: a store that hangs must not keep the loop from the disks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from typing import NamedTuple

import structlog

from tidemark.errors import FormatError, StoreError
from tidemark.formats.keys import TopicPartition
from tidemark.formats.raw.watermark_index import IndexEntry
from tidemark.store.clock import MOST, described
from uploader_agent import clock
from uploader_agent.observability.health import Failing
from uploader_agent.observability.log_dedup import ErrorDeduplicator
from uploader_agent.observability.metrics import Metrics
from uploader_agent.partitions.led_partition import LedPartition
from uploader_agent.runtime import MACHINE, Runtime
from uploader_agent.settings import IndexSettings
from uploader_agent.watermark_index.publisher import IndexPublisher

logger = structlog.get_logger(__name__)

_CLOCK_EVERY = 600.0
"""Seconds between two readings of the store's clock."""

_READ_AGAIN = 1.0
"""Seconds after which the former index is read again, if the store has failed."""


class _Shown(NamedTuple):
    partitions: Collection[LedPartition]
    confirmed_at: datetime | None


class IndexThread:
    """Writes the partitions that it is shown, every ``interval`` seconds if they have changed."""

    def __init__(
        self,
        indexes: IndexPublisher,
        metrics: Metrics,
        repeats: ErrorDeduplicator,
        interval: float,
        progressed: Callable[[], None],
        runtime: Runtime = MACHINE,
    ) -> None:
        """Prepare. It calls ``progressed`` once :meth:`take` has the former index, and after the first write."""
        self._former: Mapping[TopicPartition, IndexEntry] | None = None
        self._interval = interval
        self._indexes = indexes
        self._metrics = metrics
        self._repeats = repeats
        self._progressed = progressed
        self._failing: tuple[float, str] | None = None  # since when, and the last error
        self._shown: _Shown | None = None
        self._clock_measured_at = -_CLOCK_EVERY
        self._runtime = runtime
        self._showing = runtime.event()
        self._stopping = runtime.event()
        self.thread = runtime.thread("index", self._run)

    def start(self) -> None:
        """Read the former index, then write."""
        self.thread.start()

    def take(self) -> Mapping[TopicPartition, IndexEntry] | None:
        """The index that this broker's agent wrote before its start, once; None until it was read."""
        former, self._former = self._former, None
        return former

    @property
    def has_written(self) -> bool:
        """True once the store has taken an index: it answers, and lets this agent read and write."""
        return self._indexes.has_written

    def failing(self) -> Failing | None:
        """The failure of the store, while it fails. For any thread."""
        if self._failing is None:
            return None
        since, error = self._failing
        what = "the watermark index was neither read nor written"
        return Failing(what, self._runtime.monotonic() - since, error)

    def reconfigure(self, settings: IndexSettings) -> None:
        """Write at these intervals from now on."""
        self._interval = settings.min_interval.total_seconds()
        self._indexes.reconfigure(settings)

    def show(self, partitions: Collection[LedPartition], confirmed_at: datetime | None) -> None:
        """Set the arguments of the next ``offer``; ``partitions`` must not change afterwards."""
        self._shown = _Shown(partitions, confirmed_at)
        self._showing.set()

    def stop(self, timeout: float) -> None:
        """End the thread, and write the last shown state; within ``timeout`` seconds, unless a request hangs longer."""
        self._stopping.set()
        self._showing.set()
        if self.thread.ident is not None:
            self.thread.join(timeout)
        if not self.thread.is_alive():
            self._write(now=True)

    def _run(self) -> None:
        self.measure_clock()
        while (former := self._read()) is None and not (self._stopping.is_set() or self._showing.is_set()):
            self._stopping.wait(_READ_AGAIN)
        if former is not None:
            self._failing = None
        self._former = former or {}
        if not self._stopping.is_set():
            self._progressed()
        self._showing.wait()
        while not self._stopping.is_set():
            self.measure_clock()
            self._write(now=False)
            self._stopping.wait(self._interval)

    def measure_clock(self) -> None:
        """Compare this host's clock with the store's, which all stated times use; at most every ten minutes."""
        if self._runtime.monotonic() - self._clock_measured_at < _CLOCK_EVERY:
            return
        self._clock_measured_at = self._runtime.monotonic()
        try:
            skew = clock.measure(self._indexes.control_store, self._runtime.host_now)
        except StoreError as error:
            logger.debug("clock_not_compared", error=str(error))
            return
        except Exception:
            logger.exception("clock_not_compared")  # the thread must go on to write the indexes
            return
        self._metrics.clock_skew.set(skew.total_seconds())
        if abs(skew) > MOST:
            self._repeats.failed("clock", "clock_differs", error=f"this host's clock is {described(skew)}")
        else:
            self._repeats.cleared("clock", "clock_agrees_again")

    def _read(self) -> Mapping[TopicPartition, IndexEntry] | None:
        """The former index; None if the store fails. One that is damaged counts as empty: that costs more requests."""
        try:
            return self._indexes.read()
        except FormatError as error:
            logger.warning("former_index_ignored", error=str(error))
        except StoreError as error:
            self._failed(error)
            self._repeats.failed("index", "former_index_not_read", error=str(error))
            return None
        except Exception:
            logger.exception("former_index_not_read")  # without an answer the agent would upload nothing
        return {}

    def _write(self, *, now: bool) -> None:
        if self._shown is None:
            return
        before = self.has_written
        try:
            if self._indexes.offer(*self._shown, now=now):
                self._metrics.index_written.set_to_current_time()
                self._repeats.cleared("index", "index_written_again")
                self._failing = None
        except StoreError as error:
            self._failed(error)
            self._repeats.failed("index", "index_not_written", error=str(error))
        except Exception:
            logger.exception("index_not_written")  # the thread must go on to the next try
        if self.has_written and not before:
            self._progressed()

    def _failed(self, error: StoreError) -> None:
        since = self._failing[0] if self._failing else self._runtime.monotonic()
        self._failing = since, str(error)
