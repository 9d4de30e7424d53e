"""The log of a led partition on this broker, as disk and broker last showed it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tidemark.intervals import Intervals
from uploader_agent.broker.admin import Cleanup, KafkaTier, Offsets
from uploader_agent.disk.log_dirs import LocalSegment


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
