"""The event on which the caller's thread waits while no tier has a record; any thread with news sets it."""

from __future__ import annotations

from threading import TIMEOUT_MAX, Condition


class Wakeup:
    """A count of calls of :meth:`wake`, so that no call between a look and the wait is lost. Thread-safe."""

    def __init__(self) -> None:
        self._condition = Condition()
        self._count = 0

    def wake(self, *_: object) -> None:
        """Wake the waiting thread; takes any arguments, to serve as a callback."""
        with self._condition:
            self._count += 1
            self._condition.notify_all()

    @property
    def count(self) -> int:
        """Number of calls of :meth:`wake`."""
        with self._condition:
            return self._count

    def wait(self, heard: int, seconds: float) -> None:
        """Return once :meth:`wake` was called more than ``heard`` times, or after ``seconds``."""
        with self._condition:
            self._condition.wait_for(lambda: self._count != heard, min(max(seconds, 0.0), TIMEOUT_MAX))
