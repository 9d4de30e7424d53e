"""Time and threads for the agent's classes: the machine's, unless a test passes others in.

Every wait for another thread or for time uses :class:`Runtime`, so that a simulation can run the same classes in
virtual time, one thread at a time. Locks that only guard memory do not use it: no thread waits while it holds such a
lock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from types import TracebackType
from typing import Protocol, TypeVar

from uploader_agent import clock

Result = TypeVar("Result")


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
        return self.host_now() - clock.skew()

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
