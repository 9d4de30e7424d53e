"""How much goes to the store: jobs at a time by what the store bears, bytes a second by what the operator allows."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from typing_extensions import override

from tidemark.store.traffic import Traffic
from uploader_agent.observability.metrics import Metrics

_SMALL = 64 << 10
"""Requests of at most this many bytes never wait for the bandwidth, but what they take, the large ones wait for."""

_GRAIN_SECONDS = 0.05
_LEAST_GRAIN, _LARGEST_GRAIN = 4 << 10, 256 << 10


class Bandwidth:
    """A cap on bytes a second over all uploads: a token bucket that holds one grain.

    Who asks gets a grain at most and queues up again, so all uploads get the same share, and a large one delays a
    small one by one grain of each upload under way, whatever its size. Thread-safe; waiting costs nothing.
    """

    def __init__(self, rate: int | None, clock: Callable[[], float] = time.monotonic) -> None:
        """``rate`` is in bytes a second; None for no cap."""
        self.rate = rate
        self._clock = clock
        self._lock = threading.Lock()
        self._free_at = clock()
        self._closed = threading.Event()

    def take(self, size: int) -> tuple[int, float]:
        """How many of ``size`` bytes may go, and in how many seconds; they are taken."""
        rate = self.rate
        if rate is not None:
            size = min(size, _LARGEST_GRAIN, max(_LEAST_GRAIN, int(rate * _GRAIN_SECONDS)))
        return size, self._take(size, rate)

    def charge(self, size: int) -> None:
        """``size`` bytes go at once: others wait for them."""
        self._take(size, self.rate)

    def admit(self, size: int) -> int:
        """Wait until some of ``size`` bytes may go; how many."""
        size, wait = self.take(size)
        if wait > 0:
            self._closed.wait(wait)
        return size

    def close(self) -> None:
        """Let everybody go who waits: the process is about to end."""
        self._closed.set()

    def _take(self, size: int, rate: int | None) -> float:
        if rate is None:
            return 0.0
        with self._lock:
            now = self._clock()
            start = max(self._free_at, now)
            self._free_at = start + size / rate
            return start - now


class StoreTraffic(Traffic):
    """Counts the requests to the store in ``metrics``, and keeps what is sent within the bandwidth."""

    def __init__(self, metrics: Metrics, bandwidth: int | None) -> None:
        """``bandwidth`` is in bytes a second; None for as much as the store takes."""
        self.metrics = metrics
        self._bandwidth = Bandwidth(bandwidth)
        self._first = threading.local()

    def cap(self, bandwidth: int | None) -> None:
        """Keep within another bandwidth from now on."""
        self._bandwidth.rate = bandwidth

    @override
    def request(self, operation: str) -> None:
        self.metrics.store_requests.labels(operation).inc()

    @override
    def admit(self, size: int, total: int) -> int:
        if total <= _SMALL or getattr(self._first, "here", False):
            self._bandwidth.charge(size)
            return size
        return self._bandwidth.admit(size)

    @contextmanager
    def first(self) -> Iterator[None]:
        """What this thread sends goes at once, and others wait for it."""
        self._first.here = True
        try:
            yield
        finally:
            self._first.here = False

    def close(self) -> None:
        """Let everybody go who waits."""
        self._bandwidth.close()


class Limit:
    """How many jobs may run at a time: halved when the store says SlowDown, one more after a full round of successes.

    Moments are numbers that grow with each job that starts: the jobs that were under way when the limit was halved
    say nothing about the lower one. Not thread-safe.
    """

    def __init__(self, most: int) -> None:
        self.now = most
        self._most = most
        self._good = 0
        self._since = 0

    def resize(self, most: int) -> None:
        """Let at most ``most`` jobs run, and that many unless the store has said SlowDown."""
        self.now = min(self.now, most) if self.now < self._most else most
        self._most = most

    def succeeded(self, started: int) -> None:
        """A job that started at ``started`` is done."""
        if started > self._since and self.now < self._most:
            self._good += 1
            if self._good >= self.now:
                self.now, self._good = self.now + 1, 0

    def slow_down(self, started: int, moment: int) -> None:
        """At ``moment`` a job that started at ``started`` was told to slow down."""
        if started > self._since:
            self.now, self._good, self._since = max(1, self.now // 2), 0, moment
