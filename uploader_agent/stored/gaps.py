"""Gaps: offsets that neither the store nor the disk has, or that have damaged bytes. Pure.

A gap's reason is decided once, from evidence. Later evidence replaces only the reason ``unknown``, except that Kafka's
own remote tier (KIP-405) is a place and no cause: any gap whose offsets turn out to be there says so, and once the
log's start has passed them they are gone like any others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from tidemark.formats.raw.gaps import REMOTE_TIER, Gap, GapReason
from tidemark.intervals import Interval, Intervals
from uploader_agent.broker.admin import KafkaTier

Judged = tuple[Interval, str]


@dataclass(frozen=True, slots=True)
class Evidence:
    """The evidence of the reasons for which offsets are missing.

    ``evicted`` offsets were held until the bounds of ``hold`` were reached. ``cut`` offsets were uploaded, then cut off
    by a new leader's lineage. ``log_start`` is the broker's; None if the broker could not be asked. ``disk_start`` is
    the base of the first segment that was on the disk BEFORE the broker answered. Between the two only a lost disk
    explains a hole, or the remote ``tier``; above ``disk_start`` the broker may have moved its starts since.

    Kafka removes a segment from the disk only once it is in the remote tier, which is complete from the log's start up
    to its end (``UnifiedLog.deleteOldSegments``). So offsets between that end and the disk's start were lost with a
    disk, unless the broker does not know the end yet.
    """

    evicted: Intervals = field(default_factory=Intervals)
    cut: Intervals = field(default_factory=Intervals)
    log_start: int | None = None
    disk_start: int | None = None
    tier: KafkaTier | None = None

    @property
    def deleted(self) -> Intervals:
        """The offsets below the log's start."""
        return Intervals([(0, self.log_start or 0)])

    @property
    def in_tier(self) -> Intervals:
        """The offsets that only the remote tier has."""
        if self.log_start is None or self.tier is None:
            return Intervals()
        start, end = self.tier
        return Intervals([(self.log_start, max(self.log_start, start if end is None else min(start, end)))])

    def below(self, start: int) -> Intervals | None:
        """The offsets below ``start`` that only the remote tier has; None if the broker could not be asked."""
        return None if self.log_start is None else self.in_tier.clip(0, start)

    def judge(self, hole: Intervals) -> Iterator[Judged]:
        """``hole`` in parts with one reason each, the strongest evidence first."""
        log_start = self.log_start or 0
        disk_start = log_start if self.disk_start is None or self.log_start is None else self.disk_start
        undecided = self.tier.local_start if self.tier is not None and self.tier.end == 0 else 0
        lost_from = max(log_start, undecided)
        proofs: list[tuple[GapReason, Intervals]] = [
            (REMOTE_TIER, self.in_tier),
            ("staging_full", self.evicted),
            ("unclean_election", self.cut),
            ("deleted_before_upload", self.deleted),
            ("failed_disk", Intervals([(lost_from, max(lost_from, disk_start))])),
        ]
        for reason, offsets in proofs:
            yield from ((part, reason) for part in hole & offsets)
            hole -= offsets
        yield from ((part, "unknown") for part in hole)


def find_gaps(
    missing: Intervals, damaged: Intervals, evidence: Evidence, known: Iterable[Gap], now: datetime
) -> tuple[Gap, ...]:
    """The gaps by offset: ``missing`` offsets, and ``damaged`` offsets, which were found unreadable.

    A gap in ``known`` keeps its time, and its reason as the module says.
    """
    gaps: list[Gap] = []
    for gap in known:
        part = (missing | damaged) & Intervals([(gap.start, gap.end)])
        moved = (part - damaged) & (evidence.in_tier | (evidence.deleted if gap.in_remote_tier else Intervals()))
        if gap.reason == "unknown":
            judged = [*_corrupt(part & damaged), *evidence.judge(part - damaged)]
        else:
            judged = [*evidence.judge(moved), *((piece, gap.reason) for piece in part - moved)]
        gaps += [_gap(piece, gap.detected_at) for piece in judged]
        missing, damaged = missing - part, damaged - part
    gaps += [_gap(piece, now) for piece in (*_corrupt(damaged), *evidence.judge(missing - damaged))]
    return _joined(sorted(gaps, key=lambda gap: gap.start))


def _corrupt(offsets: Intervals) -> list[Judged]:
    return [(part, "corrupt") for part in offsets]


def _gap(judged: Judged, detected_at: datetime) -> Gap:
    (start, end), reason = judged
    return Gap.model_validate({"from": start, "to": end, "reason": reason, "detected_at": detected_at})


def _joined(gaps: Sequence[Gap]) -> tuple[Gap, ...]:
    """``gaps`` with adjacent gaps of one reason joined, since retention deletes segment after segment."""
    joined: list[Gap] = []
    for gap in gaps:
        before = joined[-1] if joined else None
        if before and (before.end, before.reason) == (gap.start, gap.reason):
            earlier = min(before.detected_at, gap.detected_at)
            joined[-1] = before.model_copy(update={"end": gap.end, "detected_at": earlier})
        else:
            joined.append(gap)
    return tuple(joined)
