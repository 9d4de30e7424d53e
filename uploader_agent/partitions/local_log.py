"""The log of a led partition on this broker, as disk and broker last showed it.

The broker states the committed end of the log, the disk the end of the log: ListOffsets has no log end offset. The disk
is read after the broker has answered. A high watermark at this log end therefore covers everything that was appended
before the question. A lower one is asked for again.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from tidemark.backoff import Backoff
from tidemark.intervals import Intervals
from uploader_agent.broker.admin import Cleanup, KafkaTier, Offsets
from uploader_agent.disk.log_dirs import LocalSegment
from uploader_agent.disk.partition_dir import Active, LogTail


@dataclass(frozen=True, slots=True)
class LocalLog:
    """The log as disk and broker last showed it.

    ``segments`` are held or on the disk, by base offset, the last one active. ``offsets`` come from the broker or its
    checkpoint. ``disk_start`` is the base offset of the first segment on the disk; None without one. ``observed_start``
    is its value before the broker was asked for the ``offsets``. ``replicas`` are the brokers that have a replica, as
    metadata names them. ``lists_tail`` is true if ``offset.wm`` lists this leadership among those that may have packed
    from its claim on.
    """

    segments: tuple[LocalSegment, ...] = ()
    offsets: Offsets | None = None
    cleanup: Cleanup = field(default_factory=Cleanup)
    disk_start: int | None = None
    observed_start: int | None = None
    replicas: tuple[int, ...] = ()
    lists_tail: bool = False

    @property
    def start_evidence(self) -> tuple[int | None, int | None, KafkaTier | None]:
        """What tells why the disk lacks offsets: the log's start, the disk's, and the remote tier's part between."""
        seen = self.offsets
        return seen.log_start_offset if seen else None, self.observed_start, seen.tier if seen else None

    @property
    def rotated(self) -> Intervals:
        """The offsets of all segments but the active one."""
        spans = ((segment.base_offset, segment.next_offset) for segment in self.segments)
        return Intervals((start, end) for start, end in spans if end is not None)


class LocalState:
    """The current :class:`LocalLog`. The loop replaces it as a whole, so any thread may read it without a lock."""

    def __init__(self) -> None:
        self._log = LocalLog()

    @property
    def log(self) -> LocalLog:
        """The log as it was last shown. Who needs several values that belong together reads this once."""
        return self._log

    def looked(self, segments: tuple[LocalSegment, ...], disk_start: int | None) -> None:
        """Take the ``segments`` of a look at the disk, which begins at ``disk_start``."""
        self._log = replace(self._log, segments=segments, disk_start=disk_start)

    def answered(self, offsets: Offsets, observed_start: int | None) -> bool:
        """Take the broker's ``offsets``; return True if the evidence of why the disk lacks offsets is another now."""
        before = self._log
        self._log = replace(before, offsets=offsets, observed_start=observed_start)
        return self._log.start_evidence != before.start_evidence

    def apply_metadata(self, replicas: tuple[int, ...], cleanup: Cleanup) -> None:
        """Set the brokers that have a replica, and the topic's clean-up."""
        if (replicas, cleanup) != (self._log.replicas, self._log.cleanup):
            self._log = replace(self._log, replicas=replicas, cleanup=cleanup)

    def list_tail(self, *, listed: bool) -> None:
        """Set whether ``offset.wm`` is to list this leadership among those that may have packed."""
        self._log = replace(self._log, lists_tail=listed)


QUESTION_BACKOFF: Final = Backoff(0.25, 10.0)
"""The pauses until a high watermark below the log end is asked for again.

Followers must fetch first, and it may be stuck, for example because they are down.
"""


@dataclass(frozen=True, slots=True)
class Observation:
    """The broker's last answer. ``tail`` is of the disk before the question, ``active`` of the one after the answer.

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
