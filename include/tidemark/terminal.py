"""The output of both programs in a terminal: tables, JSON, and the progress of a long command."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from typing import Final, Literal, Self

_FIRST_SECONDS: Final = 3.0
_EVERY_SECONDS: Final = 5.0


Output = Literal["text", "json"]
"""The form of an answer: for people or for programs."""


def columns(rows: Iterable[Sequence[object]], *, right: bool = False) -> str:
    """``rows`` of equal length, the first one the heads, padded to columns; None is a dash.

    With ``right``, cells are aligned to the right, like numbers.

    >>> print(columns([("PARTITION", "BYTES"), ("orders-0", 12), ("orders-10", None)]))
    PARTITION  BYTES
    orders-0   12
    orders-10  -
    """
    cells = [["-" if value is None else str(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    pad = str.rjust if right else str.ljust
    lines = ("  ".join(pad(cell, width) for cell, width in zip(row, widths, strict=True)) for row in cells)
    return "\n".join(line.rstrip() for line in lines)


class Progress:
    """A context that reports progress on standard error: after 3 s, every 5 s, and at the end if any was reported."""

    def __init__(self) -> None:
        self._next = time.monotonic() + _FIRST_SECONDS
        self._told, self._text = "", ""

    def say(self, text: str) -> None:
        """Set the text of the progress; mostly it is not printed."""
        self._text = text
        self._tell_if_due()

    def _line(self) -> str:
        return self._text

    def _tell_if_due(self) -> None:
        if time.monotonic() >= self._next:
            self._tell()

    def _tell(self) -> None:
        line = self._line()
        if line != self._told:
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()
        self._next, self._told = time.monotonic() + _EVERY_SECONDS, line

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._told:
            self._tell()


class Counting(Progress):
    """Progress of a count, with its speed; ``unit`` is a plural."""

    def __init__(self, unit: str) -> None:
        super().__init__()
        self._unit, self._started = unit, time.monotonic()
        self._count = self._size = 0

    def add(self, count: int, size: int) -> None:
        """Add ``count`` items with ``size`` bytes."""
        self.set(self._count + count, self._size + size)

    def set(self, count: int, size: int) -> None:
        """Set the totals."""
        self._count, self._size = count, size
        self._tell_if_due()

    def _line(self) -> str:
        seconds = time.monotonic() - self._started
        speed = self._count / seconds if seconds else 0.0
        return f"{self._count:,} {self._unit}, {self._size / 1e6:,.1f} MB in {seconds:.0f} s, {speed:,.0f} a second"
