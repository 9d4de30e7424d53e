"""The components of an agent, put together. Nothing is started here, and neither broker nor store is asked.

The loop (:mod:`uploader_agent.agent`) and the commands that run once share them.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from functools import partial

import structlog

from tidemark.errors import ConfigError
from tidemark.formats.keys import Endpoint, TopicPartition
from tidemark.storage import OpenStore, Storage
from uploader_agent.broker.admin import Metadata
from uploader_agent.broker.authority import Authority
from uploader_agent.broker.properties import Broker
from uploader_agent.disk.log_dirs import LogDirs
from uploader_agent.disk.watcher import Watcher
from uploader_agent.hold import Hold
from uploader_agent.log_source import BrokerDisk, LogSource
from uploader_agent.observability.health import Health, Notifier
from uploader_agent.observability.log_config import ErrorDeduplicator
from uploader_agent.observability.metrics import Metrics
from uploader_agent.packing.head_maintenance import Maintenance
from uploader_agent.packing.packer import Packer
from uploader_agent.packing.thread import Buckets, BucketThread, Ticks
from uploader_agent.packs.broker_head import BrokerHead
from uploader_agent.packs.recovery import Abandoned, recover_entries
from uploader_agent.partitions.leadership import DiskFaults, Leadership
from uploader_agent.partitions.led_partition import LedPartition
from uploader_agent.partitions.partition_uploader import Context
from uploader_agent.partitions.poller import Poller
from uploader_agent.partitions.waiting import Wait, Waits
from uploader_agent.remote_tier import Connect, TierFiller
from uploader_agent.repair.gaps import GapFiller
from uploader_agent.runtime import MACHINE, Runtime, Worker
from uploader_agent.scheduling.retry import Failures
from uploader_agent.scheduling.throttle import StoreTraffic
from uploader_agent.scheduling.workers import PartitionJob, Timers, UploadQueue, UploadWorkers
from uploader_agent.settings import AgentSettings, changed_fields, is_fixed
from uploader_agent.stored.foreign_epochs import ForeignEpochs
from uploader_agent.stored.incarnations import Incarnations
from uploader_agent.stored.other_origin import OtherOrigin
from uploader_agent.tuning import STANDARD, AgentTuning
from uploader_agent.watermark_index import IndexPublisher, IndexThread

logger = structlog.get_logger(__name__)

LARGEST_USUAL = 1 << 30
"""Bytes of a segment by Kafka's own default; few topics have larger ones."""


class Components:
    """The components of one agent. ``timers`` holds the time at which each partition is due for a look.

    ``settings`` are the current ones.
    """

    def __init__(
        self,
        settings: AgentSettings,
        broker: Broker,
        metadata: Metadata,
        open_store: OpenStore,
        watcher: Watcher,
        *,
        authority: Authority | None = None,
        notifier: Notifier | None = None,
        traffic: StoreTraffic | None = None,
        source: LogSource | None = None,
        log_dirs: LogDirs | None = None,
        tier: Connect | None = None,
        read_only: bool = False,
        runtime: Runtime = MACHINE,
        tuning: AgentTuning = STANDARD,
    ) -> None:
        """Put the components together. With ``read_only`` nothing writes to the store: only a survey is possible.

        ``tier`` connects to the brokers that read what only Kafka's own remote tier has; without it nothing is fetched.
        Without an ``authority`` no leader epoch in the store ever counts as foreign. The default ``source`` is the
        broker's own disk, and the default ``log_dirs`` those of ``broker``, for ever.
        """
        self.settings = settings
        self.tuning = tuning
        self.broker = broker
        self.watcher = watcher
        self.log_dirs = LogDirs(broker.log_dirs) if log_dirs is None else log_dirs
        self.source = source or BrokerDisk()
        self.notifier = notifier or Notifier({})
        self.runtime = runtime
        self.traffic = traffic or StoreTraffic(Metrics(), settings.upload.bandwidth)
        self.metrics = self.traffic.metrics
        self.repeats = ErrorDeduplicator(logger, tuning.log_repeat, runtime.monotonic)
        self.stopping = runtime.event()
        self.timers: Timers[TopicPartition] = Timers()
        self._storage = storage = Storage(settings.cluster or broker.cluster_id, settings.raw, opener=open_store)
        incarnations = Incarnations(storage, record=not read_only)
        cluster = storage.cluster_store()
        # Seals of partitions wait for heads, and packers of heads for partitions. So the buckets come first, and empty:
        # their packers are made once partitions are known, see :meth:`open_buckets`.
        self.packs = Buckets(runtime)
        holding = settings.hold.model_copy(update={"enabled": False}) if read_only else settings.hold
        self.hold = Hold(holding, self.log_dirs, settings.state_dir, self.metrics, runtime=runtime, tuning=tuning)
        self._context = context = Context(
            broker=broker.node_id,
            incarnations=incarnations,
            cluster=cluster,
            hold=self.hold,
            settled_head=self.packs.settled_head,
            foreign_epochs=ForeignEpochs(broker.node_id, authority or Authority(), self.metrics, runtime.monotonic),
            other_origin=OtherOrigin(cluster, self.source.origin, runtime),
            source=self.source,
            metrics=self.metrics,
            search_interval=tuning.scan_interval.total_seconds(),
            begins_in_tier=self._fetches_remote_tier,
            runtime=runtime,
        )
        self.leadership = Leadership(
            self.log_dirs, self.accepts_topic, self.freshness_of, context, self.metrics, self.repeats
        )
        self.disk_faults = DiskFaults(self.leadership, self.metrics, self.repeats, runtime)
        self.poller = Poller(metadata, watcher.wake, runtime)
        self.queue: UploadQueue[TopicPartition, PartitionJob] = UploadQueue(
            settings.upload.concurrency, runtime, target=PartitionJob.target
        )
        self._pack_failures = Failures(tuning.retry_backoff, self.metrics, self.repeats)
        indexes = IndexPublisher(
            storage,
            broker.node_id,
            settings.raw.digest_of(),
            tuning,
            self.packs.damaged,
            lambda: self.disk_faults.current,
            self._freshness,
            runtime,
        )
        self.index = IndexThread(indexes, self.metrics, self.repeats, watcher.wake, runtime)
        self.health = Health(
            _turn_limit(tuning),
            _stuck_after(settings, tuning),
            runtime.monotonic,
            question_open_for=self.poller.open_for,
            packs_stalled=self.packs.stalled,
            failing=(self.leadership.failing, self.index.failing),
            disk_trouble=self.disk_faults.trouble,
            other_histories=self.leadership.other_histories,
        )
        self.workers = UploadWorkers(
            self.queue,
            settings.upload,
            tuning.retry_backoff,
            self.metrics,
            self.health,
            self.revisit,
            self.repeats,
            runtime,
        )
        self.filler = GapFiller(
            incarnations=incarnations,
            broker=broker.node_id,
            log_dirs=self.log_dirs,
            accepts_topic=self.accepts_topic,
            metrics=self.metrics,
            sleep=self.stopping.wait,
            hold=self.hold,
            settings=lambda: self.settings.fill,
            led=lambda: self.leadership.partitions,
            interval=tuning.fill_interval,
            runtime=runtime,
        )
        self.tier_filler = (
            TierFiller(
                connect=tier,
                led=lambda: self.leadership.partitions,
                wanted=self._fetches_remote_tier,
                revisit=lambda tp: self.revisit(tp, 0.0),
                resolve=incarnations.resolve,
                broker=broker.node_id,
                state_dir=settings.state_dir,
                bandwidth=settings.fill.remote_tier_bandwidth,
                segment=tuning.fetch_segment,
                interval=tuning.fill_interval.total_seconds(),
                metrics=self.metrics,
                stopping=self.stopping,
                runtime=runtime,
            )
            if tier is not None and not read_only
            else None
        )
        self.ticks = Ticks(self.leadership, self.poller, self.packs.pack, runtime)
        self._waits = Waits(self.leadership, runtime)

    def _fetches_remote_tier(self) -> bool:
        return self.tier_filler is not None and self.settings.fill.fetches_remote_tier

    def accepts_topic(self, topic: str) -> bool:
        """True if the settings choose this topic."""
        return self.settings.accepts_topic(topic)

    def freshness_of(self, topic: str) -> float | None:
        """The topic's freshness in seconds, see :meth:`AgentSettings.freshness_of`."""
        return self.settings.freshness_of(topic)

    def _freshness(self) -> Iterable[timedelta]:
        return self.settings.freshness.values()

    def revisit(self, tp: TopicPartition, after: float) -> None:
        """Look at the partition again in ``after`` seconds. For other threads."""
        self.timers.add(tp, self.runtime.monotonic() + after)
        self.watcher.wake()

    def waits(self) -> list[Wait]:
        """The reasons for which partitions wait, longest wait first. For any thread."""
        return self._waits.look(self.settings.tail_after.total_seconds(), self.runtime.time())

    def fillers(self) -> list[Worker]:
        """The threads that fill gaps."""
        return [filler.worker for filler in (self.filler, self.tier_filler) if filler is not None]

    def stop(self) -> None:
        """Start no new job, and end the loop soon. For any thread, and for signal handlers."""
        self.health.stopping()  # before the first thread ends, so that health does not report it missing
        self.stopping.set()
        self.watcher.wake()

    def reconfigure(self, settings: AgentSettings, source: str) -> list[str]:
        """Apply other ``settings``, read from ``source``, and return the names of the changed fields. For the loop.

        Raises:
            ConfigError: a field differs that cannot change while the agent runs. Nothing is changed.
        """
        changed = changed_fields(self.settings, settings)
        fixed = [name for name in changed if is_fixed(name)]
        if fixed:
            rule = "cannot change while the agent runs: restart it, or take the change back"
            raise ConfigError(source, [(name, rule) for name in fixed])
        self.settings = settings
        self.health.stuck_after = _stuck_after(settings, self.tuning)
        self.workers.reconfigure(settings.upload)
        self.leadership.apply_freshness()
        self.ticks.reconsider()
        self.traffic.cap(settings.upload.bandwidth)
        self.hold.reconfigure(settings.hold)
        if self.tier_filler is not None:
            self.tier_filler.bandwidth.rate = settings.fill.remote_tier_bandwidth
        return changed

    def drain(self) -> None:
        """Hand out no more jobs, wait for the running ones, and stop the threads and the hold."""
        self.queue.close()
        self.poller.worker.stop()
        self.filler.worker.stop()
        if self.tier_filler is not None:
            self.tier_filler.stop()
        limit = self.settings.drain.total_seconds()
        if not self.queue.wait_idle(limit, running_only=True):
            logger.warning("drain_timed_out", limit=str(self.settings.drain))
        self.packs.stop(limit)
        self.index.stop(limit)
        self.hold.close()

    def _is_led(self, partition: LedPartition) -> bool:
        """True unless ``partition`` was left, whether or not another object has followed it. For any thread."""
        return self.leadership.partitions.get(partition.tp) is partition

    def _plan_again(self, partition: LedPartition) -> None:
        self.revisit(partition.tp, 0.0)

    def _maintenance_interval(self) -> float:
        return self.tuning.scan_interval.total_seconds()

    def open_buckets(self) -> None:
        """Pack, and maintain this broker's heads, in the default bucket and in the buckets of all its replicas."""
        buckets = {self._storage.default().root, *map(self._context.bucket_of, self.leadership.replicas)}
        self.packs.open(buckets, self._bucket_thread)

    def _bucket_thread(self, bucket: Endpoint) -> BucketThread:
        broker, runtime, resolve = self.broker.node_id, self.runtime, self._context.incarnations.resolve
        recover = partial(recover_entries, broker, resolve, runtime)
        head = BrokerHead(bucket, self._storage, broker, recover, runtime)
        packer = Packer(broker, head, self._pack_failures, self._is_led, self._plan_again, self.metrics, runtime)
        abandoned = Abandoned(broker, resolve, self.leadership.is_deleted, runtime)
        maintenance = Maintenance(packer, abandoned, partial(self._led_in, bucket), runtime)
        name = "packs" if bucket == self._storage.default().root else f"packs {bucket.url}"
        return BucketThread(name, packer, maintenance, self._maintenance_interval, self.traffic, runtime)

    def _led_in(self, bucket: Endpoint) -> dict[TopicPartition, LedPartition]:
        return {tp: partition for tp, partition in self.leadership.partitions.items() if partition.bucket == bucket}


def _stuck_after(settings: AgentSettings, tuning: AgentTuning) -> timedelta:
    """The time without progress after which the agent is unhealthy: no less than all uploads of a cap take together."""
    upload = settings.upload
    slowest = upload.concurrency * LARGEST_USUAL / upload.bandwidth if upload.bandwidth else 0.0
    return tuning.stuck_after + timedelta(seconds=slowest)


def _turn_limit(tuning: AgentTuning) -> float:
    """Seconds without a turn after which the loop is unhealthy; a turn may look through thousands of directories."""
    return 60 + 3 * tuning.scan_interval.total_seconds()
