"""What a command that takes long has done so far, on standard error."""

from __future__ import annotations

import sys
import time
from typing import Final, Self

_FIRST_SECONDS: Final = 3.0
_EVERY_SECONDS: Final = 5.0


class Progress:
    """Counts, and tells after 3 s and then every 5 s; the last line where there was one before. Use with ``with``."""

    def __init__(self, unit: str) -> None:
        self._unit = unit
        self._started = time.monotonic()
        self._next = self._started + _FIRST_SECONDS
        self._told = False
        self._count = self._size = 0

    def add(self, count: int, size: int) -> None:
        """So many more, of so many bytes."""
        self.set(self._count + count, self._size + size)

    def set(self, count: int, size: int) -> None:
        """So many in all."""
        self._count, self._size = count, size
        if time.monotonic() >= self._next:
            self._tell()

    def _tell(self) -> None:
        now = time.monotonic()
        seconds = now - self._started
        speed = f"{self._count / seconds:,.0f} a second"
        sys.stderr.write(f"{self._count:,} {self._unit}, {self._size / 1e6:,.1f} MB in {seconds:.0f} s, {speed}\n")
        sys.stderr.flush()
        self._next, self._told = now + _EVERY_SECONDS, True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._told:
            self._tell()
