"""The run loop: it connects what lies on disk, what the broker says, the queue and the workers, and decides nothing.

It never waits for a network: the broker is asked in one thread, the watermark index written in another, segments
uploaded in a third kind. What it does in a turn is bounded by what has changed, not by how much is led.
"""

from __future__ import annotations

import gc
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path

import structlog

from tidemark.endpoints import resolver_of
from tidemark.errors import ConfigError, TidemarkError
from tidemark.formats.keys import TopicPartition
from tidemark.formats.watermark_index import IndexEntry
from uploader_agent.broker.admin import Metadata
from uploader_agent.broker.authority import Authority, NoAuthority
from uploader_agent.broker.leadership_hints import Hints, NoHints
from uploader_agent.broker.properties import Broker
from uploader_agent.disk.watcher import Watcher
from uploader_agent.hold import Hold
from uploader_agent.observability.health import Health
from uploader_agent.observability.log_dedup import ErrorDeduplicator
from uploader_agent.observability.metrics import Metrics
from uploader_agent.observability.systemd import Notifier
from uploader_agent.partitions import lag
from uploader_agent.partitions.leadership import Leadership
from uploader_agent.partitions.led_partition import Context, LedPartition
from uploader_agent.partitions.poller import Answer, LeadersAnswer, OffsetsAnswer, Poller
from uploader_agent.partitions.waiting import Wait, Waits
from uploader_agent.remote.destinations import Destinations, OpenStore, digest
from uploader_agent.remote.foreign_epochs import ForeignEpochs
from uploader_agent.repair.gap_filler import GapFiller
from uploader_agent.runtime import MACHINE, Runtime
from uploader_agent.scheduling.throttle import StoreTraffic
from uploader_agent.scheduling.timers import Timers
from uploader_agent.scheduling.upload_queue import UploadQueue
from uploader_agent.scheduling.workers import PartitionJob, UploadWorkers
from uploader_agent.settings import AgentSettings, changed_fields, is_fixed
from uploader_agent.watermark_index.publisher import IndexPublisher
from uploader_agent.watermark_index.thread import IndexThread

logger = structlog.get_logger(__name__)

_BROKER_PATIENCE = 1.0
"""Seconds without an answer, or after a refusal, for which the broker's checkpoint is not yet used, or asked again."""

_HINT_PAUSE = 0.2
"""Seconds from a hint until the broker is asked who leads: hints come in swarms, and a little before the fact."""

_HINT_SPACING = 1.0
"""Seconds from one such question to the next."""

_SECOND_QUESTION = 2.0
"""Seconds from a hinted question to another one: the hint may have come before the broker itself was told."""

_INDEX_PATIENCE = 2.0
"""Seconds from the start for which the former index is waited for: without it everything rotated would be held."""

_INDEX_LIMIT = 60.0
"""Seconds from the start after which the agent goes on without the former index, which only costs more requests."""

_BROKER_LIMIT = 10.0
"""Seconds without an answer after which the broker counts as unreachable."""

_MEASURE_INTERVAL = 10.0
"""Seconds between two reckonings of the lag over all partitions."""

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
        watcher: Watcher,
        *,
        hints: Hints | None = None,
        authority: Authority | None = None,
        notifier: Notifier | None = None,
        traffic: StoreTraffic | None = None,
        read_only: bool = False,
        runtime: Runtime = MACHINE,
    ) -> None:
        """Nothing is started yet. ``read_only`` is for :meth:`survey` alone: the store is not written to.

        Without an ``authority`` no leader epoch that stands in the store is ever taken for a foreign one.
        """
        self._runtime = runtime
        self._traffic = traffic or StoreTraffic(Metrics(), settings.upload.bandwidth)
        self.metrics = self._traffic.metrics
        self.health = Health(_turn_limit(settings), settings.stuck_after, runtime.monotonic)
        self._settings = settings
        self._broker = broker
        self._watcher = watcher
        self._hints = hints or NoHints()
        self._hinted = threading.Event()
        self._notifier = notifier or Notifier({})
        self._repeats = ErrorDeduplicator(logger, settings.log.repeat, runtime.monotonic)
        self._requests: deque[Callable[[], object]] = deque()
        self._stopping = runtime.event()
        self._drained = runtime.event()
        places = Destinations(
            settings.cluster or broker.cluster_id, resolver_of(settings.raw), opener, record=not read_only
        )
        holding = settings.hold.model_copy(update={"enabled": False}) if read_only else settings.hold
        self.hold = Hold(holding, broker.log_dirs, settings.state_dir, self.metrics, runtime=runtime)
        context = Context(
            broker.node_id,
            places.settle,
            places.control_store,
            places.control,
            self._drained.wait,
            self.metrics.superseded.inc,
            self.hold,
            ForeignEpochs(broker.node_id, authority or NoAuthority(), self.metrics, runtime.monotonic).judge,
            search_interval=settings.scan_interval.total_seconds(),
            runtime=runtime,
        )
        self.leadership = Leadership(broker.log_dirs, self._takes, context, self.metrics, self._repeats)
        self._poller = Poller(metadata, watcher.wake, runtime)
        self._queue: UploadQueue[TopicPartition, PartitionJob] = UploadQueue(
            settings.upload.concurrency, runtime, target=lambda task: task.target
        )
        self._workers = UploadWorkers(
            self._queue, settings.upload, self.metrics, self.health, self._revisit, self._repeats, runtime
        )
        indexes = IndexPublisher(places, broker.node_id, digest(settings.raw), settings.index, runtime)
        interval = settings.index.min_interval.total_seconds()
        self._index = IndexThread(indexes, self.metrics, self._repeats, interval, watcher.wake, runtime)
        self._filler = GapFiller(
            places, broker.node_id, broker.log_dirs, self._takes, self.metrics, self._stopping.wait, self.hold
        )
        self._timers: Timers[TopicPartition] = Timers()
        self._by_folder: dict[Path, TopicPartition] = {}
        self._settled = self._frozen = False
        self._hinted_questions = 0
        self._looked_at = self._runtime.utc_now()
        self._next_scan = self._next_metadata = self._next_measure = 0.0
        self._asked_leaders = -_HINT_SPACING
        self._settle_by = float("inf")
        self._waits = Waits(self.leadership)
        self.health.question_open_for = self._poller.open_for

    def stop(self) -> None:
        """End :meth:`run` soon: take no new work, finish what is under way. For signal handlers and other threads."""
        self._stopping.set()
        self._watcher.wake()

    def hint(self) -> None:
        """The leadership may have changed: ask soon. For other threads."""
        self._hinted.set()
        self._watcher.wake()

    def soon(self, action: Callable[[], object]) -> None:
        """Have the loop call ``action`` before its next turn. For signal handlers and other threads."""
        self._requests.append(action)
        self._watcher.wake()

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
        self._index.reconfigure(settings.index)
        self.hold.reconfigure(settings.hold)
        self._next_scan = self._next_metadata = 0.0
        return changed

    def run(self) -> None:
        """Upload until :meth:`stop`."""
        self._settle_by = self._runtime.monotonic() + _INDEX_LIMIT
        filling = self._runtime.thread("fill", self._fill)
        for name, thread in (("metadata", self._poller.thread), ("index", self._index.thread), ("fill", filling)):
            self.health.watch(name, thread)
        self._workers.start()
        self._poller.start()
        self._index.start()
        self._hints.start(self.hint)
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
        self._settled = True
        self._workers.start()
        before: dict[TopicPartition, list[PartitionJob]] = {}
        stalls = 0
        while stalls < _STALLS and not self._stopping.is_set():
            self.refresh()
            planned = {at: tasks for at, one in self.leadership.partitions.items() if (tasks := self._offer(one))}
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
        self.refresh()
        for partition in self.leadership.partitions.values():
            try:
                if partition.segments:
                    partition.learn()
            except TidemarkError as error:
                partition.error = f"{type(error).__name__}: {error}"

    def _fill(self) -> None:
        self._filler.run(self._stopping, lambda: self._settings.fill, lambda: self.leadership.partitions)

    def _turn(self) -> None:
        """Wait for whatever comes first, and see to it."""
        heard = self._watcher.wait(self._next_time() - self._runtime.monotonic())
        self.health.turned()
        now = self._runtime.monotonic()
        if heard.leaders or self._hinted.is_set():
            self._hinted.clear()
            soon = max(now + _HINT_PAUSE, self._asked_leaders + _HINT_SPACING)
            self._next_metadata = min(self._next_metadata, soon)
            self._hinted_questions = 2
        if not self._settled and (former := self._former(now)) is not None:
            self._settle(former)
        for answer in self._poller.take():
            if isinstance(answer, LeadersAnswer):
                self._learn(answer)
            else:
                self._observe(answer)
        due = {self._by_folder[folder] for folder in heard.folders & self._by_folder.keys()} | self._timers.take(now)
        self._look_at(due)
        if now >= self._next_scan:
            self._scan()
        if now >= self._next_metadata:
            self._ask_leaders()
        if now >= self._next_measure:
            self._measure()
        self._tell_health()
        self._notifier.turned(ready=self.health.ready, status=self._status())

    def _former(self, now: float) -> Mapping[TopicPartition, IndexEntry] | None:
        """The former index, or an empty one if it has not been read for long; None while it is waited for."""
        former = self._index.take()
        if former is None and now >= self._settle_by:
            logger.warning("former_index_given_up", limit=_INDEX_LIMIT)
            return {}
        return former

    def _settle(self, former: Mapping[TopicPartition, IndexEntry]) -> None:
        """The former index has been read: what it says is known of the store."""
        self._settled = True
        self.leadership.settle(former)
        self._look_at(self.leadership.partitions.keys())
        self._show()

    def _look_through_disks(self) -> None:
        if self.leadership.look_at_disks():
            self._hints.watch(self.leadership.replicas.keys())
            self._next_metadata = 0.0
        self._watcher.watch([*self._broker.log_dirs, *self.leadership.replicas.values()])

    def _ask_leaders(self) -> None:
        pause = self._settings.metadata_interval.total_seconds()
        if self._hinted_questions:
            self._look_through_disks()
            self._hinted_questions -= 1
            pause = min(pause, _SECOND_QUESTION) if self._hinted_questions else pause
        self._poller.ask_leaders(self.leadership.replicas.keys())
        self._asked_leaders = self._runtime.monotonic()
        self._next_metadata = self._asked_leaders + pause

    def _scan(self) -> None:
        """Look at every directory; of what inotify has told, little is left to find."""
        self._looked_at = self._runtime.utc_now()
        self.hold.enforce()
        with self.metrics.scan_seconds.time():
            self._look_through_disks()
            due = {at for at, one in self.leadership.partitions.items() if one.look() or one.restless}
        self.metrics.scans.inc()
        self.metrics.missed_events.inc(sum(self.leadership.partitions[at].disk.overdue for at in due))
        self._next_scan = self._runtime.monotonic() + self._settings.scan_interval.total_seconds()
        self._ask_outdated(self.leadership.partitions)
        self._offer_all(due)
        self._show()

    def _learn(self, answer: LeadersAnswer) -> None:
        """The broker has said who leads."""
        changed = self.leadership.learn(answer)
        for at in changed:
            self._queue.drop(at)
            self._workers.forget(at)
        if changed:
            self._by_folder = {one.folder: at for at, one in self.leadership.partitions.items()}
        if not self._settled:
            self._look_later(changed, _INDEX_PATIENCE)
            return
        self._look_at(changed)
        self._show()

    def _observe(self, answer: OffsetsAnswer) -> None:
        """The broker has said offsets, or failed to; where that was not the last word, it is asked again."""
        self._offer_all(self.leadership.observe(answer))
        for at in answer.asked.keys() & self.leadership.partitions.keys():
            partition = self.leadership.partitions[at]
            if partition.outdated:
                patience = _BROKER_PATIENCE if answer.error else 0.0
                self._look_later([at], max(partition.pace.seconds, patience))

    def _ask_outdated(self, among: Iterable[TopicPartition]) -> None:
        """Ask for offsets where the log is another than when they were asked for; by the checkpoint, if that hangs."""
        outdated = [at for at in among if self.leadership.partitions[at].outdated]
        if outdated and self._poller.hangs(_BROKER_PATIENCE):
            self.leadership.fall_back(outdated)
        if outdated:
            self._poller.ask_offsets(self.leadership.ask(outdated))

    def _look_at(self, due: AbstractSet[TopicPartition]) -> None:
        """Look at some directories; ask for the offsets of those whose log is another than when they were asked for."""
        here = due & self.leadership.partitions.keys()
        for at in here:
            self.leadership.partitions[at].look()
        self._ask_outdated(here)
        for at in self.leadership.waiting(here):
            self._look_later([at], max(_BROKER_PATIENCE, self.leadership.partitions[at].pace.seconds))
        self._offer_all(here)

    def _look_later(self, wanted: Iterable[TopicPartition], after: float) -> None:
        for at in wanted:
            self._timers.add(at, self._runtime.monotonic() + after)

    def _offer_all(self, due: Iterable[TopicPartition]) -> None:
        """Plan anew by what is known now, if the store's part of it is."""
        if self._settled:
            for at in due:
                self._offer(self.leadership.partitions[at])

    def _offer(self, partition: LedPartition) -> list[PartitionJob]:
        tail_after, now = self._settings.tail_after.total_seconds(), self._runtime.time()
        tasks = [PartitionJob(partition, job) for job in partition.plan(now - tail_after)]
        self._queue.offer(partition.at, tasks)
        quiet_at = partition.tail_due(tail_after)
        if quiet_at is not None and quiet_at > now:
            self._look_later([partition.at], max(1.0, quiet_at - now))
        return tasks

    def _revisit(self, at: TopicPartition, after: float) -> None:
        self._timers.add(at, self._runtime.monotonic() + after)
        self._watcher.wake()

    def _next_time(self) -> float:
        return min(
            self._next_scan, self._next_metadata, self._next_measure, self._notifier.next_time, self._timers.next_time()
        )

    def _show(self) -> None:
        """Give the watermark index what there is to be told."""
        confirmed_at = self.leadership.confirmed_at
        if confirmed_at is not None and self._settled:
            self._index.show(self.leadership.partitions.values(), min(confirmed_at, self._looked_at))

    def _measure(self) -> None:
        self.metrics.waiting.set(self._queue.waiting())
        lag.measure(self.leadership.partitions.values(), self.waits(), self.metrics, self._runtime.time())
        self._next_measure = self._runtime.monotonic() + _MEASURE_INTERVAL
        if self.health.ready and not self._frozen:
            self._frozen = True
            gc.freeze()  # what thousands of partitions hold lives long: to look for garbage in it costs more than polls

    def waiting(self) -> dict[str, object]:
        """What the agent waits for as a whole, and for each partition: what ``/waiting`` says. For other threads."""
        return {"agent": self._waits_for(), "partitions": [one.to_json() for one in self.waits()]}

    def waits(self) -> list[Wait]:
        """What the partitions wait for, the longest first. For other threads."""
        return self._waits.look(self._settings.tail_after.total_seconds(), self._runtime.time())

    def _takes(self, topic: str) -> bool:
        return self._settings.takes(topic)

    def _status(self) -> str:
        """How it goes, in one line."""
        wrong = self.health.trouble() or self.health.waits_for
        partitions, jobs = len(self.leadership.partitions), self._queue.unfinished()
        return f"{wrong or 'healthy'}; {partitions} partitions led, {jobs} jobs"

    def _tell_health(self) -> None:
        self.health.unfinished(self._queue.unfinished())
        if self._poller.hangs(_BROKER_LIMIT):
            self.leadership.silent(self._poller.open_for())
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
        return None if self._settled else "the watermark index that the agent wrote before has not been read yet"

    def refresh(self) -> None:
        """Look at all disks and ask the broker about all of it, here and now."""
        self._index.measure_clock()
        self._looked_at = self._runtime.utc_now()
        self._look_through_disks()
        self._poller.ask_leaders(self.leadership.replicas.keys())
        self._judge(self._poller.answer_all())
        for partition in self.leadership.partitions.values():
            partition.look()
        self._poller.ask_offsets(self.leadership.ask(self.leadership.partitions))
        self._judge(self._poller.answer_all())
        self._show()

    def _judge(self, answers: Iterable[Answer]) -> None:
        for answer in answers:
            if isinstance(answer, LeadersAnswer):
                self.leadership.learn(answer)
            else:
                self.leadership.observe(answer)

    def _drain(self) -> None:
        """Hand out nothing more, wait for what is under way, and say where things stand."""
        self.health.stopping()
        self._queue.close()
        self._poller.stop()
        if not self._queue.wait_idle(self._settings.drain.total_seconds(), running_only=True):
            logger.warning("drain_timed_out", limit=str(self._settings.drain))
        self._drained.set()
        self._index.stop(self._settings.drain.total_seconds())
        self.hold.close()


def _turn_limit(settings: AgentSettings) -> float:
    """Seconds without a turn that are no longer healthy; a turn may look through thousands of directories."""
    return 60 + 3 * settings.scan_interval.total_seconds()
