"""The run loop: it connects what lies on disk, what the broker says, the queue and the workers, and decides nothing."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection

import structlog

from tidemark.endpoints import resolver_of
from tidemark.errors import ConfigError, StoreError, TidemarkError
from tidemark.layout import TopicPartition
from uploader_agent.broker import Broker
from uploader_agent.events import Doorbell
from uploader_agent.fill import Filler
from uploader_agent.health import Health
from uploader_agent.hold import Hold
from uploader_agent.indexes import Indexes
from uploader_agent.leadership import Leadership
from uploader_agent.metadata import Metadata
from uploader_agent.metrics import Metrics
from uploader_agent.notify import Notifier
from uploader_agent.partition import Context, LedPartition
from uploader_agent.places import OpenStore, Places
from uploader_agent.queue import UploadQueue
from uploader_agent.repeats import Repeats
from uploader_agent.settings import AgentSettings, changed_fields, is_fixed
from uploader_agent.throttle import StoreTraffic
from uploader_agent.workers import Task, Workers

logger = structlog.get_logger(__name__)

_HIGH_WATERMARK_POLL = 0.25
"""Seconds until the high watermark is asked for again while a rotated segment waits for it: followers must fetch."""

_NEW_DIRECTORY_PAUSE = 0.2
"""Seconds from a new partition directory until the broker's metadata is asked who leads it."""

_STALLS = 3
"""How often ``upload_once`` tries the same jobs before it gives up on them."""


class Agent:
    """One broker's agent. :meth:`run` and :meth:`upload_once` are called once, from one thread."""

    def __init__(
        self,
        settings: AgentSettings,
        broker: Broker,
        metadata: Metadata,
        opener: OpenStore,
        doorbell: Doorbell,
        *,
        notifier: Notifier | None = None,
        traffic: StoreTraffic | None = None,
        read_only: bool = False,
    ) -> None:
        """Nothing is started yet. ``read_only`` is for :meth:`survey` alone: the store is not written to."""
        self._traffic = traffic or StoreTraffic(Metrics(), settings.upload.bandwidth)
        self.metrics = self._traffic.metrics
        self.health = Health(_turn_limit(settings), settings.stuck_after)
        self._settings = settings
        self._broker = broker
        self._doorbell = doorbell
        self._notifier = notifier or Notifier({})
        self._repeats = Repeats(logger, settings.log.repeat)
        self._requests: deque[Callable[[], None]] = deque()
        self._stopping = threading.Event()
        self._drained = threading.Event()
        places = Places(settings.cluster or broker.cluster_id, resolver_of(settings.raw), opener, record=not read_only)
        holding = settings.hold.model_copy(update={"enabled": False}) if read_only else settings.hold
        self.hold = Hold(holding, broker.log_dirs, settings.state_dir, self.metrics)
        context = Context(
            broker.node_id,
            places.settle,
            places.control_store,
            places.control,
            self._drained.wait,
            self.metrics.superseded.inc,
            self.hold,
            search_interval=settings.scan_interval.total_seconds(),
        )
        self.leadership = Leadership(metadata, broker.log_dirs, self._takes, context, self.metrics, self._repeats)
        self._queue: UploadQueue[TopicPartition, Task] = UploadQueue(settings.upload.concurrency)
        self._workers = Workers(self._queue, settings.upload, self.metrics, self.health, self._revisit, self._repeats)
        self._indexes = Indexes(places, broker.node_id, settings.index)
        self._filler = Filler(
            places, broker.node_id, broker.log_dirs, self._takes, self.metrics, self._stopping.wait, self.hold
        )
        self._revisits: dict[TopicPartition, float] = {}
        self._revisits_lock = threading.Lock()
        self._next_scan = self._next_metadata = 0.0

    def stop(self) -> None:
        """End :meth:`run` soon: take no new work, finish what is under way. For signal handlers and other threads."""
        self._stopping.set()
        self._doorbell.ring()

    def soon(self, action: Callable[[], None]) -> None:
        """Have the loop call ``action`` before its next turn. For signal handlers and other threads."""
        self._requests.append(action)
        self._doorbell.ring()

    def reconfigure(self, settings: AgentSettings, source: str) -> list[str]:
        """Go on under other ``settings``, read from ``source``; the names of the fields that changed. For the loop.

        Raises:
            ConfigError: a field that cannot change while the agent runs is another; nothing is changed.
        """
        changed = changed_fields(self._settings, settings)
        fixed = [name for name in changed if is_fixed(name)]
        if fixed:
            rule = "cannot change while the agent runs: restart it, or take the change back"
            raise ConfigError(source, [(name, rule) for name in fixed])
        self._settings = settings
        self._repeats.every = settings.log.repeat
        self.health.turn_limit, self.health.stuck_after = _turn_limit(settings), settings.stuck_after
        self._workers.reconfigure(settings.upload)
        self._traffic.cap(settings.upload.bandwidth)
        self._indexes.reconfigure(settings.index)
        self.hold.reconfigure(settings.hold)
        self._next_scan = self._next_metadata = 0.0
        return changed

    def run(self) -> None:
        """Upload until :meth:`stop`."""
        self._workers.start()
        filling = threading.Thread(target=self._fill, name="fill", daemon=True)
        filling.start()
        while not self._stopping.is_set():
            while self._requests:
                self._requests.popleft()()
            self._turn()
        self._notifier.stopping()
        self._drain()
        filling.join(self._settings.drain.total_seconds())

    def upload_once(self) -> None:
        """Upload all that may go now, write the index, and return. What failed is told by the partitions' ``error``."""
        self._workers.start()
        before: dict[TopicPartition, list[Task]] = {}
        stalls = 0
        while stalls < _STALLS and not self._stopping.is_set():
            self._refresh()
            planned = {at: tasks for at in self.leadership.partitions if (tasks := self._look(at))}
            if not planned:
                break
            stalls = stalls + 1 if planned == before else 0
            before = planned
            self._queue.wait_idle()
        if self._settings.fill.enabled:
            self._filler.turn(self.leadership.partitions)
        self._drain()

    def survey(self) -> None:
        """Learn where everything stands, and change nothing."""
        self._refresh()
        for partition in self.leadership.partitions.values():
            partition.look()
            try:
                if partition.segments:
                    partition.learn()
            except TidemarkError as error:
                partition.error = f"{type(error).__name__}: {error}"

    def _fill(self) -> None:
        self._filler.run(self._stopping, lambda: self._settings.fill, lambda: self.leadership.partitions)

    def _turn(self) -> None:
        """Wait for whatever comes first, and see to it."""
        rung = self._doorbell.wait(self._next_time() - time.monotonic())
        self.health.turned()
        now = time.monotonic()
        if rung & set(self._broker.log_dirs):
            self._next_metadata = min(self._next_metadata, now + _NEW_DIRECTORY_PAUSE)
        due = {at for at, one in self.leadership.partitions.items() if one.folder in rung} | self._revisited(now)
        if now >= self._next_metadata:
            due |= self._refresh()
        if now >= self._next_scan:
            self._next_scan = now + self._settings.scan_interval.total_seconds()
            self.hold.enforce()
            due = set(self.leadership.partitions)
        self._look_at(due & self.leadership.partitions.keys())
        self._write_indexes()
        self._measure()
        self._notifier.turned(ready=self.health.ready, status=self._status())

    def _takes(self, topic: str) -> bool:
        return self._settings.takes(topic)

    def _status(self) -> str:
        """How it goes, in one line."""
        wrong = self.health.trouble() or self.health.waits_for
        partitions, jobs = len(self.leadership.partitions), self._queue.unfinished()
        return f"{wrong or 'healthy'}; {partitions} partitions led, {jobs} jobs"

    def _measure(self) -> None:
        partitions = self.leadership.partitions.values()
        self.metrics.waiting.set(self._queue.waiting())
        self.metrics.gaps.set(sum(len(one.gaps) for one in partitions))
        self.metrics.gap_offsets.set(sum(gap.end - gap.start for one in partitions for gap in one.gaps))
        self.health.unfinished(self._queue.unfinished())
        if not self.health.ready:
            self.health.waits_for = self._waits_for()
        trouble = self.health.trouble()
        if trouble:
            self._repeats.failed("health", "unhealthy", "error", reason=trouble)
        else:
            self._repeats.cleared("health", "healthy_again")

    def _waits_for(self) -> str | None:
        """What is missing until the agent is ready."""
        if not self.leadership.seen:
            return "the broker has not said yet what it leads"
        unknown = sum(not (one.surveyed or one.error) for one in self.leadership.partitions.values())
        return f"{unknown} partitions have not been compared with the store yet" if unknown else None

    def _refresh(self) -> set[TopicPartition]:
        changed = self.leadership.refresh()
        for at in changed:
            self._queue.drop(at)
            self._workers.forget(at)
        # A watch follows a directory that is renamed: what is new under an old path must be watched anew.
        folders = {at: one.folder for at, one in self.leadership.partitions.items()}
        kept = [folder for at, folder in folders.items() if at not in changed]
        self._doorbell.watch([*self._broker.log_dirs, *kept])
        self._doorbell.watch([*self._broker.log_dirs, *folders.values()])
        self._next_metadata = time.monotonic() + self._settings.metadata_interval.total_seconds()
        return changed

    def _look_at(self, due: Collection[TopicPartition]) -> None:
        """Look at the disks; ask for the offsets of those that have something rotated beyond what is known."""
        for at in due:
            self.leadership.partitions[at].look()
        waiting = [at for at in due if self.leadership.partitions[at].waits_for_high_watermark()]
        self.leadership.refresh_offsets(waiting)
        for at in due:
            self._offer(self.leadership.partitions[at])
        for at in waiting:
            if self.leadership.partitions[at].waits_for_high_watermark():
                self._revisit(at, _HIGH_WATERMARK_POLL)

    def _look(self, at: TopicPartition) -> list[Task]:
        self.leadership.partitions[at].look()
        return self._offer(self.leadership.partitions[at])

    def _offer(self, partition: LedPartition) -> list[Task]:
        quiet_before = time.time() - self._settings.tail_after.total_seconds()
        tasks = [Task(partition, job) for job in partition.plan(quiet_before)]
        self._queue.offer(partition.at, tasks)
        return tasks

    def _revisit(self, at: TopicPartition, after: float) -> None:
        with self._revisits_lock:
            moment = time.monotonic() + after
            self._revisits[at] = min(moment, self._revisits.get(at, moment))
        self._doorbell.ring()

    def _revisited(self, now: float) -> set[TopicPartition]:
        with self._revisits_lock:
            due = {at for at, moment in self._revisits.items() if moment <= now}
            for at in due:
                del self._revisits[at]
            return due

    def _next_time(self) -> float:
        with self._revisits_lock:
            moments = [self._next_scan, self._next_metadata, self._notifier.next_time, *self._revisits.values()]
        return min([*moments, time.monotonic() + self._settings.index.min_interval.total_seconds()])

    def _write_indexes(self, *, now: bool = False) -> None:
        try:
            written = self._indexes.offer(self.leadership.partitions.values(), now=now)
        except StoreError as error:
            self._repeats.failed("index", "index_not_written", error=str(error))
        else:
            if written:
                self.metrics.index_written.set_to_current_time()
                self._repeats.cleared("index", "index_written_again")

    def _drain(self) -> None:
        """Hand out nothing more, wait for what is under way, and say where things stand."""
        self._queue.close()
        if not self._queue.wait_idle(self._settings.drain.total_seconds(), running_only=True):
            logger.warning("drain_timed_out", limit=str(self._settings.drain))
        self._drained.set()
        self._write_indexes(now=True)
        self.hold.close()


def _turn_limit(settings: AgentSettings) -> float:
    """Seconds without a turn that are no longer healthy; a turn may look through thousands of directories."""
    return 60 + 3 * settings.scan_interval.total_seconds()
