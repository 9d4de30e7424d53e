"""The agent's threads that do the same work again and again: when it is due, or when they are woken."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from uploader_agent.runtime import MACHINE, Runtime

UNTIL_WOKEN: Final = math.inf
"""The pause after a turn that only :meth:`Worker.wake` ends."""


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
