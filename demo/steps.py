"""The demo's output: every step with its time, and lines of progress for long steps."""

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
        """Print a line with the time."""
        sys.stdout.write(f"[{self.elapsed:6.1f} s] {text}\n")
        sys.stdout.flush()

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Print ``name`` and the duration when the block ends."""
        started = time.monotonic()
        yield
        self.say(f"{name} ({time.monotonic() - started:.1f} s)")
