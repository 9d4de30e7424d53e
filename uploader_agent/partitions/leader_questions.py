"""When to ask the broker who leads: regularly, soon after a hint, and once more after that. Pure."""

from __future__ import annotations

_HINT_PAUSE = 0.2
"""Seconds from a hint until the broker is asked: hints come in bursts, slightly before the change itself."""

_HINT_SPACING = 1.0
"""Seconds from one such question to the next."""

_SECOND_QUESTION = 2.0
"""Seconds from a hinted question to another one: the hint may arrive before the broker itself has heard of the
change."""


class LeaderQuestions:
    """Times are in seconds, by one clock of the caller's choice. The first question is due at once."""

    def __init__(self) -> None:
        self.next_time = 0.0
        self._asked_at = -_HINT_SPACING
        self._hinted = 0  # questions that the last hint caused and that are not asked yet

    @property
    def is_hinted(self) -> bool:
        """Whether the next question follows from a hint, so that the disks may have changed as well."""
        return self._hinted > 0

    def hint(self, now: float) -> None:
        """The leadership may have changed."""
        self.next_time = min(self.next_time, max(now + _HINT_PAUSE, self._asked_at + _HINT_SPACING))
        self._hinted = 2

    def ask_now(self) -> None:
        """The next question is due at once."""
        self.next_time = 0.0

    def asked(self, now: float, interval: float) -> None:
        """The question was put; without a hint the next one follows after ``interval`` seconds."""
        self._hinted = max(0, self._hinted - 1)
        self._asked_at = now
        self.next_time = now + (min(interval, _SECOND_QUESTION) if self._hinted else interval)
