"""What the caller's thread waits on while no tier has a record: whoever has news rings."""

from __future__ import annotations

from threading import TIMEOUT_MAX, Condition


class Wakeup:
    """Counts its rings, so that one between a look and the wait is not lost. Thread-safe."""

    def __init__(self) -> None:
        self._condition = Condition()
        self._rings = 0

    def ring(self, *_: object) -> None:
        """Wake who waits; takes whatever a callback is called with."""
        with self._condition:
            self._rings += 1
            self._condition.notify_all()

    @property
    def rings(self) -> int:
        """How often it has rung."""
        with self._condition:
            return self._rings

    def wait(self, heard: int, seconds: float) -> None:
        """Return once it has rung more than ``heard`` times, or after ``seconds``."""
        with self._condition:
            self._condition.wait_for(lambda: self._rings != heard, min(max(seconds, 0.0), TIMEOUT_MAX))
