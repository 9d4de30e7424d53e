"""Other leaders' gaps, filled from the replicas that this broker has on its disks.

Every agent lists what the others say of their gaps, and reads what has changed since. What it brings for a gap closes
it once the leader's agent has seen it. Several agents may do so at a time: conditional writes make that harmless, and
a random delay makes it rare.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

import structlog

from tidemark.errors import FormatError, StoreError, TidemarkError
from tidemark.formats.keys import TopicPartition
from tidemark.formats.watermark_index import IndexEntry, WatermarkIndex
from tidemark.intervals import Interval, Intervals
from uploader_agent.disk.log_dirs import find_partitions, topic_id_of
from uploader_agent.disk.segment_files import SegmentChanged
from uploader_agent.hold import Hold
from uploader_agent.observability.metrics import Metrics
from uploader_agent.remote import gaps, watermark
from uploader_agent.remote.destinations import Destinations
from uploader_agent.remote.manifests import StoredManifest
from uploader_agent.repair.replica_upload import Replica, Surroundings, around, bring_all, overlapping
from uploader_agent.runtime import EventLike
from uploader_agent.settings import FillSettings
from uploader_agent.upload.segment_upload import UploadRoute

logger = structlog.get_logger(__name__)

_LONGEST_DELAY = 10.0
"""Seconds. Enough for another agent to bring a segment of 1 GiB; the leader looks every 30 s."""

Settled = tuple[TopicPartition, str | None, int, int]
"""(partition, topic id, base offset, end) of a segment that is stored, or must not be."""


@dataclass(slots=True)
class _Known:
    """What a broker said last of its gaps: the object's ETag, and its entries."""

    etag: str
    entries: tuple[IndexEntry, ...]


class GapFiller:
    """One agent's. ``pause`` waits some seconds, shorter when the agent stops; ``takes`` says which topics go."""

    def __init__(
        self,
        places: Destinations,
        broker: int,
        log_dirs: Collection[Path],
        takes: Callable[[str], bool],
        metrics: Metrics,
        pause: Callable[[float], object],
        hold: Hold,
    ) -> None:
        self._places = places
        self._broker = broker
        self._log_dirs = log_dirs
        self._takes = takes
        self._metrics = metrics
        self._pause = pause
        self._hold = hold
        self._indexes: dict[str, _Known] = {}
        self._settled: set[Settled] = set()

    def turn(self, led: Collection[TopicPartition], *, delay: float = 0.0) -> int:
        """Read what has changed, and bring what this broker has of it; how many segments went.

        Gaps of ``led`` partitions are their leader's own business. Before each gap up to ``delay`` seconds pass, so
        that one of several replicas is first. Whatever one gap meets, the others go on.
        """
        self._release_covered(led)
        entries = [entry for entry in self._open_gaps() if self._may_fill(entry, led)]
        self._settled = {one for one in self._settled if one[0] in {_at(entry) for entry in entries}}
        filled = 0
        folders = find_partitions(self._log_dirs).partitions if entries else {}
        for entry in entries:
            folder = folders.get(_at(entry))
            if folder is None and not self._hold.segments(_at(entry), entry.topic_id):
                continue
            try:
                filled += self._fill(entry, folder, delay=delay)
            except SegmentChanged as error:
                logger.debug("replica_changed", partition=str(_at(entry)), error=str(error))
            except (StoreError, FormatError, OSError) as error:
                kind = type(error).__name__
                self._metrics.failures.labels(kind).inc()
                logger.warning("gap_not_filled", partition=str(_at(entry)), kind=kind, error=str(error))
        return filled

    def run(
        self,
        stopping: EventLike,
        settings: Callable[[], FillSettings],
        led: Callable[[], Collection[TopicPartition]],
    ) -> None:
        """A turn every ``interval``, give or take a quarter, until ``stopping``."""
        while True:
            interval = settings().interval.total_seconds()
            if stopping.wait(interval * random.uniform(0.75, 1.25)):  # noqa: S311 - spreads load
                return
            try:
                if settings().enabled:
                    self.turn(led(), delay=min(_LONGEST_DELAY, interval / 4))
            except Exception as error:  # filling is a help: it must outlive whatever one turn meets
                logger.warning("filling_failed", kind=type(error).__name__, error=str(error), exc_info=error)

    def _release_covered(self, led: Collection[TopicPartition]) -> None:
        """What other leaders' watermarks cover by now is held no longer."""
        for at, topic_id in self._hold.owners():
            if at in led:
                continue
            try:
                _, store, keys = self._places.settle(at, topic_id)
                found = watermark.read(store, keys)
            except (StoreError, FormatError) as error:
                logger.warning("watermark_not_read", partition=str(at), error=str(error))
                continue
            if found is not None and found.watermark.topic_id == topic_id:
                self._hold.release(at, topic_id, found.watermark.next_offset)

    def _open_gaps(self) -> list[IndexEntry]:
        """What all brokers but ours say of their partitions with gaps."""
        control, store = self._places.control, self._places.control_store
        try:
            listed = {info.key: info.etag for info in store.list(control.gaps)}
        except StoreError as error:
            logger.warning("gaps_not_listed", error=str(error))
            return []
        listed.pop(control.broker_gaps(self._broker), None)
        self._indexes = {key: known for key, known in self._indexes.items() if key in listed}
        for key, etag in listed.items():
            known = self._indexes.get(key)
            if known is not None and known.etag == etag:
                continue
            try:
                index, read = WatermarkIndex.load_version(store, key)
            except (StoreError, FormatError) as error:
                logger.warning("gaps_not_read", key=key, error=str(error))
                continue
            self._indexes[key] = _Known(read, index.entries)
        return [entry for known in self._indexes.values() for entry in known.entries]

    def _may_fill(self, entry: IndexEntry, led: Collection[TopicPartition]) -> bool:
        return self._takes(entry.topic) and _at(entry) not in led

    def _fill(self, entry: IndexEntry, folder: Path | None, *, delay: float) -> int:
        at, filled = _at(entry), 0
        if folder is None:
            folder = Path(str(at))  # there is none: all that this broker has is held
        elif topic_id_of(folder) != entry.topic_id:
            return 0
        _, store, keys = self._places.settle(at, entry.topic_id)
        replica = Replica(UploadRoute(at, entry.topic_id, folder, store, keys, self._broker, self._hold), self._pause)
        for wanted in gaps.offsets(entry.gaps):
            works = [
                work
                for work in overlapping(replica.segments(), wanted, entry.high_watermark)
                if (at, entry.topic_id, work.base_offset, work.end) not in self._settled
            ]
            if not works:
                continue
            self._pause(random.uniform(0, delay))  # noqa: S311 - spreads load
            surroundings = around(store, keys, wanted)
            if not _is_open(surroundings, entry, wanted):
                continue
            for work, outcome in bring_all(replica, works, surroundings, entry.high_watermark):
                if not isinstance(outcome, SegmentChanged):
                    self._settled.add((at, entry.topic_id, work.base_offset, work.end))
                filled += self._tell(at, work.base_offset, wanted, outcome)
        return filled

    def _tell(
        self, at: TopicPartition, base_offset: int, wanted: Interval, outcome: StoredManifest | TidemarkError | None
    ) -> int:
        details = {"partition": str(at), "base_offset": base_offset, "gap": f"{wanted.start}-{wanted.end}"}
        if isinstance(outcome, StoredManifest):
            self._metrics.filled.inc()
            logger.info("gap_filled", **details, next_offset=outcome.manifest.next_offset)
            return 1
        if outcome is not None:
            logger.warning("segment_not_filled_in", **details, error=str(outcome))
        return 0


def _is_open(surroundings: Surroundings, entry: IndexEntry, wanted: Interval) -> bool:
    """Whether the gap still stands in ``offset.wm``: an index may be that of a broker that died long ago."""
    if surroundings.stored is None:
        return True
    found = surroundings.stored.watermark
    return found.topic_id == entry.topic_id and bool(gaps.offsets(found.gaps) & Intervals([wanted]))


def _at(entry: IndexEntry) -> TopicPartition:
    return TopicPartition(entry.topic, entry.partition)
