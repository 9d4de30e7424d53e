"""The log of a led partition on this broker, and its next jobs: pure decisions from the values of one moment.

The broker states the committed end of the log, the disk the end of the log: ListOffsets has no log end offset. The disk
is read after the broker has answered. A high watermark at this log end therefore covers everything that was appended
before the question. A lower one is asked for again.

A job is a run to seal, a survey, or a check. A survey learns the state of the store, searches it for data that fills
holes, and updates ``offset.wm``. A check compares the log with the last stored batch, without a request, after
something that may have put another log there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final, Literal, NamedTuple

from tidemark.backoff import Backoff
from tidemark.intervals import Intervals
from uploader_agent.broker.admin import Cleanup, KafkaTier, Offsets
from uploader_agent.disk.log_dirs import LocalSegment, LogTail
from uploader_agent.disk.segment_files import Active
from uploader_agent.log_source import LogSource
from uploader_agent.packs.tail import Tail
from uploader_agent.stored.stored_log import StoredLog
from uploader_agent.upload import local_run
from uploader_agent.upload.local_run import SealRun


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


Survey = Literal["survey"]
SURVEY: Survey = "survey"
Check = Literal["check"]
CHECK: Check = "check"
Job = SealRun | Survey | Check


def missing(local: LocalLog, stored: StoredLog, source: LogSource) -> tuple[Intervals, Intervals]:
    """(Lost offsets, awaited ones) below the active segment that neither the store nor the disk has, nor the hold.

    Awaited ones may be fetched by ``source``: the store lacks them, and the directory begins above them.
    """
    start = stored.start
    active = local.segments[-1].base_offset if local.segments else start
    lacked = stored.present.missing(start, max(start, active)) - local.rotated
    if not lacked:
        return lacked, lacked
    lost = lacked.clip(start, max(start, source.lost_below(active, local.offsets)))
    # Before the leader has told its log's start, nothing tells what may still be fetched.
    return lost, lacked - lost if local.offsets is not None else Intervals()


def holes(lost: Intervals, stored: StoredLog) -> Intervals:
    """The ``lost`` offsets and those with damaged bytes, without those that a person has acknowledged."""
    return (lost | (stored.damaged - stored.present)) - stored.acknowledged


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How a leadership stands, by what its workers have found and done so far."""

    is_parted: bool
    """True if the log parts from the stored history: nothing is stored of it then."""
    is_unchecked: bool
    """True while it is not known whether the directory still has the log that is stored."""
    is_claimed: bool
    """True if ``offset.wm`` has this leader epoch, its lineage and this origin: nothing is sealed before that."""
    awaits_start: bool
    """True if nothing is written before the broker has said where the log begins."""
    is_in_doubt: bool
    """True if the directory lacks what is not known to be stored."""
    needs_survey: bool
    """True if ``offset.wm`` is to be written, or the store to be read, or to be searched for data of holes."""


class Plan(NamedTuple):
    """The ``jobs`` to do, in order. With ``begins_again``, the source is first to fetch what the directory lacks."""

    jobs: list[Job]
    begins_again: bool = False


def plan(
    local: LocalLog,
    stored: StoredLog,
    tail: Tail,
    lacked: tuple[Intervals, Intervals],
    standing: Standing,
    quiet_before: float | None,
) -> Plan:
    """The next jobs. ``lacked`` is the result of :func:`missing`; ``quiet_before`` is as in :func:`runs`."""
    if not local.segments:
        return Plan([])
    # The order matters: what the store has is known before the log is compared with it, and that it is the same log
    # before offsets of the one are subtracted from the other.
    if not stored.known or standing.is_parted:
        return Plan([SURVEY])
    if standing.is_unchecked:
        return Plan([CHECK])
    if local.offsets is None or standing.awaits_start:
        return Plan([])
    jobs: list[Job] = [*runs(local, stored, tail, quiet_before)]
    lost, awaited = lacked
    begins_again = bool(awaited)
    if not stored.surveyed:
        # A former index tells all while nothing is new. It costs no request, and so a restart costs none.
        unsettled = standing.is_in_doubt or begins_again or holes(lost, stored) or local.offsets.tier
        return Plan([SURVEY] if jobs or unsettled else [], begins_again)
    if not standing.is_claimed:
        return Plan([SURVEY])
    if standing.needs_survey or begins_again:
        return Plan([SURVEY, *jobs], begins_again)
    return Plan(jobs)


def runs(local: LocalLog, stored: StoredLog, tail: Tail, quiet_before: float | None) -> Iterator[SealRun]:
    """The runs to seal, in order.

    A tail is sealed if its last append was before ``quiet_before``, in seconds since 1970, or if much of it is packed;
    if ``quiet_before`` is None, only if much of it is packed. Runs after a ``.log`` without a manifest are left for
    later, since the end of that ``.log`` is not known yet.
    """
    segments, final = local.segments, stored.final
    high_watermark = local.offsets.high_watermark if local.offsets else 0
    rotated = local_run.rotated_runs(segments, final, high_watermark)
    active: list[SealRun] = []
    if quiet_before is not None and tail.end < high_watermark:
        active = [*local_run.quiet_tail(segments, final, high_watermark, quiet_before)]
    if not active and tail.seal_to is not None:
        active = [*local_run.tail_up_to(segments, final, min(tail.seal_to, high_watermark))]
    for run in (*rotated, *active):
        yield run
        if stored.has_bare_log(run.base_offset):
            return
