"""Time and threads, as the agent's classes ask for them: those of the machine, unless a test passes others in.

Every wait for another thread or for time goes through :class:`Runtime`, so that a simulation can run the same classes
in virtual time, one thread at a time. Locks that guard memory alone do not: no thread waits while it holds one.
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
    """What is used of :class:`threading.Lock`."""

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
    """What is used of :class:`threading.Event`."""

    def is_set(self) -> bool:
        """Whether it is set."""
        ...

    def set(self) -> None:
        """Wake all that wait."""
        ...

    def clear(self) -> None:
        """Let those that come wait again."""
        ...

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until woken, or until ``timeout`` seconds have passed; False if they have."""
        ...


class ConditionLike(Protocol):
    """What is used of :class:`threading.Condition`."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until woken, or until ``timeout`` seconds have passed; False if they have."""
        ...

    def wait_for(self, predicate: Callable[[], Result], timeout: float | None = None) -> Result:
        """Wait until ``predicate`` holds or the time is up, and return its last value."""
        ...

    def notify_all(self) -> None:
        """Wake all that wait."""
        ...

    def __enter__(self) -> bool: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Thread(Protocol):
    """What is used of :class:`threading.Thread`."""

    @property
    def ident(self) -> int | None:
        """None before it was started."""
        ...

    def start(self) -> None:
        """Start the thread; it can be started once."""
        ...

    def join(self, timeout: float | None = None) -> None:
        """Wait until it has ended, or until ``timeout`` seconds have passed."""
        ...

    def is_alive(self) -> bool:
        """Whether it was started and has not ended."""
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
        """What the agent states as the time: :meth:`host_now`, corrected by the store's clock."""
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
"""What everything runs on outside of simulations."""
