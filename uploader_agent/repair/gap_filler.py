"""Fills other leaders' gaps from the replicas on this broker's disks.

Every agent lists the gap indexes of the others, and reads the changed ones. A segment that it uploads closes the gap
once the leader's agent has seen it. Several agents may fill a gap at a time: conditional writes make that harmless, and
a random delay makes it rare.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from datetime import timedelta
from pathlib import Path

import structlog

from tidemark.errors import FormatError, StoreError, TidemarkError
from tidemark.formats.keys import TopicPartition
from tidemark.formats.raw.watermark_index import IndexEntry, parse_index
from tidemark.formats.table.object_cache import ObjectCache, ReadError
from tidemark.intervals import Interval, Intervals
from tidemark.raw.objects import StoredManifest
from uploader_agent.disk.log_dirs import find_partitions, topic_id_of
from uploader_agent.disk.segment_files import SegmentChanged
from uploader_agent.hold import Hold
from uploader_agent.observability.metrics import Metrics
from uploader_agent.repair.replica_upload import Replica, Surroundings, around, bring_all, overlapping
from uploader_agent.runtime import MACHINE, Runtime
from uploader_agent.settings import FillSettings
from uploader_agent.stored import watermark
from uploader_agent.stored.incarnations import Incarnations
from uploader_agent.upload.route import UploadRoute
from uploader_agent.worker import Worker

logger = structlog.get_logger(__name__)

_LONGEST_DELAY = 10.0
"""Most seconds of the random delay: enough for another agent to upload 1 GiB. The leader looks every 30 s."""

HandledSegment = tuple[TopicPartition, str | None, int, int]
"""(partition, topic id, base offset, end) of a segment that is stored already, or must not be stored."""


class GapFiller:
    """Fills gaps of partitions that other brokers lead, from the replicas of this broker.

    ``sleep`` waits some seconds, or fewer when the agent stops. ``accepts_topic`` returns True if a topic is uploaded.
    ``settings`` and ``led`` return the current settings, and the partitions that this broker leads now.
    """

    def __init__(
        self,
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
