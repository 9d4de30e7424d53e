"""The run loop. It connects the disks, the broker's answers, the queue and the workers, and makes no decisions itself.

It never waits for a network: one thread asks the broker, another writes the watermark index, and worker threads upload
segments. The work of a turn depends on the changes, not on the number of led partitions.

:class:`LeaderQuestions` tells the loop when to ask the broker who leads, and :class:`Monitor` reports the agent's own
state.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path

import structlog

from tidemark.formats.keys import TopicPartition
from tidemark.formats.raw.watermark_index import IndexEntry
from uploader_agent.components import Components
from uploader_agent.observability.metrics import Metrics
from uploader_agent.partitions.led_partition import LedPartition
from uploader_agent.partitions.poller import LeadersAnswer, OffsetsAnswer
from uploader_agent.partitions.waiting import Kind, Wait, oldest
from uploader_agent.scheduling.workers import PartitionJob
from uploader_agent.settings import AgentSettings

logger = structlog.get_logger(__name__)

_BROKER_PATIENCE = 1.0
"""Seconds without an answer, or after a refusal, before the agent uses the broker's checkpoint or asks again."""

_INDEX_PATIENCE = 2.0
"""Seconds from the start for which the loop waits for the former index. Without it, all rotated segments are held."""

_INDEX_LIMIT = 60.0
"""Seconds from the start after which the agent continues without the former index. That only costs more requests."""

_OVERVIEW_INTERVAL = 15.0
"""Least seconds between two questions about everything that the broker leads, whether a log directory has it or not."""

_OVERVIEW_SHARE = 20
"""The time between two such questions is at least so many times what the last one took: a cluster may be large."""

_MEASURE_INTERVAL = 10.0
"""Seconds between two measurements of the lag over all partitions."""

_BROKER_LIMIT = 10.0
"""Seconds without an answer after which the broker counts as unreachable."""

_STORABLE: tuple[Kind, ...] = ("rotated", "tail")

_HINT_PAUSE = 0.2
"""Seconds from a hint until the broker is asked: hints come in bursts, slightly before the change itself."""

_HINT_SPACING = 1.0
"""Least seconds between two hinted questions."""

_SECOND_QUESTION = 2.0
"""Seconds from a hinted question to its repetition, since a hint may arrive before the broker knows of the change."""


class Agent:
    """The agent of one broker. The thread that calls :meth:`run` owns everything but the methods for other threads."""

    def __init__(self, components: Components) -> None:
        self._parts = components
        self._leadership = components.leadership
        self._runtime = components.runtime
        self._monitor = Monitor(components)
        self._questions = LeaderQuestions()
        self._requests: deque[Callable[[], object]] = deque()
        self._by_folder: dict[Path, TopicPartition] = {}
        self._index_read = self._frozen = self._is_settled = False
        self._looked_at = self._runtime.utc_now()
        self._next_scan = self._next_measure = 0.0
        self._next_overview = 0.0 if components.source.origin == "disk" else float("inf")
        self._go_on_by = float("inf")  # without the former index

    # -- for other threads --------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """End :meth:`run` soon: start no new job, finish the running ones. For signal handlers as well."""
        self._parts.stop()

    def soon(self, action: Callable[[], object]) -> None:
        """Have the loop call ``action`` before its next turn. For signal handlers as well."""
        self._requests.append(action)
        self._parts.watcher.wake()

    def waiting(self) -> dict[str, object]:
        """The waits of the agent and of its partitions, as ``/waiting`` reports them."""
        return self._monitor.waiting()

    # -- the loop -----------------------------------------------------------------------------------------------------

    def reconfigure(self, settings: AgentSettings, source: str) -> list[str]:
        """Apply other settings, see :meth:`Components.reconfigure`, then look at the disks and ask the broker again."""
        changed = self._parts.reconfigure(settings, source)
        self._next_scan = 0.0
        self._questions.ask_now()
        return changed

    def run(self) -> None:
        """Upload until :meth:`stop`."""
        parts = self._parts
        self._go_on_by = self._runtime.monotonic() + _INDEX_LIMIT
        for worker in (parts.poller.worker, parts.index.worker, *parts.fillers()):
            parts.health.watch(worker.name, worker)
        with parts.source.running(parts.accepts_topic) as replica:
            if replica is not None:
                parts.health.watch(replica.name, replica)
            self._run()

    def _run(self) -> None:
        parts = self._parts
        parts.workers.start()
        parts.poller.worker.start()
        parts.index.worker.start()
        parts.open_buckets()
        parts.packs.start(parts.health.watch)
        parts.filler.start()
        if parts.tier_filler is not None:
            parts.tier_filler.worker.start()
        while not parts.stopping.is_set():
            while self._requests:
                self._requests.popleft()()
            self._turn()
        parts.notifier.stopping()
        parts.drain()
        for filler in parts.fillers():
            filler.join(parts.settings.drain.total_seconds())

    def _turn(self) -> None:
        """Wait for the first event, and handle it."""
        parts = self._parts
        heard = parts.watcher.wait(self._next_time() - self._runtime.monotonic())
        parts.health.turned()
        now = self._runtime.monotonic()
        if heard.leaders:
            self._questions.hint(now)
        if not self._index_read and (former := self._former(now)) is not None:
            self._trust_index(former)
        for answer in parts.poller.take():
            if isinstance(answer, LeadersAnswer):
                self._learn(answer)
            else:
                self._observe(answer)
        if self._index_read and now >= parts.ticks.next_time:
            self._plan_all(parts.ticks.turn())
        due = {self._by_folder[folder] for folder in heard.folders & self._by_folder.keys()} | parts.timers.take(now)
        self._look_at(due)
        if now >= self._next_scan:
            self._scan()
        if now >= min(self._questions.next_time, self._next_overview):
            self._ask_leaders()
        if now >= self._next_measure:
            self._measure()
        self._monitor.turn()

    def _next_time(self) -> float:
        parts = self._parts
        return min(
            self._next_scan,
            self._questions.next_time,
            self._next_overview,
            self._next_measure,
            parts.notifier.next_time,
            parts.timers.next_time(),
            parts.ticks.next_time if self._index_read else float("inf"),
        )

    def _former(self, now: float) -> Mapping[TopicPartition, IndexEntry] | None:
        """The former index; an empty one if it could not be read in time; None while the loop still waits for it."""
        former = self._parts.index.take()
        if former is None and now >= self._go_on_by:
            logger.warning("former_index_given_up", limit=_INDEX_LIMIT)
            return {}
        return former

    def _trust_index(self, former: Mapping[TopicPartition, IndexEntry]) -> None:
        """Adopt the state of the store that the former index describes."""
        self._index_read = self._monitor.index_read = True
        self._leadership.trust_index(former)
        self._look_at(self._leadership.partitions.keys())
        self._show()

    def _look_through_disks(self) -> None:
        if self._leadership.look_at_disks():
            self._parts.open_buckets()
            self._questions.ask_now()
        self._parts.watcher.watch([*self._parts.log_dirs, *self._leadership.replicas.values()])
        if self._parts.log_dirs.replaced is not None:
            logger.error("broker_replaced", error=self._parts.log_dirs.replaced, then="this agent ends")
            self.stop()

    def _ask_leaders(self) -> None:
        if self._questions.is_hinted:
            self._look_through_disks()
        everything = self._runtime.monotonic() >= self._next_overview
        if everything:
            self._next_overview = self._runtime.monotonic() + _OVERVIEW_INTERVAL
        wanted = self._leadership.replicas.keys() | self._parts.packs.of_other_leaderships
        self._parts.poller.ask_leaders(wanted, everything=everything)
        # Nothing else shows that a log which is followed has grown.
        followed = [tp for tp, partition in self._leadership.partitions.items() if partition.follows]
        if followed:
            self._parts.poller.ask_offsets(self._leadership.ask(followed))
        interval = self._parts.tuning.metadata_interval.total_seconds()
        self._questions.asked(self._runtime.monotonic(), interval)

    def _scan(self) -> None:
        """Look at every directory. Inotify has reported most changes already."""
        parts, partitions = self._parts, self._leadership.partitions
        self._looked_at = self._runtime.utc_now()
        parts.hold.enforce()
        with parts.metrics.scan_seconds.time():
            self._look_through_disks()
            due = {tp for tp, partition in partitions.items() if partition.look() or partition.is_unsettled}
        parts.metrics.scans.inc()
        parts.metrics.missed_events.inc(sum(partitions[tp].disk.overdue for tp in due))
        self._next_scan = self._runtime.monotonic() + parts.tuning.scan_interval.total_seconds()
        self._ask_outdated(partitions)
        if tiered := [tp for tp, partition in partitions.items() if partition.names_remote_tier]:
            parts.poller.ask_offsets(self._leadership.ask(tiered))
        self._plan_all(due)
        self._show()

    def _learn(self, answer: LeadersAnswer) -> None:
        """Apply the broker's answer about the leaders."""
        if answer.everything:
            later = self._runtime.monotonic() + _OVERVIEW_SHARE * answer.seconds
            self._next_overview = max(self._next_overview, later)
            if self._leadership.led_elsewhere(answer):
                self._look_through_disks()  # they may have changed since the last look
        changed = self._leadership.learn(answer)
        if self._leadership.unconfirmed:
            self._next_overview = self._runtime.monotonic()
        for tp in changed:
            self._parts.queue.drop(tp)
            self._parts.workers.forget(tp)
        if changed:
            self._parts.packs.forget(changed)
            self._parts.ticks.reconsider()
            self._by_folder = {partition.folder: tp for tp, partition in self._leadership.partitions.items()}
        if not self._index_read:
            self._look_later(changed, _INDEX_PATIENCE)
            return
        self._look_at(changed)
        self._show()

    def _observe(self, answer: OffsetsAnswer) -> None:
        """Apply the broker's offsets, or its failure. Where the answer is not final, ask again later."""
        self._plan_all(self._leadership.observe(answer))
        self._parts.ticks.answered(answer)
        for tp in answer.asked.keys() & self._leadership.partitions.keys():
            partition = self._leadership.partitions[tp]
            if partition.outdated:
                patience = _BROKER_PATIENCE if answer.error else 0.0
                self._look_later([tp], max(partition.question_pause, patience))

    def _ask_outdated(self, among: Iterable[TopicPartition]) -> None:
        """Ask for offsets where the log has changed since the last question; if that hangs, use the checkpoint."""
        outdated = [tp for tp in among if self._leadership.partitions[tp].outdated]
        if outdated and self._parts.poller.hangs(_BROKER_PATIENCE):
            self._leadership.fall_back(outdated)
        if outdated:
            self._parts.poller.ask_offsets(self._leadership.ask(outdated))

    def _look_at(self, due: AbstractSet[TopicPartition]) -> None:
        """Look at the directories of the partitions ``due``, and ask for offsets where the log has changed."""
        here = due & self._leadership.partitions.keys()
        for tp in here:
            self._leadership.partitions[tp].look()
        self._ask_outdated(here)
        for tp in self._leadership.waiting(here):
            self._look_later([tp], max(_BROKER_PATIENCE, self._leadership.partitions[tp].question_pause))
        self._plan_all(here)

    def _look_later(self, wanted: Iterable[TopicPartition], after: float) -> None:
        for tp in wanted:
            self._parts.timers.add(tp, self._runtime.monotonic() + after)

    def _plan_all(self, due: Iterable[TopicPartition]) -> None:
        """Plan the jobs again for each due partition, once the stored state is known."""
        if self._index_read:
            for tp in due:
                self._plan(self._leadership.partitions[tp])

    def _plan(self, partition: LedPartition) -> None:
        tail_after, now = self._parts.settings.tail_after.total_seconds(), self._runtime.time()
        quiet_before = now - tail_after if partition.seals_quiet_tail else None
        tasks = [PartitionJob(partition, job) for job in partition.plan(quiet_before)]
        self._parts.queue.replace(partition.tp, tasks)
        quiet_at = partition.tail_due(tail_after)
        if quiet_at is None:
            return
        if quiet_at > now:
            self._look_later([partition.tp], max(1.0, quiet_at - now))
        elif not partition.seals_quiet_tail:
            self._parts.ticks.add_quiet(partition, tail_after)

    def _show(self) -> None:
        """Give the watermark index the current state."""
        confirmed_at = self._leadership.confirmed_at
        if confirmed_at is not None and self._index_read:
            self._parts.index.set_partitions(self._leadership.partitions.values(), min(confirmed_at, self._looked_at))

    def _measure(self) -> None:
        self._monitor.measure()
        self._next_measure = self._runtime.monotonic() + _MEASURE_INTERVAL
        if self._parts.health.ready and not self._is_settled:
            self._is_settled = not self._parts.queue.unfinished()
            if self._is_settled or not self._frozen:
                # Thousands of partitions hold long-lived objects: to scan these costs more than the polls do. Once more
                # when the work of the start is done, which replaces many of them.
                gc.freeze()
                self._frozen = True


class Monitor:
    """Reports the agent's own state: its metrics, its health, its status line, and its waits.

    The loop calls it; :meth:`waiting` is for any thread.
    """

    def __init__(self, components: Components) -> None:
        self.index_read = False
        """True once the former watermark index has been read, or the agent continues without it."""
        self._parts = components

    def measure(self) -> None:
        """Set the metrics that are computed over all partitions."""
        parts = self._parts
        parts.metrics.waiting.set(parts.queue.waiting())
        partitions, now = parts.leadership.partitions.values(), parts.runtime.monotonic()
        measure_lag(partitions, parts.waits(), parts.metrics, parts.runtime.time())
        ages = (partition.unstored_age(now) or 0.0 for partition in partitions)
        parts.metrics.oldest_unpacked.set(max(ages, default=0.0))
        stalled = parts.packs.stalled()
        parts.metrics.packs_stalled.set(stalled.seconds if stalled is not None else 0.0)
        if parts.source.has_whole_log:
            parts.metrics.stopped_partitions.labels("other_log").set(len(parts.leadership.parted()))
        parts.metrics.damaged_heads.set(sum(head.made_at is None for head in parts.packs.damaged()))
        parts.disk_faults.look()

    def turn(self) -> None:
        """Report the state to health and supervisor; log when trouble begins and when it is over."""
        parts = self._parts
        parts.health.unfinished(parts.queue.unfinished())
        if parts.poller.hangs(_BROKER_LIMIT):
            parts.leadership.silent(parts.poller.open_for())
        if not parts.health.ready:
            parts.health.waits_for = self._waits_for()
        trouble = parts.health.trouble()  # once: it looks at every partition
        if trouble:
            parts.repeats.failed("health", "unhealthy", "error", reason=trouble)
        else:
            parts.repeats.cleared("health", "healthy_again")
        parts.notifier.turned(ready=parts.health.ready, status=self._status(trouble))

    def waiting(self) -> dict[str, object]:
        """The waits of the agent as a whole, of log directories and of partitions, for ``/waiting``. For any thread."""
        unreadable = self._parts.leadership.unreadable
        return {
            "agent": self._waits_for(),
            "log_dirs": [{"path": str(path), "reason": reason} for path, reason in unreadable.items()],
            "partitions": [wait.to_json() for wait in self._parts.waits()],
        }

    def _status(self, trouble: str | None) -> str:
        wrong = trouble or self._parts.health.waits_for
        partitions, jobs = len(self._parts.leadership.partitions), self._parts.queue.unfinished()
        return f"{wrong or 'healthy'}; {partitions} partitions led, {jobs} jobs"

    def _waits_for(self) -> str | None:
        """The condition that is missing until the agent is ready."""
        if not self._parts.leadership.has_answer:
            return "the broker has not said yet which partitions it leads"
        failing = self._parts.index.failing()
        error = f": {failing.error}" if failing else ""
        if not self.index_read:
            return f"the watermark index that the agent wrote before has not been read yet{error}"
        return None if self._parts.index.has_written else f"the store has not taken the watermark index yet{error}"


def measure_lag(partitions: Iterable[LedPartition], waits: Collection[Wait], metrics: Metrics, now: float) -> None:
    """Set the metrics of the store's lag behind the broker and of gaps as of ``now``, in seconds since 1970.

    Only partitions that have a job or wait are measured in detail.
    """
    offsets = segments = size = gaps = gap_offsets = tiered = 0
    rotated = moved = now
    for partition in partitions:
        if partition.observation is not None:
            end = partition.observation.log_end or partition.observation.offsets.high_watermark
            offsets += max(0, end - max(partition.remote.log.next_offset, partition.packed.tail.end))
        if not partition.is_unsettled:
            continue
        stored = partition.remote.log
        held_up = [gap for gap in stored.gaps if not gap.in_remote_tier]
        gaps += len(held_up)
        gap_offsets += sum(gap.end - gap.start for gap in held_up)
        tiered += sum(gap.end - gap.start for gap in stored.gaps if gap.in_remote_tier)
        pending = partition.pending()
        segments += len(pending)
        size += sum(segment.size for segment in pending)
        if pending:
            rotated = min(rotated, pending[0].modified)
            watermark = stored.watermark
            moved = min(moved, watermark.written_at.timestamp() if watermark else pending[0].modified)
    metrics.lag_offsets.set(offsets)
    metrics.lag_segments.set(segments)
    metrics.lag_bytes.set(size)
    metrics.lag_seconds.set(now - rotated)
    metrics.watermark_age.set(now - moved)
    metrics.gaps.set(gaps)
    metrics.gap_offsets.set(gap_offsets)
    metrics.remote_tier_offsets.set(tiered)
    for kind in _STORABLE:
        seconds, overdue = oldest(waits, kind)
        metrics.unstored_age.labels(kind).set(seconds)
        metrics.overdue.labels(kind).set(overdue)


class LeaderQuestions:
    """The time of the next question who leads: regularly, soon after a hint, and once more after that.

    Times are seconds of the caller's clock. The first question is due at once.
    """

    def __init__(self) -> None:
        self.next_time = 0.0
        self._asked_at = -_HINT_SPACING
        self._hinted = 0  # questions that the last hint caused and that are not asked yet

    @property
    def is_hinted(self) -> bool:
        """True if the next question follows from a hint, so that the disks may have changed as well."""
        return self._hinted > 0

    def hint(self, now: float) -> None:
        """Make a question due soon, since the leadership may have changed."""
        self.next_time = min(self.next_time, max(now + _HINT_PAUSE, self._asked_at + _HINT_SPACING))
        self._hinted = 2

    def ask_now(self) -> None:
        """Make the next question due at once."""
        self.next_time = 0.0

    def asked(self, now: float, interval: float) -> None:
        """Note that the question was put. Without a hint, the next one follows after ``interval`` seconds."""
        self._hinted = max(0, self._hinted - 1)
        self._asked_at = now
        self.next_time = now + (min(interval, _SECOND_QUESTION) if self._hinted else interval)
