"""The next jobs of a led partition: pure decisions from the values that disk, store and packs have at one moment.

A job is a run to seal, a survey, or a check. A survey learns the state of the store, searches it for data that fills
holes, and updates ``offset.wm``. A check compares the log with the last stored batch, without a request, after
something that may have put another log there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from tidemark.intervals import Intervals
from uploader_agent.log_source import LogSource
from uploader_agent.packs.tail import Tail
from uploader_agent.partitions.local_log import LocalLog
from uploader_agent.stored.stored_log import StoredLog
from uploader_agent.upload import local_run
from uploader_agent.upload.local_run import SealRun

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
