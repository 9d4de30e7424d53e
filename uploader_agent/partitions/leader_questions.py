"""The times at which to ask the broker who leads: regularly, soon after a hint, and once more after that. Pure."""

from __future__ import annotations

_HINT_PAUSE = 0.2
"""Seconds from a hint until the broker is asked: hints come in bursts, slightly before the change itself."""

_HINT_SPACING = 1.0
"""Least seconds between two hinted questions."""

_SECOND_QUESTION = 2.0
"""Seconds from a hinted question to its repetition, since a hint may arrive before the broker knows of the change."""


class LeaderQuestions:
    """The next question's time, in seconds of the caller's clock. The first question is due at once."""

    def __init__(self) -> None:
        self.next_time = 0.0
        self._asked_at = -_HINT_SPACING
        self._hinted = 0  # questions that the last hint caused and that are not asked yet

    @property
    def is_hinted(self) -> bool:
        """True if the next question follows from a hint, so that the disks may have changed as well."""
        return self._hinted > 0

    def hint(self, now: float) -> None:
        """Make a question due soon, since the leadership may have changed."""
        self.next_time = min(self.next_time, max(now + _HINT_PAUSE, self._asked_at + _HINT_SPACING))
        self._hinted = 2

    def ask_now(self) -> None:
        """Make the next question due at once."""
        self.next_time = 0.0

    def asked(self, now: float, interval: float) -> None:
        """Note that the question was put. Without a hint, the next one follows after ``interval`` seconds."""
        self._hinted = max(0, self._hinted - 1)
        self._asked_at = now
        self.next_time = now + (min(interval, _SECOND_QUESTION) if self._hinted else interval)
