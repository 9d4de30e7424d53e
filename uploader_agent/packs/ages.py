"""The age of a log's oldest byte that is not stored, by a monotonic clock."""

from __future__ import annotations

_MOST = 32


class Ages:
    """The ends of the log at several times. The loop notes them, any thread asks."""

    def __init__(self, now: float) -> None:
        """Begin at ``now``; the log before is unknown."""
        self._marks: tuple[tuple[float, int], ...] = ((now, 0),)

    def note(self, moment: float, end: int) -> None:
        """Note that at ``moment`` the log ended at the offset ``end`` or below: offsets above were appended later."""
        kept = [mark for mark in self._marks if mark[1] < end or mark[0] > moment]
        if len(kept) >= _MOST:
            del kept[1]  # offsets that were appended between its neighbours now count as older
        self._marks = tuple(sorted([*kept, (moment, end)]))

    def forget(self, stored_end: int) -> None:
        """Drop the times of offsets below ``stored_end``, which are stored, except for the last one."""
        marks = self._marks
        below = [mark for mark in marks if mark[1] <= stored_end]
        self._marks = (*below[-1:], *(mark for mark in marks if mark[1] > stored_end))

    def since(self, stored_end: int) -> float:
        """A moment after which everything from ``stored_end`` on was appended."""
        below = [moment for moment, end in self._marks if end <= stored_end]
        return max(below, default=self._marks[0][0])
