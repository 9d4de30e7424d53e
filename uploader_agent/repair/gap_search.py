"""The gaps of a partition, and the leader's search for data of its holes.

Gaps are offsets that neither the store nor the disk has, or that have damaged bytes. The data may be stored under other
boundaries, or without a manifest. So the search runs before a hole becomes a gap, and repeatedly while it is one. Each
search also reads the acknowledgements of people (``_acks/``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

import structlog

from tidemark.formats.raw.gaps import REMOTE_TIER, Gap, GapReason
from tidemark.intervals import Interval, Intervals
from tidemark.kafka_log import Lineage
from tidemark.raw import tombstones
from tidemark.storage import ClusterStore, ListedObject
from uploader_agent.broker.admin import Cleanup, KafkaTier, Offsets
from uploader_agent.runtime import Runtime
from uploader_agent.stored import manifests, stored_log
from uploader_agent.stored.lineage import KnownLineages, OffLineage
from uploader_agent.stored.remote_state import RemoteState
from uploader_agent.upload.manifest_rebuild import NotRebuilt, rebuild
from uploader_agent.upload.route import UploadRoute

logger = structlog.get_logger(__name__)

Judged = tuple[Interval, str]

_NOTHING: Final = Intervals()


@dataclass(frozen=True, slots=True)
class SearchInput:
    """The input of a search. ``holes`` returns the current holes; segments from ``local_start`` on are on the disk."""

    route: UploadRoute
    holes: Callable[[], Intervals]
    local_start: int
    lineage: Lineage
    offsets: Offsets
    cleanup: Cleanup


class Search:
    """The searches for one partition; the same holes are searched for at most every ``interval`` seconds."""

    def __init__(self, cluster: ClusterStore, interval: float, runtime: Runtime) -> None:
        self.acknowledged = _NOTHING
        self._cluster = cluster
        self._interval = interval
        self._clock = runtime.monotonic
        self._searched = _NOTHING
        self._searched_at = 0.0
        self._refused: frozenset[str] = frozenset()  # ETags of stored logs that can get no manifest

    def is_due(self, holes: Intervals) -> bool:
        """True if there is a new hole, or the interval of an old one has passed."""
        if not holes:
            return False
        return bool(holes - self._searched) or self._clock() - self._searched_at >= self._interval

    def run(self, wanted: SearchInput, remote: RemoteState) -> None:
        """Add the segments found to ``remote``. Raises StoreError, and FormatError for objects that do not parse."""
        partition, holes = wanted.route.partition, wanted.holes()
        listed = stored_log.list_reaching(partition, holes)
        known = remote.log
        for stored in stored_log.read_news(partition, listed, known.read, holes, known.gaps):
            remote.add(stored, wanted.lineage)
        with_manifest = {entry.name for entry in listed.manifests}
        for log in listed.logs:
            bare = log.name not in with_manifest and self._is_wanted(log, wanted)
            if bare and log.name.base not in tombstones.removed(partition):
                self._rebuild(log, wanted, remote)
        left = wanted.holes()
        if left:
            self.acknowledged = self._cluster.acknowledged(partition.keys.place, partition.keys.partition)
        self._searched, self._searched_at = left, self._clock()

    def _is_wanted(self, log: ListedObject, wanted: SearchInput) -> bool:
        """True if only the stored bytes are left, and they may cover a hole."""
        if log.name.base >= wanted.local_start or log.info.etag in self._refused:
            return False
        return any(log.name.base < hole.end for hole in wanted.holes())

    def _rebuild(self, log: ListedObject, wanted: SearchInput, remote: RemoteState) -> None:
        route, known, (name, _, info) = wanted.route, remote.log, log
        lineages, opened = KnownLineages.of(known.watermark, wanted.lineage), known.open_before(name.base)
        try:
            manifest = rebuild(route, name, info, lineages, opened or (), wanted.offsets, wanted.cleanup)
        except (NotRebuilt, OffLineage) as error:
            self._refused |= {info.etag}
            logger.warning("stored_segment_not_rebuilt", partition=str(route.tp), error=str(error))
            return
        if not Intervals([(name.base, manifest.next_offset)]) & wanted.holes():
            self._refused |= {info.etag}  # its offsets are sealed under another name, with batches from packs
            return
        written = manifests.write(route.partition, manifest)
        logger.warning("manifest_rebuilt", partition=str(route.tp), key=info.key, next_offset=manifest.next_offset)
        remote.add(written, wanted.lineage)


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

    A gap in ``known`` keeps its time. Its reason was decided once, from evidence. Later evidence replaces only the
    reason ``unknown``, except that Kafka's own remote tier (KIP-405) is a place and no cause: any gap whose offsets
    turn out to be there says so, and once the log's start has passed them they are gone like any others.
    """
    gaps: list[Gap] = []
    for gap in known:
        part = (missing | damaged) & Intervals([(gap.start, gap.end)])
        moved = (part - damaged) & (evidence.in_tier | (evidence.deleted if gap.in_remote_tier else Intervals()))
        if gap.reason == "unknown":
            judged = [*_corrupt_parts(part & damaged), *evidence.judge(part - damaged)]
        else:
            judged = [*evidence.judge(moved), *((piece, gap.reason) for piece in part - moved)]
        gaps += [_gap(piece, gap.detected_at) for piece in judged]
        missing, damaged = missing - part, damaged - part
    gaps += [_gap(piece, now) for piece in (*_corrupt_parts(damaged), *evidence.judge(missing - damaged))]
    return _joined(sorted(gaps, key=lambda gap: gap.start))


def _corrupt_parts(offsets: Intervals) -> list[Judged]:
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
