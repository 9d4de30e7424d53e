"""Gaps of partitions: the reasons for which offsets are missing, and the two ways in which they are found again.

Gaps are offsets that neither the store nor the disk has, or that have damaged bytes. The data may be stored under other
boundaries, or without a manifest. So the leader's agent searches before a hole becomes a gap, and repeatedly while it
is one. Each search also reads the acknowledgements of people (``_acks/``).

Other agents fill gaps from the replicas on their broker's disks. Every agent lists the gap indexes of the others, and
reads the changed ones. A segment that it uploads closes the gap once the leader's agent has seen it. Several agents may
fill a gap at a time: conditional writes make that harmless, and a random delay makes it rare.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import structlog

from tidemark.errors import FormatError, StoreError, TidemarkError
from tidemark.formats.keys import TopicPartition
from tidemark.formats.raw.gaps import REMOTE_TIER, Gap, GapReason
from tidemark.formats.raw.watermark_index import IndexEntry, parse_index
from tidemark.formats.table.object_cache import ObjectCache, ReadError
from tidemark.intervals import Interval, Intervals
from tidemark.kafka_log import Lineage
from tidemark.raw import tombstones
from tidemark.raw.objects import StoredManifest
from tidemark.storage import ClusterStore, ListedObject
from uploader_agent.broker.admin import Cleanup, KafkaTier, Offsets
from uploader_agent.disk.log_dirs import find_partitions, topic_id_of
from uploader_agent.disk.segment_files import SegmentChanged
from uploader_agent.hold import Hold
from uploader_agent.observability.metrics import Metrics
from uploader_agent.repair.replica_upload import Replica, Surroundings, around, bring_all, overlapping
from uploader_agent.runtime import MACHINE, Runtime, Worker
from uploader_agent.settings import FillSettings
from uploader_agent.stored import stored_log, watermark
from uploader_agent.stored.incarnations import Incarnations
from uploader_agent.stored.lineage import KnownLineages, OffLineage
from uploader_agent.stored.objects import write_manifest
from uploader_agent.stored.stored_log import RemoteState
from uploader_agent.upload.segment_upload import NotRebuilt, UploadRoute, rebuild

logger = structlog.get_logger(__name__)

_LONGEST_DELAY = 10.0
"""Most seconds of the random delay: enough for another agent to upload 1 GiB. The leader looks every 30 s."""

HandledSegment = tuple[TopicPartition, str | None, int, int]
"""(partition, topic id, base offset, end) of a segment that is stored already, or must not be stored."""

Judged = tuple[Interval, str]
"""(offsets, the reason for which they are missing)."""

_NOTHING: Final = Intervals()


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


@dataclass(frozen=True, slots=True)
class SearchInput:
    """The input of a search. ``holes`` returns the current holes; segments from ``local_start`` on are on the disk."""

    route: UploadRoute
    holes: Callable[[], Intervals]
    local_start: int
    lineage: Lineage
    offsets: Offsets
    cleanup: Cleanup


class GapSearch:
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
        manifests, logs = stored_log.list_reaching(partition, holes)
        known = remote.log
        for stored in stored_log.read_news(partition, manifests, known.read, holes, known.gaps):
            remote.add(stored, wanted.lineage)
        with_manifest = {entry.name for entry in manifests}
        for log in logs:
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
        written = write_manifest(route.partition, manifest)
        logger.warning("manifest_rebuilt", partition=str(route.tp), key=info.key, next_offset=manifest.next_offset)
        remote.add(written, wanted.lineage)


class GapFiller:
    """Fills gaps of partitions that other brokers lead, from the replicas of this broker.

    ``sleep`` waits some seconds, or fewer when the agent stops. ``accepts_topic`` returns True if a topic is uploaded.
    ``settings`` and ``led`` return the current settings, and the partitions that this broker leads now.
    """

    def __init__(
        self,
        *,
        incarnations: Incarnations,
        broker: int,
        log_dirs: Collection[Path],
        accepts_topic: Callable[[str], bool],
        metrics: Metrics,
        sleep: Callable[[float], object],
        hold: Hold,
        settings: Callable[[], FillSettings],
        led: Callable[[], Collection[TopicPartition]],
        interval: timedelta,
        runtime: Runtime = MACHINE,
    ) -> None:
        self._resolve = incarnations.resolve
        self._broker = broker
        self._log_dirs = log_dirs
        self._accepts_topic = accepts_topic
        self._metrics = metrics
        self._sleep = sleep
        self._hold = hold
        self._settings = settings
        self._led = led
        self._interval = interval.total_seconds()
        self.worker = Worker("fill", self._take_turn, runtime, failed=self._has_failed)
        cluster = incarnations.storage.cluster_store()
        own = cluster.keys.broker_gaps(broker)
        self._indexes = ObjectCache(cluster.store, cluster.keys.gaps, parse_index, skip=(own,), on_failure=_log_failure)
        self._handled: set[HandledSegment] = set()

    def turn(self, led: Collection[TopicPartition], *, delay: float = 0.0) -> int:
        """Read the changed indexes, fill the gaps that this broker has data for, and return the number of segments.

        The ``led`` partitions are left out: their leader fills their gaps itself. Before each gap the filler waits up
        to ``delay`` seconds, so that one of several replicas is first. An error at one gap does not stop the others.
        """
        self._release_covered(led)
        entries = [entry for entry in self._open_gaps() if self._may_fill(entry, led)]
        self._handled = {segment for segment in self._handled if segment[0] in {_tp(entry) for entry in entries}}
        filled = 0
        folders = find_partitions(self._log_dirs).partitions if entries else {}
        for entry in entries:
            folder = folders.get(_tp(entry))
            if folder is None and not self._hold.segments(_tp(entry), entry.topic_id):
                continue
            try:
                filled += self._fill(entry, folder, delay=delay)
            except SegmentChanged as error:
                logger.debug("replica_changed", partition=str(_tp(entry)), error=str(error))
            except (StoreError, FormatError, OSError) as error:
                kind = type(error).__name__
                self._metrics.failures.labels(kind).inc()
                logger.warning("gap_not_filled", partition=str(_tp(entry)), kind=kind, error=str(error))
        return filled

    def start(self) -> None:
        """Take a turn every ``interval``, give or take a quarter, in a thread."""
        self.worker.start(after=self._pause())

    def _take_turn(self) -> float:
        if self._settings().enabled:
            self.turn(self._led(), delay=min(_LONGEST_DELAY, self._interval / 4))
        return self._pause()

    def _has_failed(self, error: Exception) -> float:
        """Report an error of a turn, which does not end the thread: gap filling is optional."""
        logger.warning("filling_failed", kind=type(error).__name__, error=str(error), exc_info=error)
        return self._pause()

    def _pause(self) -> float:
        return self._interval * random.uniform(0.75, 1.25)  # noqa: S311 - spreads load

    def _release_covered(self, led: Collection[TopicPartition]) -> None:
        """Release the held segments that other leaders' watermarks now cover."""
        for tp, topic_id in self._hold.owners():
            if tp in led:
                continue
            try:
                _, partition = self._resolve(tp, topic_id)
                stored = watermark.read(partition)
            except (StoreError, FormatError) as error:
                logger.warning("watermark_not_read", partition=str(tp), error=str(error))
                continue
            if stored is not None and stored.watermark.topic_id == topic_id:
                self._hold.release(tp, topic_id, stored.watermark.next_offset)

    def _open_gaps(self) -> list[IndexEntry]:
        """The partitions with gaps, from the indexes of all other brokers."""
        try:
            self._indexes.look()
        except (StoreError, FormatError) as error:
            logger.warning("gaps_not_listed", error=str(error))
            return []
        return [entry for index in self._indexes.kept.values() for entry in index.entries]

    def _may_fill(self, entry: IndexEntry, led: Collection[TopicPartition]) -> bool:
        return self._accepts_topic(entry.topic) and _tp(entry) not in led

    def _fill(self, entry: IndexEntry, folder: Path | None, *, delay: float) -> int:
        tp, filled = _tp(entry), 0
        if folder is None:
            folder = Path(str(tp))  # there is no directory: this broker has held segments only
        elif topic_id_of(folder) != entry.topic_id:
            return 0
        _, partition = self._resolve(tp, entry.topic_id)
        replica = Replica(UploadRoute(tp, entry.topic_id, folder, partition, self._broker, self._hold), self._sleep)
        for wanted in Intervals.of(entry.gaps):
            works = [
                work
                for work in overlapping(replica.segments(), Intervals([wanted]), entry.high_watermark)
                if (tp, entry.topic_id, work.base_offset, work.end) not in self._handled
            ]
            if not works:
                continue
            self._sleep(random.uniform(0, delay))  # noqa: S311 - spreads load
            surroundings = around(partition, wanted)
            if not _is_open(surroundings, entry, wanted):
                continue
            for work, outcome in bring_all(replica, works, surroundings, entry.high_watermark):
                if not isinstance(outcome, SegmentChanged):
                    self._handled.add((tp, entry.topic_id, work.base_offset, work.end))
                filled += self._report(tp, work.base_offset, wanted, outcome)
        return filled

    def _report(
        self, tp: TopicPartition, base_offset: int, wanted: Interval, outcome: StoredManifest | TidemarkError | None
    ) -> int:
        details = {"partition": str(tp), "base_offset": base_offset, "gap": f"{wanted.start}-{wanted.end}"}
        if isinstance(outcome, StoredManifest):
            self._metrics.filled.inc()
            logger.info("gap_filled", **details, next_offset=outcome.manifest.next_offset)
            return 1
        if outcome is not None:
            logger.warning("segment_not_filled_in", **details, error=str(outcome))
        return 0


def _is_open(surroundings: Surroundings, entry: IndexEntry, wanted: Interval) -> bool:
    """True if ``offset.wm`` still has the gap: the index may be from a broker that died long ago."""
    if surroundings.stored is None:
        return True
    current = surroundings.stored.watermark
    return current.topic_id == entry.topic_id and bool(Intervals.of(current.gaps) & Intervals([wanted]))


def _tp(entry: IndexEntry) -> TopicPartition:
    return TopicPartition(entry.topic, entry.partition)


def _log_failure(key: str, error: ReadError) -> None:
    logger.warning("gaps_not_read", key=key, error=str(error))
