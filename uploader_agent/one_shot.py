"""Commands that run once: an upload of everything that is ready, and a survey. Their own thread asks the broker."""

from __future__ import annotations

from collections.abc import Iterable

import structlog

from tidemark.errors import BrokerError, TidemarkError
from tidemark.formats.keys import TopicPartition
from uploader_agent.components import Components
from uploader_agent.partitions.poller import Answer, LeadersAnswer
from uploader_agent.scheduling.workers import PartitionJob, is_local

logger = structlog.get_logger(__name__)

_STALLS = 3
"""Tries of the same jobs before an upload ends without them."""


class OneShot:
    """Runs a command on components that no loop runs."""

    def __init__(self, components: Components) -> None:
        self._parts = components
        self._leadership = components.leadership

    def upload(self, *, tails: bool = False) -> None:
        """Upload everything that is ready, write the index, and drain. A failure is in its partition's ``error``.

        With ``tails`` also seal committed records of active segments that are not quiet, up to the first look.
        """
        parts = self._parts
        parts.workers.start()
        before: dict[TopicPartition, list[PartitionJob]] = {}
        stalls = 0
        while stalls < _STALLS and not parts.stopping.is_set():
            parts.source.catch_up(parts.accepts_topic)
            self.refresh()
            if tails:
                self._seal_tails()
            planned = self._planned()
            if not planned and not self._fetch_from_tier():
                break
            stalls = stalls + 1 if planned == before else 0
            before = planned
            parts.queue.wait_idle()
            parts.packs.settle_awaited()
        if parts.settings.fill.enabled:
            parts.filler.turn(self._leadership.partitions)
        parts.drain()

    def _fetch_from_tier(self) -> bool:
        """Fetch a segment of each partition that only Kafka's own remote tier has; True if one was stored."""
        parts = self._parts
        if parts.tier_filler is None or not parts.settings.fill.fetches_remote_tier:
            return False
        try:
            return parts.tier_filler.turn() > 0
        except BrokerError as error:
            logger.warning("remote_tier_not_fetched", error=str(error))
            return False

    def survey(self) -> None:
        """Learn the state of every partition, and change nothing."""
        self.refresh()
        for partition in self._leadership.partitions.values():
            try:
                if partition.segments:
                    partition.uploader.learn()
            except (TidemarkError, OSError) as error:
                partition.failed(f"{type(error).__name__}: {error}", local=is_local(error))
        surveyed = [partition for partition in self._leadership.partitions.values() if partition.remote.log.surveyed]
        self._parts.packs.read_tails(partition for partition in surveyed if partition.uploader.tails)

    def refresh(self) -> None:
        """Look at all disks, and ask the broker about all partitions in this thread."""
        parts, leadership = self._parts, self._leadership
        parts.index.measure_clock()
        looked_at = parts.runtime.utc_now()
        leadership.look_at_disks()
        parts.open_buckets()
        parts.poller.ask_leaders(leadership.replicas.keys(), everything=parts.source.origin == "disk")
        self._judge(parts.poller.answer_all())
        for partition in leadership.partitions.values():
            partition.look()
        parts.poller.ask_offsets(leadership.ask(leadership.partitions))
        self._judge(parts.poller.answer_all())
        if leadership.confirmed_at is not None:
            parts.index.set_partitions(leadership.partitions.values(), min(leadership.confirmed_at, looked_at))

    def _judge(self, answers: Iterable[Answer]) -> None:
        for answer in answers:
            if isinstance(answer, LeadersAnswer):
                self._leadership.learn(answer)
            else:
                self._leadership.observe(answer)

    def _seal_tails(self) -> None:
        """Have each tail sealed up to the first known high watermark; records appended later are left."""
        for partition in self._leadership.partitions.values():
            if partition.packed.tail.seal_to is None and partition.offsets is not None:
                partition.packed.seal_up_to(partition.offsets.high_watermark)

    def _planned(self) -> dict[TopicPartition, list[PartitionJob]]:
        """Queue all planned jobs, and return them by partition."""
        parts, planned = self._parts, dict[TopicPartition, list[PartitionJob]]()
        quiet_before = parts.runtime.time() - parts.settings.tail_after.total_seconds()
        for tp, partition in self._leadership.partitions.items():
            tasks = [PartitionJob(partition, job) for job in partition.plan(quiet_before)]
            parts.queue.replace(tp, tasks)
            if tasks:
                planned[tp] = tasks
        return planned
