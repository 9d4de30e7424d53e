"""Limits on the traffic to the store: concurrent jobs, adapted to its answers, and bytes a second from the settings."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from typing_extensions import override

from tidemark.store.base import Traffic
from uploader_agent.observability.metrics import Metrics

_SMALL = 64 << 10
"""Most bytes of a small request. It never waits for the bandwidth, but large requests wait for the bytes it takes."""

_GRAIN_SECONDS = 0.05
_LEAST_GRAIN, _LARGEST_GRAIN = 4 << 10, 256 << 10


class Bandwidth:
    """A cap on bytes a second over all uploads: a token bucket that holds one grain.

    A caller gets at most one grain and then queues again, so all uploads get the same share. A large upload delays a
    small one by one grain of each running upload, whatever its size. Thread-safe; waiting costs nothing.
    """

    def __init__(self, rate: int | None, clock: Callable[[], float] = time.monotonic) -> None:
        """``rate`` is in bytes a second; None for no cap."""
        self.rate = rate
        self._clock = clock
        self._lock = threading.Lock()
        self._free_at = clock()
        self._closed = threading.Event()

    def take(self, size: int) -> tuple[int, float]:
        """Take up to ``size`` bytes; return the number taken, and the seconds until they may be sent."""
        rate = self.rate
        if rate is not None:
            size = min(size, _LARGEST_GRAIN, max(_LEAST_GRAIN, int(rate * _GRAIN_SECONDS)))
        return size, self._take(size, rate)

    def charge(self, size: int) -> None:
        """Take ``size`` bytes that are sent at once: other uploads wait for them."""
        self._take(size, self.rate)

    def admit(self, size: int) -> int:
        """Wait until some of ``size`` bytes may be sent, and return their number."""
        size, wait = self.take(size)
        if wait > 0:
            self._closed.wait(wait)
        return size

    def close(self) -> None:
        """Release all waiting threads, since the process is about to end."""
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
    """Counts the requests to the store in ``metrics``, and keeps the sent bytes within the bandwidth."""

    def __init__(self, metrics: Metrics, bandwidth: int | None) -> None:
        """``bandwidth`` is in bytes a second; None for no cap."""
        self.metrics = metrics
        self._bandwidth = Bandwidth(bandwidth)
        self._first = threading.local()

    def cap(self, bandwidth: int | None) -> None:
        """Apply another bandwidth from now on."""
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
        """A context in which this thread sends at once, and other threads wait for its bytes."""
        self._first.here = True
        try:
            yield
        finally:
            self._first.here = False

    def close(self) -> None:
        """Release all waiting threads."""
        self._bandwidth.close()


class Limit:
    """The limit on concurrent jobs: halved when the store answers SlowDown, one more after a full round of successes.

    Moments are numbers that grow with each job that starts: jobs that were running when the limit was halved prove
    nothing about the lower limit. Not thread-safe.
    """

    def __init__(self, most: int) -> None:
        self.now = most
        self._most = most
        self._good = 0
        self._since = 0

    def resize(self, most: int) -> None:
        """Let at most ``most`` jobs run, and that many unless the store has answered SlowDown."""
        self.now = min(self.now, most) if self.now < self._most else most
        self._most = most

    def succeeded(self, started: int) -> None:
        """Note the end of a job that started at ``started``."""
        if started > self._since and self.now < self._most:
            self._good += 1
            if self._good >= self.now:
                self.now, self._good = self.now + 1, 0

    def slow_down(self, started: int, moment: int) -> None:
        """Note that at ``moment`` the store answered SlowDown to a job that started at ``started``."""
        if started > self._since:
            self.now, self._good, self._since = max(1, self.now // 2), 0, moment
