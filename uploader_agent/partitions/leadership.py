"""The partitions that are this agent's to upload: led by its broker, chosen by its settings, found on its disks.

The poller asks, this module judges the answers. While the broker cannot be asked, what it led last stays, with high
watermarks from its checkpoint: what lies below them is committed whoever leads, and the watermark's leader epoch
fences what somebody else has taken over. Any broker may have answered, and one that lags tells of a former leadership:
an epoch below the highest that was ever seen is not believed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path

import structlog

from tidemark.errors import FormatError
from tidemark.formats.keys import TopicPartition
from tidemark.formats.watermark_index import IndexEntry
from uploader_agent.broker.admin import UNKNOWN_POLICY, BrokerUnavailable, Leader, Led, Offsets, checkpointed_offsets
from uploader_agent.disk.log_dirs import Disks, Inventory, topic_id_of
from uploader_agent.observability.log_dedup import ErrorDeduplicator
from uploader_agent.observability.metrics import Metrics
from uploader_agent.partitions.led_partition import Context, LedPartition
from uploader_agent.partitions.observation import Observation
from uploader_agent.partitions.poller import LeadersAnswer, OffsetsAnswer, Question

logger = structlog.get_logger(__name__)


class Leadership:
    """Keeps :attr:`partitions` up to date; not thread-safe, the loop owns it."""

    def __init__(
        self,
        log_dirs: Collection[Path],
        takes: Callable[[str], bool],
        context: Context,
        metrics: Metrics,
        repeats: ErrorDeduplicator,
    ) -> None:
        self.partitions: dict[TopicPartition, LedPartition] = {}
        self.replicas: dict[TopicPartition, Path] = {}
        """The directories of all partitions on this broker's disks that the settings choose, led or not."""
        self.seen = False
        self.confirmed_at: datetime | None = None
        """When the broker was last asked who leads, and answered."""
        self._log_dirs = log_dirs
        self._disks = Disks(log_dirs)
        self._takes = takes
        self._context = context
        self._metrics = metrics
        self._repeats = repeats
        self._leaders: Mapping[TopicPartition, Leader] = {}
        self._policies: Mapping[str, str] = {}
        self._judged: tuple[Mapping[TopicPartition, Leader], Mapping[str, str]] | None = None
        """The last answer, as long as the same one would change nothing."""
        self._highest: dict[tuple[TopicPartition, str | None], int] = {}
        self._former: Mapping[TopicPartition, IndexEntry] = {}
        self._questions = itertools.count()
        self._ignored: set[Path] = set()
        self._unreadable: set[Path] = set()

    def look_at_disks(self) -> bool:
        """Look through the log directories; whether a partition's directory came, went or moved."""
        inventory = self._disks.find()
        self._complain_about(inventory)
        topics = {at.topic for at in inventory.partitions}
        taken = {topic for topic in topics if self._takes(topic)}
        replicas = {at: path for at, path in inventory.partitions.items() if at.topic in taken}
        if replicas == self.replicas:
            return False
        self.replicas = replicas
        self._highest = {key: epoch for key, epoch in self._highest.items() if key[0] in replicas}
        self._judged = None
        return True

    def settle(self, former: Mapping[TopicPartition, IndexEntry]) -> None:
        """Take this broker's former watermark index at its word where it still holds."""
        self._former = {} if self.seen else former
        for at, partition in self.partitions.items():
            if at in former:
                partition.settle(former[at])

    def learn(self, answer: LeadersAnswer) -> set[TopicPartition]:
        """The partitions that were gained, lost or replaced by what the broker says now."""
        self._metrics.metadata_seconds.observe(answer.seconds)
        if answer.error is not None:
            self._unreachable(answer.error)
        else:
            self.seen, self.confirmed_at = True, answer.asked_at
            self._over("broker", was="broker_unavailable")
            self._metrics.broker_reachable.set(1)
            if self._judged == (answer.leaders, answer.policies):
                return set()
            self._judged = answer.leaders, answer.policies
            self._leaders, self._policies = self._believed(answer.leaders), answer.policies
        before = self.partitions
        self.partitions = {}
        for at, (broker, led) in self._leaders.items():
            if broker == self._context.broker and at in self.replicas:
                partition = self._keep_or_make(before.get(at), at, led)
                if partition is not None:
                    self.partitions[at] = partition
                else:
                    self._judged = None
        if self.seen:
            self._former = {}
        self._metrics.led.set(len(self.partitions))
        return {at for at in before.keys() | self.partitions.keys() if before.get(at) is not self.partitions.get(at)}

    def ask(self, wanted: Iterable[TopicPartition]) -> dict[TopicPartition, Question]:
        """The questions for the offsets of ``wanted``, each with what its disk showed last."""
        asked = {at: self.partitions[at] for at in wanted if at in self.partitions}
        number = next(self._questions)
        return {at: Question(number, partition, partition.disk.tail) for at, partition in asked.items()}

    def observe(self, answer: OffsetsAnswer) -> set[TopicPartition]:
        """Take over the offsets; the partitions of which something else is known now.

        An answer counts for the leadership that it was asked under, and only if no later question has an answer.
        """
        asked = {at: question for at, question in answer.asked.items() if self._is_ours(question)}
        if answer.error is not None:
            self._unreachable(answer.error)
            for question in asked.values():
                question.partition.unanswered(question.number)
            return self.fall_back(asked)
        changed: set[TopicPartition] = set()
        for at, question in asked.items():
            partition, offsets = question.partition, answer.offsets.get(at)
            if offsets is None:
                logger.debug("question_not_answered", partition=str(at), leadership=partition.led)
                partition.unanswered(question.number)
                continue
            before = partition.observation
            told = Observation(offsets, answer.asked_at, question.tail, answer.active.get(at))
            if not partition.observe(told, question.number):
                logger.debug("late_answer_dropped", partition=str(at), offsets=offsets)
            elif before is None or (before.offsets, before.log_end) != (offsets, told.log_end):
                changed.add(at)
        return changed

    def _is_ours(self, question: Question) -> bool:
        """Whether the leadership that ``question`` was asked under is the one of now."""
        at = question.partition.at
        if self.partitions.get(at) is question.partition:
            return True
        logger.debug("foreign_answer_dropped", partition=str(at), leadership=question.partition.led)
        return False

    def waiting(self, wanted: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Those of ``wanted`` that have a rotated segment beyond the high watermark, as far as that is known."""
        known = ((at, self.partitions.get(at)) for at in wanted)
        return [at for at, partition in known if partition is not None and partition.waits_for_high_watermark()]

    def silent(self, seconds: float) -> None:
        """The broker has not answered a question for so long."""
        self._unreachable(BrokerUnavailable(f"a question to the broker has been without an answer for {seconds:.0f} s"))

    def undecided(self) -> Iterator[tuple[TopicPartition, str]]:
        """The partitions on this broker's disks of which nobody is known to lead them as they lie there, and why."""
        leaders, led = self._leaders, self.partitions
        for at in self.replicas:
            leader = leaders.get(at)
            if leader is None:
                yield at, "the broker has not said who leads it"
            elif leader.broker < 0:
                yield at, "nobody leads it"
            elif leader.broker == self._context.broker and at not in led:
                yield at, "its directory is another topic's of this name, which was deleted, or cannot be read"

    def fall_back(self, wanted: Collection[TopicPartition]) -> set[TopicPartition]:
        """The broker says nothing: take its checkpoints' word. The partitions of which it says something new."""
        found = self._checkpointed(wanted)
        for at, offsets in found.items():
            self.partitions[at].fall_back(offsets)
        return {*found}

    def _checkpointed(self, wanted: Collection[TopicPartition]) -> dict[TopicPartition, Offsets]:
        """High watermarks from the broker's checkpoints, where they are higher than what it has said itself."""
        try:
            folders = {at: self.partitions[at].folder for at in wanted if at in self.partitions}
            found = checkpointed_offsets(self._log_dirs, folders)
        except FormatError as error:
            self._trouble("checkpoint", "checkpoint_unreadable", error=str(error))
            return {}
        self._over("checkpoint", was="checkpoint_unreadable")
        return {at: new for at, new in found.items() if self._counts(self.partitions[at], new)}

    def _counts(self, partition: LedPartition, checkpointed: Offsets) -> bool:
        """Whether a checkpoint says more than is known: it lags, and what the broker has said is never taken back.

        It goes by name: where the directory is another topic's by now, it may be about that one.
        """
        known = partition.offsets
        if known is not None and checkpointed.high_watermark <= known.high_watermark:
            return False
        return self._belongs(partition.folder, partition.led)

    def _believed(self, leaders: Mapping[TopicPartition, Leader]) -> dict[TopicPartition, Leader]:
        believed: dict[TopicPartition, Leader] = {}
        for at, leader in leaders.items():
            key = at, leader.led.topic_id
            highest = self._highest.get(key, -1)
            known = self._leaders.get(at)
            if known is not None and self._is_past(at, leader.led, known.led):
                logger.debug("deleted_topic_ignored", partition=str(at), said=leader.led, known=known.led)
                believed[at] = known
            elif leader.led.leader_epoch >= highest:
                self._highest[key] = leader.led.leader_epoch
                believed[at] = leader
            else:
                logger.info("lower_epoch_ignored", partition=str(at), said=leader.led.leader_epoch, highest=highest)
                if known is not None:
                    believed[at] = known
        return believed

    def _is_past(self, at: TopicPartition, said: Led, known: Led) -> bool:
        """Whether ``said`` is of a topic that was deleted, and ``known`` of its re-creation, which the disk has."""
        if said.topic_id == known.topic_id or (at, said.topic_id) not in self._highest or at not in self.replicas:
            return False
        folder = self.replicas[at]
        return self._belongs(folder, known) and not self._belongs(folder, said)

    def _keep_or_make(self, known: LedPartition | None, at: TopicPartition, led: Led) -> LedPartition | None:
        folder = self.replicas[at]
        if known is None or known.led != led or known.folder != folder:
            if not self._belongs(folder, led):
                return None
            known = LedPartition(at, led, folder, self._context)
            if at in self._former:
                known.settle(self._former[at])
        known.cleanup_policy = self._policies.get(at.topic, UNKNOWN_POLICY)
        return known

    def _belongs(self, folder: Path, led: Led) -> bool:
        """A directory that still belongs to a topic's former incarnation is about to be renamed by the broker."""
        try:
            found = topic_id_of(folder)
        except FormatError as error:
            self._trouble(folder, "partition_metadata_unreadable", folder=str(folder), error=str(error))
            return False
        self._over(folder, was="partition_metadata_unreadable", folder=str(folder))
        return found == led.topic_id or None in {found, led.topic_id}

    def _unreachable(self, error: BrokerUnavailable) -> None:
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
        for path in self._unreadable - inventory.unreadable.keys():
            self._over(path, was="log_dir_unreadable", folder=str(path))
        self._unreadable = set(inventory.unreadable)

    def _trouble(self, what: Hashable, event: str, **details: object) -> None:
        self._repeats.failed(("leadership", what), event, "warning", **details)

    def _over(self, what: Hashable, **details: object) -> None:
        self._repeats.cleared(("leadership", what), "trouble_over", **details)
