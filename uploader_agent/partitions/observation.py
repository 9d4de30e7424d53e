"""The broker's last answer about a led partition, and the state of its log on the disk at that time.

The broker states the committed end of the log, the disk the end of the log: ListOffsets has no log end offset. The disk
is read after the broker has answered. A high watermark at this log end therefore covers everything that was appended
before the question. A lower one is asked for again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, NamedTuple

from tidemark.retry import Backoff
from uploader_agent.broker.admin import Offsets
from uploader_agent.disk.active_segment import Active
from uploader_agent.disk.partition_dir import LogTail

QUESTION_BACKOFF: Final = Backoff(0.25, 10.0)
"""The pauses until a high watermark below the log end is asked for again.

Followers must fetch first, and it may be stuck, for example because they are down.
"""


@dataclass(frozen=True, slots=True)
class Observation:
    """An answer. ``tail`` is from the disk before the question, ``active`` from the disk after the answer.

    ``offsets`` may be newer than the rest. ``asked_at`` is None if the whole log was not observed: with the broker's
    checkpoint, which does not have the end of the log, and with an answer after which the log end could not be read.
    """

    offsets: Offsets
    asked_at: datetime | None = None
    tail: LogTail | None = None
    active: Active | None = None

    @property
    def log_end(self) -> int | None:
        """The log end offset at the time of the answer; None if it is unknown."""
        if self.offsets.log_end is not None:
            return max(self.offsets.log_end, self.offsets.high_watermark)
        if self.active is None or self.active.end is None:
            return None
        return max(self.active.end, self.offsets.high_watermark)

    def with_offsets(self, offsets: Offsets) -> Observation:
        """A copy with other ``offsets``: from the broker's checkpoint, or from an answer without a readable log end."""
        return replace(self, offsets=offsets)

    def says_the_same(self, other: Observation) -> bool:
        """True if ``other`` differs in nothing but times."""
        return (self.offsets, self.active) == (other.offsets, other.active)

    def is_outdated(self, tail: LogTail | None) -> bool:
        """True if the broker's offsets may have changed, given that the disk now shows ``tail``."""
        if self.offsets.source == "checkpoint" or self.log_end is None or self.tail != tail:
            return True
        return self.offsets.high_watermark < self.log_end

    @property
    def is_stated(self) -> bool:
        """True if the leader stated the log end. Then the log may grow unseen: the directory only follows it."""
        return self.offsets.log_end is not None

    def held_at(self, confirmed_at: datetime | None, tail: LogTail | None) -> datetime | None:
        """The last time at which the offsets were valid: ``confirmed_at``, if nothing was appended until then."""
        if self.is_stated or self.asked_at is None or confirmed_at is None or confirmed_at < self.asked_at:
            return self.asked_at
        if self.is_outdated(tail):
            return self.asked_at
        return confirmed_at


class Confirmed(NamedTuple):
    """A high watermark that the broker has answered as the leader, to a question of ``asked_at``."""

    high_watermark: int
    asked_at: datetime
