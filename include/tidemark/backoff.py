"""The doubling pause of everything that is tried again."""

from __future__ import annotations

from typing import NamedTuple


class Backoff(NamedTuple):
    """Pauses in seconds between tries: the ``first``, and each later one twice as long, up to the ``longest``.

    No pause is shorter than the first, whatever the longest is. Callers that must not keep step spread them.
    """

    first: float
    longest: float

    def after(self, failures: int) -> float:
        """The pause after ``failures`` failures in a row, which are at least one."""
        return self._bounded(self.first * 2.0 ** min(failures - 1, 30))

    def longer(self, pause: float) -> float:
        """The pause that follows ``pause``; the first one after 0."""
        return self._bounded(2 * pause)

    def _bounded(self, pause: float) -> float:
        return max(self.first, min(self.longest, pause))
