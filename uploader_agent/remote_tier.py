"""Fetches what only Kafka's own remote tier (KIP-405) has of the led partitions, and stores it.

The leader's ``offset.wm`` names these offsets as gaps of the reason ``remote_tier``. They are filled from below, a
segment at a time: a follower, as that of a fetching agent, copies the batches from the leader into a directory of its
own, and they are sealed from there as from any replica, with ``origin: fetch``. The broker reads them back from its
remote tier for that, so there is a cap on the bytes per second.

All progress is in the store. A directory holds one segment, and a new turn begins it again: a crash costs the fetch of
one segment. The gap closes when the leader's agent has written ``offset.wm`` with the new manifest.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from pathlib import Path
from typing import Final

import structlog

from tidemark.errors import FormatError, StoreError, TidemarkError
from tidemark.formats.keys import TopicPartition
from tidemark.intervals import Interval, Intervals
from tidemark.kafka_log import Lineage
from tidemark.raw.objects import StoredManifest
from tidemark.storage import PartitionStore
from uploader_agent.broker.admin import UNKNOWN_POLICY, Cleanup
from uploader_agent.disk.segment_files import SegmentChanged
from uploader_agent.intake.fetching import Cluster
from uploader_agent.intake.follower import PartitionFollower, StoredEnd
from uploader_agent.intake.replica import Fetcher
from uploader_agent.intake.spool import PartitionSpool
from uploader_agent.observability.metrics import Metrics
from uploader_agent.partitions.led_partition import LedPartition
from uploader_agent.repair.replica_upload import Replica, around, bring_all, overlapping
from uploader_agent.runtime import MACHINE, EventLike, Runtime, Worker
from uploader_agent.scheduling.throttle import Bandwidth
from uploader_agent.stored.incarnations import Resolve
from uploader_agent.stored.stored_log import transactions_open_at
from uploader_agent.upload.local_run import cleanup_of
from uploader_agent.upload.segment_upload import UploadRoute

logger = structlog.get_logger(__name__)

FOLDER: Final = "remote-tier"
"""The folder of the agent's ``state_dir`` that has the segment that is being fetched."""

_PATIENCE_SECONDS: Final = 60.0
"""Time without a batch after which a segment is given up until the next turn: the remote tier does not answer."""

_WHOLE: Final = 1 << 40
"""Bytes that no segment reaches: a segment of the directory ends where the fetch of it ends."""

Connect = Callable[[], AbstractContextManager[Cluster]]
"""Opens the connections to the cluster's brokers, whose client may read the topics."""


class NotFetched(TidemarkError):
    """Nothing of a gap could be fetched; the message states the partition and the reason."""


class TierFiller:
    """Fills the gaps of led partitions that only Kafka's remote tier has. One thread calls it.

    ``led`` returns the partitions that this broker leads, ``wanted`` whether their gaps are to be filled, ``revisit``
    has the loop look at a partition again. Segments have about ``segment`` bytes, and the bytes per second that
    :attr:`bandwidth` allows are fetched.
    """

    def __init__(
        self,
        *,
        connect: Connect,
        led: Callable[[], Mapping[TopicPartition, LedPartition]],
        wanted: Callable[[], bool],
        revisit: Callable[[TopicPartition], object],
        resolve: Resolve,
        broker: int,
        state_dir: Path,
        bandwidth: int,
        segment: int,
        interval: float,
        metrics: Metrics,
        stopping: EventLike,
        runtime: Runtime = MACHINE,
    ) -> None:
        self.bandwidth = Bandwidth(bandwidth, runtime.monotonic)
        self.worker = Worker("remote-tier", self._take_turn, runtime, failed=self._has_failed)
        self._connect = connect
        self._led = led
        self._wanted = wanted
        self._revisit = revisit
        self._resolve = resolve
        self._broker = broker
        self._root = state_dir / FOLDER
        self._segment = segment
        self._interval = interval
        self._metrics = metrics
        self._stopping = stopping
        self._clock = runtime.monotonic
        self._sleep = stopping.wait

    def turn(self) -> int:
        """Fetch and store a segment of each partition that has such a gap; return how many were stored.

        An error at one partition does not stop the others.

        Raises:
            BrokerError: no broker can be asked, or all refuse.
        """
        waiting = [(partition, gap) for partition in [*self._led().values()] if (gap := _gap(partition)) is not None]
        self._clear()  # what a killed agent has left
        if not waiting:
            return 0
        stored = 0
        with self._connect() as cluster:
            for partition, gap in waiting:
                if self._stopping.is_set():
                    break
                try:
                    stored += self._fill(cluster, partition, gap)
                except (StoreError, FormatError, NotFetched, SegmentChanged, OSError) as error:
                    kind = type(error).__name__
                    self._metrics.failures.labels(kind).inc()
                    logger.warning("remote_tier_not_fetched", partition=str(partition.tp), kind=kind, error=str(error))
                finally:
                    self._clear()
        return stored

    def _clear(self) -> None:
        shutil.rmtree(self._root, ignore_errors=True)

    def stop(self) -> None:
        """Begin nothing more, and end the waits for the bandwidth. For any thread."""
        self.worker.stop()
        self.bandwidth.close()

    def _take_turn(self) -> float:
        return 0.0 if self._wanted() and self.turn() else self._interval

    def _has_failed(self, error: Exception) -> float:
        logger.warning("remote_tier_not_fetched", kind=type(error).__name__, error=str(error))
        return self._interval

    def _fill(self, cluster: Cluster, led: LedPartition, gap: Interval) -> int:
        """Fetch a segment from the start of ``gap`` on, and store it; return the number of segments stored."""
        tp, topic_id = led.tp, led.led.topic_id
        assert topic_id is not None, "a topic with a remote tier has an id"
        _, partition = self._resolve(tp, topic_id)
        with closing(PartitionSpool(self._root, tp, topic_id, _WHOLE)) as spool:
            self._fetch(cluster, partition, tp, topic_id, gap, spool)
            return self._store(led, partition, topic_id, spool, gap)

    def _fetch(
        self,
        cluster: Cluster,
        partition: PartitionStore,
        tp: TopicPartition,
        topic_id: str,
        gap: Interval,
        spool: PartitionSpool,
    ) -> None:
        """Copy the batches from the start of ``gap`` on into ``spool``: about a segment, at most up to its end.

        Raises NotFetched if no batch came.
        """

        def beginning(_tp: TopicPartition, _topic_id: str, lineage: Lineage) -> StoredEnd:
            return StoredEnd(gap.start, opened=transactions_open_at(partition, gap.start, lineage) or ())

        def rests(one: PartitionFollower) -> bool:
            return one.ended or (one.spool.end or 0) >= gap.end or one.spool.size >= self._segment

        follower, fetcher = PartitionFollower(tp, topic_id, spool, beginning), Fetcher(cluster, self._clock)
        fetcher.add(follower)
        while not rests(follower) and not self._stopping.is_set():
            if self._clock() - fetcher.grown_at > _PATIENCE_SECONDS:
                break
            if asking := fetcher.asking():
                fetcher.learn(asking, lambda _: None)
            before = fetcher.fetched
            fetcher.turn(rests)
            self._metrics.remote_tier_bytes.inc(fetcher.fetched - before)
            self._await(fetcher.fetched - before)
        if spool.data_end == 0 or spool.last is None:
            reason = follower.error or f"no batch came within {_PATIENCE_SECONDS:g} s"
            raise NotFetched(f"{tp}: nothing from offset {gap.start} on came from Kafka's remote tier: {reason}")
        _end(spool, gap)

    def _await(self, size: int) -> None:
        """Wait until the bandwidth allows more, after ``size`` bytes were fetched."""
        while size > 0 and not self._stopping.is_set():
            size -= self.bandwidth.admit(size)

    def _store(
        self, led: LedPartition, partition: PartitionStore, topic_id: str, spool: PartitionSpool, gap: Interval
    ) -> int:
        """Seal what ``spool`` has of ``gap``; return the number of segments."""
        end = spool.end
        assert spool.start is not None
        assert end is not None
        # The first batch may begin below the log's start, and belongs to the segment as a whole.
        fetched = Interval(min(spool.start, gap.start), min(end, gap.end))
        route = UploadRoute(led.tp, topic_id, spool.folder, partition, self._broker, origin="fetch")
        replica = Replica(route, self._sleep)
        works = overlapping(replica.segments(), Intervals([fetched]), end)
        surroundings = replace(around(partition, gap), cleanup=_cleanup(led, spool, fetched))
        count = 0
        for work, outcome in bring_all(replica, works, surroundings, end):
            if isinstance(outcome, TidemarkError):
                raise NotFetched(f"{led.tp}: the segment {work.base_offset} cannot be stored: {outcome}")
            if isinstance(outcome, StoredManifest):
                led.uploader.filled(outcome)
                self._metrics.filled.inc()
                logger.info(
                    "remote_tier_fetched",
                    partition=str(led.tp),
                    base_offset=work.base_offset,
                    next_offset=outcome.manifest.next_offset,
                    gap=f"{gap.start}-{gap.end}",
                )
                count += 1
        self._revisit(led.tp)
        return count


def _gap(partition: LedPartition) -> Interval | None:
    """The lowest offsets of a partition that ``offset.wm`` names as only in the remote tier."""
    stored = partition.remote.log
    gaps: Iterator[Interval] = (Interval(gap.start, gap.end) for gap in stored.gaps if gap.in_remote_tier)
    return next(gaps, None) if stored.agreed is not None else None


def _cleanup(led: LedPartition, spool: PartitionSpool, fetched: Interval) -> Cleanup:
    """The clean-up that the ``fetched`` offsets were under.

    Kafka tiers no topic that is compacted, but one that was. Then this broker's cleaner may have noted it. Offsets that
    the leader leaves out at the end without such a note were removed by an unknown clean-up.
    """
    known = cleanup_of(led.folder.parent, led.tp, fetched.start, led.local.log.cleanup)
    whole = known.may_compact or spool.data_end == fetched.end
    return known if whole else known._replace(policy=UNKNOWN_POLICY)


def _end(spool: PartitionSpool, gap: Interval) -> None:
    """End what was fetched: at the end of ``gap`` if that was reached, and else below its last batch.

    Compaction may have left no batch behind that one. The next segment has it, and so is not empty.
    """
    assert spool.end is not None
    assert spool.last is not None
    last = spool.last
    if spool.end >= gap.end:
        if spool.end > gap.end:
            spool.follow(spool.lineage, gap.end)
        if not spool.data_end:
            rule = "compaction has removed all batches from there on; acknowledge that gap to go on without them"
            raise NotFetched(f"{spool.folder.name}: the log has nothing in [{gap.start}, {gap.end}): {rule}")
        spool.roll(gap.end)
    else:
        if spool.start is not None and last.base_offset > spool.start:
            spool.follow(spool.lineage, last.base_offset)
        spool.roll()
