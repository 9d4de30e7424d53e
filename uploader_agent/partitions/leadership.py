"""The partitions that the agent uploads: led by its broker, chosen by its settings, found on its disks.

The poller asks, and this module judges the answers. While the broker cannot be asked, the last known leadership stays,
with high watermarks from the broker's checkpoint. Data below them is committed under any leader, and the leader epoch
in ``offset.wm`` fences partitions that another broker has taken over. Any broker may have answered, and one that lags
reports a former leadership: an epoch below the highest one seen is ignored, unless it stays for
:data:`_LOWER_EPOCH_SECONDS`.

:class:`DiskFaults` has what cannot be read of the disks, and since when: for health, metrics, the index and people. A
log directory counts at once. A partition counts after :data:`PATIENCE`, since its directory comes, moves and goes with
topics, disks and replicas, a moment before or after the metadata says so.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Final

import structlog

from tidemark.errors import FormatError
from tidemark.formats.keys import TopicPartition
from tidemark.formats.raw.watermark_index import DiskFault, IndexEntry
from uploader_agent.broker.admin import BrokerUnavailable, Cleanup, Leader, Led, Offsets, checkpointed_offsets
from uploader_agent.disk.log_dirs import Disks, Inventory, LogDirs, topic_id_of
from uploader_agent.observability.health import Failing
from uploader_agent.observability.log_config import ErrorDeduplicator
from uploader_agent.observability.metrics import Metrics
from uploader_agent.partitions.led_partition import LedPartition
from uploader_agent.partitions.local_log import Observation
from uploader_agent.partitions.partition_uploader import Context
from uploader_agent.partitions.poller import LeadersAnswer, OffsetsAnswer, Question
from uploader_agent.runtime import MACHINE, Runtime

logger = structlog.get_logger(__name__)

_NOT_ITS_OWN = "its directory is another topic's of this name, which was deleted, or cannot be read"

_LOWER_EPOCH_SECONDS = 60.0
"""Seconds without another answer after which a lower epoch counts. A broker applies metadata within milliseconds."""


class Leadership:
    """Keeps :attr:`partitions` up to date; not thread-safe, the loop owns it."""

    def __init__(
        self,
        log_dirs: LogDirs,
        accepts_topic: Callable[[str], bool],
        freshness_of: Callable[[str], float | None],
        context: Context,
        metrics: Metrics,
        repeats: ErrorDeduplicator,
    ) -> None:
        self.partitions: dict[TopicPartition, LedPartition] = {}
        self.replicas: dict[TopicPartition, Path] = {}
        """The directories of all partitions on this broker's disks that the settings choose, led or not."""
        self.has_answer = False
        """True once the broker has answered a question about leaders."""
        self.confirmed_at: datetime | None = None
        """The time of the last question about leaders that the broker answered."""
        self.unreachable: str | None = None
        """The reason that the broker has not answered the last question; None if it has."""
        self._unreachable_since = 0.0
        self.log_dirs = log_dirs
        self.unreadable: Mapping[Path, str] = {}
        """The log directories that could not be read at the last look, with the reason."""
        self.absent: Mapping[TopicPartition, str] = {}
        """The partitions that this broker leads by the last answer about everything, without a log that can be read."""
        self.unconfirmed: frozenset[TopicPartition] = frozenset()
        """Those that the answer before did not name: it may have been an old one, of a topic that is deleted."""
        self._disks = Disks(log_dirs)
        self._accepts_topic = accepts_topic
        self._freshness_of = freshness_of
        self._context = context
        self._metrics = metrics
        self._repeats = repeats
        self._leaders: Mapping[TopicPartition, Leader] = {}
        self._cleanup: Mapping[str, Cleanup] = {}
        self._asked: frozenset[TopicPartition] = frozenset()
        """The partitions in the last question that the broker answered."""
        self._judged: tuple[Mapping[TopicPartition, Leader], Mapping[str, Cleanup]] | None = None
        """The last answer, while the same answer would change nothing."""
        self._highest: dict[tuple[TopicPartition, str | None], int] = {}
        self._lower: dict[tuple[TopicPartition, str | None], tuple[int, float]] = {}
        """Epochs below the highest one, and since when nothing else was answered."""
        self._former: Mapping[TopicPartition, IndexEntry] = {}
        self._questions = itertools.count()
        self._ignored: set[Path] = set()
        self._confirmed: frozenset[TopicPartition] = frozenset()
        """The partitions that the broker led at its last answer although their logs part from what is stored."""
        self._was_away = False
        """True if the broker has not answered since it was last asked about leaders."""

    def look_at_disks(self) -> bool:
        """Look through the log directories; return True if a partition's directory was added, removed or moved."""
        inventory = self._disks.find()
        self._complain_about(inventory)
        topics = {tp.topic for tp in inventory.partitions}
        accepted = {topic for topic in topics if self._accepts_topic(topic)}
        replicas = {tp: path for tp, path in inventory.partitions.items() if tp.topic in accepted}
        if replicas == self.replicas:
            return False
        self.replicas = replicas
        self._highest = {key: epoch for key, epoch in self._highest.items() if key[0] in replicas}
        self._judged = None
        return True

    def trust_index(self, former: Mapping[TopicPartition, IndexEntry]) -> None:
        """Trust this broker's former watermark index where it is still valid."""
        self._former = {} if self.has_answer else former
        for tp, partition in self.partitions.items():
            if tp in former:
                partition.trust_index(former[tp])

    def learn(self, answer: LeadersAnswer) -> set[TopicPartition]:
        """Apply the broker's answer, and return the partitions that were gained, lost or replaced."""
        self._metrics.metadata_seconds.observe(answer.seconds)
        if answer.error is not None:
            self._unreachable(answer.error)
        else:
            self.has_answer, self.confirmed_at, self._asked = True, answer.asked_at, answer.wanted
            self.unreachable = None
            self._over("broker", was="broker_unavailable")
            self._metrics.broker_reachable.set(1)
            if answer.everything:
                named = self.absent.keys()
                self.absent = {tp: self._why_absent(tp) for tp in self.led_elsewhere(answer)}
                self.unconfirmed = frozenset(self.absent.keys() - named)
            self._may_be_another(answer.asked_at)
            if self._judged == (answer.leaders, answer.cleanup):
                return set()
            self._judged = answer.leaders, answer.cleanup
            believed = self._believed(answer.leaders)
            self._leaders = {tp: leader for tp, leader in believed.items() if _tells_clean_up(answer, tp)}
            self._cleanup = answer.cleanup
            if believed.keys() & self.replicas.keys() - self._leaders.keys():
                self._judged = None
        before, now = self.partitions, dict[TopicPartition, LedPartition]()
        for tp, leader in self._leaders.items():
            if leader.broker == self._context.broker and tp in self.replicas:
                partition = self._keep_or_make(before.get(tp), tp, leader)
                if partition is not None:
                    now[tp] = partition
                else:
                    self._judged = None
        self.partitions = now
        self.absent = {tp: why for tp, why in self.absent.items() if tp not in self.replicas}  # whoever leads it now
        if self.has_answer:
            self._former = {}
        self._metrics.led.set(len(self.partitions))
        return {tp for tp in before.keys() | now.keys() if before.get(tp) is not now.get(tp)}

    def led_elsewhere(self, answer: LeadersAnswer) -> set[TopicPartition]:
        """The partitions that this broker leads by ``answer``, and that no log directory has at the last look."""
        return {
            tp
            for tp, leader in answer.leaders.items()
            if leader.broker == self._context.broker and tp not in self.replicas and self._accepts_topic(tp.topic)
        }

    def unread(self) -> dict[TopicPartition, str]:
        """The partitions that this broker leads and whose log the agent cannot read, and the reason. For any thread."""
        unread = dict(self.absent)
        for tp, leader in self._leaders.items():
            if leader.broker == self._context.broker and tp in self.replicas and tp not in self.partitions:
                unread[tp] = _NOT_ITS_OWN
        for tp, partition in self.partitions.items():
            if partition.fault is not None:
                unread[tp] = partition.fault
            elif self._context.source.origin == "disk" and not partition.disk.listing.segments:
                unread[tp] = f"{partition.folder} is gone, or has no segment"
        return unread

    def _why_absent(self, tp: TopicPartition) -> str:
        where = ", ".join(map(str, self.log_dirs.named))
        if self.unreadable:
            away = ", ".join(map(str, self.unreadable))
            return f"this broker leads it, and of {where} those that can be read do not have it: not {away}"
        return f"this broker leads it, and none of {where} has it: see log.dirs in the broker's own file"

    def _may_be_another(self, asked_at: datetime) -> None:
        """Have all logs compared with what is stored, if the broker answers again: its disks may be restored ones."""
        for partition in self.partitions.values():
            if self._was_away and partition.remote.log.known:
                partition.uploader.doubt()
            partition.confirm_parting(asked_at)
        self._was_away = False
        self._confirmed = frozenset(tp for tp, one in self.partitions.items() if one.is_parting_confirmed)

    def apply_freshness(self) -> None:
        """Apply changed settings of freshness."""
        for tp, partition in self.partitions.items():
            partition.apply_freshness(self._freshness_of(tp.topic))

    def is_deleted(self, tp: TopicPartition, topic_id: str) -> bool:
        """True if the cluster no longer has this incarnation of the topic, by the last answer. For any thread."""
        if tp not in self._asked:
            return False
        leader = self._leaders.get(tp)
        return leader is None or leader.led.topic_id not in {None, topic_id}

    def ask(self, wanted: Iterable[TopicPartition]) -> dict[TopicPartition, Question]:
        """The questions for the offsets of ``wanted``, each with the last look at its disk."""
        asked = {tp: self.partitions[tp] for tp in wanted if tp in self.partitions}
        number = next(self._questions)
        return {tp: Question(number, led, led.disk.tail, led.looked_at) for tp, led in asked.items()}

    def observe(self, answer: OffsetsAnswer) -> set[TopicPartition]:
        """Apply the offsets, and return the partitions with a changed state.

        An answer counts only for the leadership under which it was asked, and only if no later question has an answer.
        """
        asked = {tp: question for tp, question in answer.asked.items() if self._is_ours(question)}
        if answer.error is not None:
            self._unreachable(answer.error)
            for question in asked.values():
                question.partition.unanswered(question.number)
            return self.fall_back(asked)
        changed: set[TopicPartition] = set()
        for tp, question in asked.items():
            partition, offsets = question.partition, answer.offsets.get(tp)
            if offsets is None:
                logger.debug("question_not_answered", partition=str(tp), leadership=partition.led)
                partition.unanswered(question.number)
                continue
            before = partition.observation
            observation = Observation(offsets, answer.asked_at, question.tail, answer.active.get(tp))
            if not partition.observe(observation, question.number):
                logger.debug("late_answer_dropped", partition=str(tp), offsets=offsets)
                continue
            if observation.log_end is not None and partition.freshness is not None:
                partition.ages.note(question.looked_at, observation.log_end)
            if before is None or (before.offsets, before.log_end) != (offsets, observation.log_end):
                changed.add(tp)
        return changed

    def _is_ours(self, question: Question) -> bool:
        """True if the leadership under which ``question`` was asked is still the current one."""
        tp = question.partition.tp
        if self.partitions.get(tp) is question.partition:
            return True
        logger.debug("foreign_answer_dropped", partition=str(tp), leadership=question.partition.led)
        return False

    def waiting(self, wanted: Iterable[TopicPartition]) -> list[TopicPartition]:
        """The partitions in ``wanted`` with a rotated segment beyond the known high watermark."""
        known = ((tp, self.partitions.get(tp)) for tp in wanted)
        return [tp for tp, partition in known if partition is not None and partition.waits_for_high_watermark()]

    def silent(self, seconds: float) -> None:
        """Note that the broker has not answered a question for ``seconds``."""
        self._unreachable(BrokerUnavailable(f"a question to the broker has been without an answer for {seconds:.0f} s"))

    def failing(self) -> Failing | None:
        """The failure of the broker while it answers nothing. For any thread."""
        error = self.unreachable
        if error is None:
            return None
        seconds = self._context.runtime.monotonic() - self._unreachable_since
        return Failing(seconds, f"the broker has answered nothing but errors for {seconds:.0f} s: {error}", error)

    def parted(self) -> list[LedPartition]:
        """The partitions with a log that is certain to be another history than the stored one. For any thread."""
        # Each turn of the loop asks, and to look at thousands of partitions took half of an idle agent's time.
        may_have = {*self._confirmed, *(tp for tp, _ in self._context.source.partings)}
        found = (self.partitions.get(tp) for tp in may_have)
        return [partition for partition in found if partition is not None and partition.parting is not None]

    def other_histories(self) -> str | None:
        """What :meth:`parted` names, in words; None without any. For any thread."""
        parted = self.parted()
        if not parted:
            return None
        first = min(parted, key=lambda partition: partition.tp)
        others = f"; and of {len(parted) - 1} more partitions" if len(parted) > 1 else ""
        return f"nothing is stored of {first.tp}: {first.parting}{others}"

    def undecided(self) -> Iterator[tuple[TopicPartition, str]]:
        """The partitions on this broker's disks without a usable leader, and the reason."""
        leaders, led = self._leaders, self.partitions
        for tp in self.replicas:
            leader = leaders.get(tp)
            if leader is None and self.unreachable is not None:
                yield tp, f"the broker has not said who leads it: {self.unreachable}"
            elif leader is None and tp in self._asked:
                yield (
                    tp,
                    "the cluster has no such partition: if its topic was deleted, the broker removes the directory",
                )
            elif leader is None:
                yield tp, "the broker has not said who leads it"
            elif leader.broker < 0:
                yield tp, "nobody leads it"
            elif leader.broker == self._context.broker and tp not in led:
                yield tp, _NOT_ITS_OWN

    def fall_back(self, wanted: Collection[TopicPartition]) -> set[TopicPartition]:
        """Use the broker's checkpoints, since it does not answer. Return the partitions that they advance."""
        checkpointed = self._checkpointed(wanted)
        for tp, offsets in checkpointed.items():
            self.partitions[tp].fall_back(offsets)
        return {*checkpointed}

    def _checkpointed(self, wanted: Collection[TopicPartition]) -> dict[TopicPartition, Offsets]:
        """High watermarks from the broker's checkpoints, where they are higher than its answers."""
        failures: list[FormatError] = []
        folders = {tp: self.partitions[tp].folder for tp in wanted if tp in self.partitions}
        checkpointed = checkpointed_offsets(self.log_dirs, folders, failures.append)
        for error in failures:
            self._trouble("checkpoint", "checkpoint_unreadable", error=str(error))
        if not failures:
            self._over("checkpoint", was="checkpoint_unreadable")
        return {tp: new for tp, new in checkpointed.items() if self._counts(self.partitions[tp], new)}

    def _counts(self, partition: LedPartition, checkpointed: Offsets) -> bool:
        """True if a checkpoint is ahead of the known offsets. An answer of the broker is never taken back.

        A checkpoint names the topic without its id: if the directory now belongs to another incarnation, the checkpoint
        may be about that one.
        """
        known = partition.offsets
        if known is not None and checkpointed.high_watermark <= known.high_watermark:
            return False
        return self._belongs(partition.folder, partition.led)

    def _believed(self, leaders: Mapping[TopicPartition, Leader]) -> dict[TopicPartition, Leader]:
        believed: dict[TopicPartition, Leader] = {}
        for tp, leader in leaders.items():
            key = tp, leader.led.topic_id
            highest = self._highest.get(key, -1)
            known = self._leaders.get(tp)
            if known is not None and self._is_past(tp, leader.led, known.led):
                logger.debug("deleted_topic_ignored", partition=str(tp), said=leader.led, known=known.led)
                believed[tp] = known
            elif leader.led.leader_epoch >= highest or self._is_lasting(key, leader.led):
                self._highest[key] = leader.led.leader_epoch
                self._lower.pop(key, None)
                believed[tp] = leader
            else:
                logger.info("lower_epoch_ignored", partition=str(tp), said=leader.led.leader_epoch, highest=highest)
                self._judged = None  # the same answer counts once it stays
                if known is not None:
                    believed[tp] = known
        return believed

    def _is_lasting(self, key: tuple[TopicPartition, str | None], led: Led) -> bool:
        """True if nothing but this epoch was answered for long: the metadata were restored, and no broker lags."""
        now = self._context.runtime.monotonic()
        lowest, since = self._lower.get(key, (led.leader_epoch, now))
        self._lower[key] = led.leader_epoch, since if lowest <= led.leader_epoch else now
        if now - since < _LOWER_EPOCH_SECONDS or lowest > led.leader_epoch:
            return False
        logger.error("leader_epoch_went_back", partition=str(key[0]), said=led.leader_epoch, before=self._highest[key])
        return True

    def _is_past(self, tp: TopicPartition, answer: Led, known: Led) -> bool:
        """True if ``answer`` is of a topic that was deleted, and ``known`` of its re-creation, which the disk has."""
        if answer.topic_id == known.topic_id or (tp, answer.topic_id) not in self._highest or tp not in self.replicas:
            return False
        folder = self.replicas[tp]
        return self._belongs(folder, known) and not self._belongs(folder, answer)

    def _keep_or_make(self, partition: LedPartition | None, tp: TopicPartition, leader: Leader) -> LedPartition | None:
        folder, led = self.replicas[tp], leader.led
        if partition is None or partition.led != led or partition.folder != folder:
            if not self._belongs(folder, led):
                return None
            partition = LedPartition(tp, led, folder, self._context)
            partition.apply_freshness(self._freshness_of(tp.topic))
            if tp in self._former:
                partition.trust_index(self._former[tp])
        partition.local.apply_metadata(leader.replicas, self._cleanup.get(tp.topic, Cleanup()))
        return partition

    def _belongs(self, folder: Path, led: Led) -> bool:
        """True unless the directory belongs to another incarnation, which the broker is about to rename."""
        try:
            topic_id = topic_id_of(folder)
        except (FormatError, OSError) as error:
            self._trouble(folder, "partition_metadata_unreadable", folder=str(folder), error=str(error))
            return False
        self._over(folder, was="partition_metadata_unreadable", folder=str(folder))
        return topic_id == led.topic_id or None in {topic_id, led.topic_id}

    def _unreachable(self, error: BrokerUnavailable) -> None:
        if self.unreachable is None:
            self._unreachable_since = self._context.runtime.monotonic()
        self.unreachable = str(error)
        self._was_away = True
        self._metrics.broker_reachable.set(0)
        self._trouble("broker", "broker_unavailable", error=str(error), instead="high watermarks from the checkpoint")

    def _complain_about(self, inventory: Inventory) -> None:
        for path in inventory.strangers:
            if path not in self._ignored:
                logger.info("directory_ignored", folder=str(path), rule="its name is no <topic>-<partition>")
        for path in set(inventory.links) - self._ignored:
            logger.warning("link_ignored", path=str(path), rule="no link is followed in a log directory")
        self._ignored = {*inventory.strangers, *inventory.links}
        self._metrics.log_dirs_unreadable.set(len(inventory.unreadable))
        for path, reason in inventory.unreadable.items():
            self._trouble(path, "log_dir_unreadable", folder=str(path), error=reason)
        for path in self.unreadable.keys() - inventory.unreadable.keys():
            self._over(path, was="log_dir_unreadable", folder=str(path))
        self.unreadable = inventory.unreadable

    def _trouble(self, subject: Hashable, event: str, **details: object) -> None:
        self._repeats.failed(("leadership", subject), event, "warning", **details)

    def _over(self, subject: Hashable, **details: object) -> None:
        self._repeats.cleared(("leadership", subject), "trouble_over", **details)


def _tells_clean_up(answer: LeadersAnswer, tp: TopicPartition) -> bool:
    """False if ``answer`` names a partition without having been asked about it, and without its topic's clean-up.

    Its directory may have appeared meanwhile. A manifest without the policy would have readers take what compaction has
    removed for lost, so such a partition is led from the next answer on.
    """
    return not answer.everything or tp in answer.wanted or tp.topic in answer.cleanup


PATIENCE: Final = 20.0
"""Seconds for which a partition's log must be unreadable before that counts."""

_NAMED = 5
"""Most partitions that a line names."""


class DiskFaults:
    """Collects the faults. The loop looks, any thread reads."""

    def __init__(
        self, leadership: Leadership, metrics: Metrics, repeats: ErrorDeduplicator, runtime: Runtime = MACHINE
    ) -> None:
        self.current: tuple[DiskFault, ...] = ()
        """The faults at the last look, log directories first. It is replaced as a whole."""
        self._leadership = leadership
        self._metrics = metrics
        self._repeats = repeats
        self._runtime = runtime
        self._since: dict[Path | TopicPartition, tuple[float, datetime]] = {}
        """When each was found first, by both clocks."""

    def look(self) -> None:
        """Find what cannot be read now."""
        leadership, before, now = self._leadership, self._since, self._runtime.monotonic()
        found: dict[Path | TopicPartition, str] = dict(leadership.unreadable.items())
        found |= dict[Path | TopicPartition, str](leadership.unread().items())
        patient: set[Path | TopicPartition] = {what for what in found if isinstance(what, TopicPartition)}
        if leadership.log_dirs.problem is not None:
            file, rule = leadership.log_dirs.problem
            found[file] = rule
            patient.add(file)  # it may just be written
        new = now, self._runtime.utc_now()
        self._since = {what: before.get(what, new) for what in found}
        lasting = {what for what in patient if now - self._since[what][0] >= PATIENCE} - leadership.unconfirmed
        told = {what: rule for what, rule in found.items() if what not in patient or what in lasting}
        self.current = tuple(self._fault(what, told[what]) for what in sorted(told, key=_order))
        self._report({what: rule for what, rule in told.items() if isinstance(what, TopicPartition)})

    def trouble(self) -> str | None:
        """The faults in words; None without any."""
        faults = self.current
        if not faults:
            return None
        more = f"; and {len(faults) - 1} more, which /waiting names" if len(faults) > 1 else ""
        return f"{described(faults[0])}{more}"

    def _fault(self, what: Path | TopicPartition, rule: str) -> DiskFault:
        found_at = self._since[what][1]
        if isinstance(what, Path):
            return DiskFault(path=str(what), rule=rule, found_at=found_at)
        return DiskFault(topic=what.topic, partition=what.partition, rule=rule, found_at=found_at)

    def _report(self, unread: dict[TopicPartition, str]) -> None:
        self._metrics.logs_unreadable.set(len(unread))
        if not unread:
            self._repeats.cleared("unread", "logs_readable_again")
            return
        named = [f"{tp}: {unread[tp]}" for tp in sorted(unread)[:_NAMED]]
        self._repeats.failed("unread", "logs_unreadable", "error", partitions=len(unread), such_as=named)


def described(fault: DiskFault) -> str:
    """One fault in words."""
    if fault.path is not None:
        return f"{fault.path} cannot be read: {fault.rule}"
    return f"the log of {fault.topic}-{fault.partition} cannot be read: {fault.rule}"


def _order(what: Path | TopicPartition) -> tuple[bool, str, int]:
    if isinstance(what, TopicPartition):
        return True, what.topic, what.partition
    return False, str(what), 0
