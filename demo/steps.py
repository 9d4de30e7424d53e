"""What the demo says while it works: every step with its time, a line of progress where it takes long."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Steps:
    """Prints to standard output; times are seconds since the demo began and of the step."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    @property
    def elapsed(self) -> float:
        """Seconds since the demo began."""
        return time.monotonic() - self._began

    def say(self, text: str) -> None:
        """One line, with the time."""
        sys.stdout.write(f"[{self.elapsed:6.1f} s] {text}\n")
        sys.stdout.flush()

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Say when ``what`` is done, and how long it took."""
        started = time.monotonic()
        yield
        self.say(f"{what} ({time.monotonic() - started:.1f} s)")
