"""How old the oldest byte of a log is that is not stored, by a monotonic clock."""

from __future__ import annotations

_MOST = 32


class Ages:
    """Keeps when the log was seen to end where. The loop notes it, any thread asks."""

    def __init__(self, now: float) -> None:
        """Nothing is known of the log before ``now``."""
        self._marks: tuple[tuple[float, int], ...] = ((now, 0),)

    def note(self, moment: float, end: int) -> None:
        """At ``moment`` the log ended at the offset ``end`` or below: what is above was appended later."""
        kept = [mark for mark in self._marks if mark[1] < end or mark[0] > moment]
        if len(kept) >= _MOST:
            del kept[1]  # what was appended then counts as older
        self._marks = tuple(sorted([*kept, (moment, end)]))

    def forget(self, stored_end: int) -> None:
        """What is below ``stored_end`` is stored: of its times only the last one is needed."""
        marks = self._marks
        below = [mark for mark in marks if mark[1] <= stored_end]
        self._marks = (*below[-1:], *(mark for mark in marks if mark[1] > stored_end))

    def since(self, stored_end: int) -> float:
        """A moment after which everything from ``stored_end`` on was appended."""
        below = [moment for moment, end in self._marks if end <= stored_end]
        return max(below, default=self._marks[0][0])
