"""Time and threads for the agent's classes: the machine's, unless a test passes others in.

Every wait for another thread or for time uses :class:`Runtime`, so that a simulation can run the same classes in
virtual time, one thread at a time. Locks that only guard memory do not use it: no thread waits while it holds such a
lock. Threads that do the same work again and again are :class:`Worker`.

The agent states the store's time, once it is known, instead of this host's. Every time that others read is such a one:
when offsets were observed, a gap was found, an object was written. Times that are compared with this host's files use
this host's clock. The process has one such clock.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Final, Protocol, TypeVar

from tidemark.store import Store, clock

Result = TypeVar("Result")

NEVER: Final = datetime.fromtimestamp(0, UTC)
"""The time of an observation at an unknown time: it makes no date complete."""

UNTIL_WOKEN: Final = math.inf
"""The pause after a turn that only :meth:`Worker.wake` ends."""

_skew = timedelta()


def measure_skew(store: Store, host_now: Callable[[], datetime] | None = None) -> timedelta:
    """Measure and return the time by which this host's clock is ahead of the store's; :func:`utc_now` then uses it.

    An inexact reading replaces the former reading only if the two contradict each other.

    Raises:
        StoreError: the store failed; the former reading still counts.
    """
    global _skew  # noqa: PLW0603 - a process has one clock
    reading = clock.read(store, host_now)
    if reading is not None and (reading.exact or abs(reading.skew - _skew) > clock.MOST):
        _skew = reading.skew
    return _skew


def clock_skew() -> timedelta:
    """The time by which this host's clock was ahead of the store's at the last measurement."""
    return _skew


def utc_now() -> datetime:
    """The time that the agent states, by the machine's clock, see :meth:`Runtime.utc_now`."""
    return MACHINE.utc_now()


class Lock(Protocol):
    """The part of :class:`threading.Lock` that the agent uses."""

    def acquire(self, blocking: bool = True) -> bool:
        """Take the lock, and return whether it is now held."""
        ...

    def release(self) -> None:
        """Release the lock; RuntimeError unless it is held."""
        ...

    def __enter__(self) -> bool: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class EventLike(Protocol):
    """The part of :class:`threading.Event` that the agent uses."""

    def is_set(self) -> bool:
        """True if the event is set."""
        ...

    def set(self) -> None:
        """Set the event, and wake all threads that wait for it."""
        ...

    def clear(self) -> None:
        """Unset the event: later waits block again."""
        ...

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the event is set; return False if ``timeout`` seconds pass first."""
        ...


class ConditionLike(Protocol):
    """The part of :class:`threading.Condition` that the agent uses."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until notified; return False if ``timeout`` seconds pass first."""
        ...

    def wait_for(self, predicate: Callable[[], Result], timeout: float | None = None) -> Result:
        """Wait until ``predicate`` holds or the time is up, and return its last value."""
        ...

    def notify_all(self) -> None:
        """Wake all threads that wait."""
        ...

    def __enter__(self) -> bool: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Thread(Protocol):
    """The part of :class:`threading.Thread` that the agent uses."""

    @property
    def ident(self) -> int | None:
        """The thread's number; None before it was started."""
        ...

    def start(self) -> None:
        """Start the thread; it can be started once."""
        ...

    def join(self, timeout: float | None = None) -> None:
        """Wait until the thread has ended, or until ``timeout`` seconds have passed."""
        ...

    def is_alive(self) -> bool:
        """True if the thread was started and has not ended."""
        ...


class Runtime:
    """The machine's clocks and threads."""

    def monotonic(self) -> float:
        """Seconds by a clock that never jumps."""
        return time.monotonic()

    def time(self) -> float:
        """Seconds since 1970."""
        return time.time()

    def utc_now(self) -> datetime:
        """The time that the agent states: :meth:`host_now`, corrected to the store's clock."""
        return self.host_now() - _skew

    def host_now(self) -> datetime:
        """:meth:`time`, aware, in UTC, to the millisecond."""
        now = datetime.fromtimestamp(self.time(), UTC)
        return now.replace(microsecond=now.microsecond // 1000 * 1000)

    def lock(self) -> Lock:
        """A lock that may be held while its owner waits."""
        return threading.Lock()

    def event(self) -> EventLike:
        """An event that is not set."""
        return threading.Event()

    def condition(self) -> ConditionLike:
        """A condition with a lock of its own."""
        return threading.Condition()

    def thread(self, name: str, target: Callable[[], object]) -> Thread:
        """A daemon thread that was not started yet."""
        return threading.Thread(target=target, name=name, daemon=True)


MACHINE = Runtime()
"""The runtime outside of simulations."""


class Worker:
    """A thread that calls ``turn``, waits, and calls it again, until it is stopped.

    ``turn`` returns the seconds until the next one is due, or None to end the thread. A call of :meth:`wake` makes the
    next turn due at once, also if it comes while a turn runs. So whoever wakes the worker first hands over the work.

    An error of ``turn`` is passed to ``failed``, which reports it, and returns the seconds until the next turn. Without
    ``failed`` it ends the thread, which is reported by health. ``ended`` is called in the thread at its end.
    """

    def __init__(
        self,
        name: str,
        turn: Callable[[], float | None],
        runtime: Runtime = MACHINE,
        *,
        failed: Callable[[Exception], float] | None = None,
        ended: Callable[[], object] | None = None,
    ) -> None:
        self.name = name
        self._turn = turn
        self._failed = failed
        self._ended = ended
        self._first_pause = 0.0
        self._woken = runtime.event()
        self._stopped = False
        self._thread = runtime.thread(name, self.run)

    def start(self, after: float = 0.0) -> None:
        """Start the thread; the first turn is due ``after`` seconds."""
        self._first_pause = after
        self._thread.start()

    def wake(self) -> None:
        """Have a turn begin at once, or after the one that runs."""
        self._woken.set()

    def stop(self) -> None:
        """Begin no more turns. The running one goes on; :meth:`join` waits for it."""
        self._stopped = True
        self._woken.set()

    @property
    def stopped(self) -> bool:
        """True once no more turns begin."""
        return self._stopped

    def join(self, timeout: float | None = None) -> None:
        """Wait until the thread has ended, at most ``timeout`` seconds; not for one that was never started."""
        if self.ident is not None:
            self._thread.join(timeout)

    @property
    def ident(self) -> int | None:
        """The thread's number; None before it was started."""
        return self._thread.ident

    def is_alive(self) -> bool:
        """True if the thread was started and has not ended."""
        return self._thread.is_alive()

    def run(self) -> None:
        """Take turns in the caller's thread until the worker is stopped."""
        try:
            pause: float | None = self._first_pause
            while pause is not None and self._wait(pause):
                pause = self._take_turn()
        finally:
            if self._ended is not None:
                self._ended()

    def _wait(self, seconds: float) -> bool:
        """Wait until the next turn is due; False if the worker is stopped instead."""
        if seconds > 0:
            self._woken.wait(None if seconds == UNTIL_WOKEN else seconds)
        self._woken.clear()  # before the look at _stopped, and before the turn takes its work: neither is missed
        return not self._stopped

    def _take_turn(self) -> float | None:
        try:
            return self._turn()
        except Exception as error:
            if self._failed is None:
                raise
            return self._failed(error)
