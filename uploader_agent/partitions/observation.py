"""What the broker has said of one led partition, and what of its log was on the disk then.

The broker says how far the log is committed, the disk how far it goes: ListOffsets does not tell the log end offset.
The disk is read after the broker has answered, so a high watermark that has reached this log end had reached all that
was appended before the question; one that has not is asked for again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from uploader_agent.broker.admin import Offsets
from uploader_agent.disk.active_segment import Active
from uploader_agent.disk.partition_dir import LogTail

FIRST_PAUSE = 0.25
"""Seconds until a high watermark is asked for again that is below the log end: followers must fetch."""

LONGEST_PAUSE = 10.0
"""Seconds between two questions while it stands still, as when the followers are down."""


@dataclass(frozen=True, slots=True)
class Observation:
    """An answer. ``tail`` is what the disk showed before it was asked for, ``active`` what it showed afterwards.

    ``offsets`` may be newer than the rest, and ``asked_at`` is None where there is none: the broker's checkpoint is no
    observation of the whole log, since it tells what was committed and not that this was all; nor is an answer after
    which the log end could not be read.
    """

    offsets: Offsets
    asked_at: datetime | None = None
    tail: LogTail | None = None
    active: Active | None = None

    @property
    def log_end(self) -> int | None:
        """The log end offset as of the answer; None if it is not known."""
        if self.active is None or self.active.end is None:
            return None
        return max(self.active.end, self.offsets.high_watermark)

    def with_offsets(self, offsets: Offsets) -> Observation:
        """With other ``offsets``, of the broker's checkpoint or of an answer after which the log end was not read."""
        return replace(self, offsets=offsets)

    def is_outdated(self, tail: LogTail | None) -> bool:
        """Whether the broker may say other offsets now, where the disk shows ``tail``."""
        if self.offsets.source == "checkpoint" or self.log_end is None or self.tail != tail:
            return True
        return self.offsets.high_watermark < self.log_end

    def held_at(self, confirmed_at: datetime | None, tail: LogTail | None) -> datetime | None:
        """When the offsets held: at ``confirmed_at``, if the disk showed then that nothing was appended since."""
        if self.asked_at is None or confirmed_at is None or confirmed_at < self.asked_at or self.is_outdated(tail):
            return self.asked_at
        return confirmed_at


class Pace:
    """How soon the broker is asked again: at once at first, and less and less often while its answers do not help."""

    def __init__(self) -> None:
        self.seconds = FIRST_PAUSE

    def reset(self) -> None:
        """The answer was what was waited for, or comes closer to it."""
        self.seconds = FIRST_PAUSE

    def slow_down(self) -> None:
        """The answer did not help."""
        self.seconds = min(LONGEST_PAUSE, 2 * self.seconds)
