"""The partitions that are this agent's to upload: led by its broker, chosen by its settings, found on its disks.

While the broker cannot be asked, what it led last stays, with high watermarks from its checkpoint: what lies below
them is committed whoever leads, and the watermark's leader epoch fences what somebody else has taken over.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable, Iterable
from pathlib import Path

import structlog

from tidemark.errors import FormatError
from tidemark.layout import TopicPartition
from uploader_agent.log_dirs import Inventory, find_partitions, topic_id_of
from uploader_agent.metadata import UNKNOWN_POLICY, BrokerUnavailable, Led, Metadata, Offsets, checkpointed_offsets
from uploader_agent.metrics import Metrics
from uploader_agent.partition import Context, LedPartition
from uploader_agent.repeats import Repeats

logger = structlog.get_logger(__name__)

_POLICY_AGE = 60.0
"""Seconds for which a topic's clean-up policy is believed."""


class Leadership:
    """Keeps :attr:`partitions` up to date; not thread-safe, the loop owns it."""

    def __init__(
        self,
        metadata: Metadata,
        log_dirs: Collection[Path],
        takes: Callable[[str], bool],
        context: Context,
        metrics: Metrics,
        repeats: Repeats,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.partitions: dict[TopicPartition, LedPartition] = {}
        self.seen = False
        self._metadata = metadata
        self._log_dirs = log_dirs
        self._takes = takes
        self._context = context
        self._metrics = metrics
        self._repeats = repeats
        self._clock = clock
        self._policies: dict[str, str] = {}
        self._policies_at = -float("inf")
        self._ignored: set[Path] = set()
        self._troubles: dict[Hashable, dict[str, object]] = {}
        self._raised: set[Hashable] = set()

    def refresh(self) -> set[TopicPartition]:
        """Ask the broker and look through the log directories; the partitions that were gained, lost or replaced."""
        self._raised.clear()
        inventory = find_partitions(self._log_dirs)
        self._complain_about(inventory)
        try:
            led = {at: led for at, led in self._metadata.led().items() if self._takes(at.topic)}
            self._refresh_policies({at.topic for at in led})
        except BrokerUnavailable as error:
            self._unreachable(error)
            led = {at: partition.led for at, partition in self.partitions.items() if self._takes(at.topic)}
        else:
            self.seen = True
            self._metrics.broker_reachable.set(1)
        before = dict(self.partitions)
        self.partitions = {
            at: self._keep_or_make(at, led[at], inventory.partitions[at]) for at in led if at in inventory.partitions
        }
        for at in led.keys() - inventory.partitions.keys():
            self._once(("no directory", at), "partition_not_on_disk", partition=str(at))
        self._drop_other_incarnations()
        self.refresh_offsets(self.partitions)
        self._metrics.led.set(len(self.partitions))
        self._clear_what_is_over()
        return {at for at in before.keys() | self.partitions.keys() if before.get(at) is not self.partitions.get(at)}

    def refresh_offsets(self, wanted: Iterable[TopicPartition]) -> None:
        """Ask for the offsets of some partitions again; what the broker no longer leads keeps what it had."""
        asked = {at: self.partitions[at].led for at in wanted if at in self.partitions}
        if not asked:
            return
        try:
            found = self._metadata.offsets(asked)
        except BrokerUnavailable as error:
            self._unreachable(error)
            found = self._from_checkpoints(asked)
        for at, offsets in found.items():
            self.partitions[at].offsets = offsets

    def _from_checkpoints(self, asked: dict[TopicPartition, Led]) -> dict[TopicPartition, Offsets]:
        try:
            found = checkpointed_offsets(self._log_dirs, asked)
        except FormatError as error:
            self._once("checkpoint", "checkpoint_unreadable", error=str(error))
            return {}
        older = {at: self.partitions[at].offsets for at in found}
        # A checkpoint lags: what the broker itself has said before is never taken back.
        return {
            at: new
            for at, new in found.items()
            if (old := older[at]) is None or new.high_watermark > old.high_watermark
        }

    def _keep_or_make(self, at: TopicPartition, led: Led, folder: Path) -> LedPartition:
        known = self.partitions.get(at)
        if known is None or known.led != led or known.folder != folder:
            known = LedPartition(at, led, folder, self._context)
        known.cleanup_policy = self._policies.get(at.topic, UNKNOWN_POLICY)
        return known

    def _drop_other_incarnations(self) -> None:
        """A directory that still belongs to a topic's former incarnation is about to be renamed by the broker."""
        for at, partition in list(self.partitions.items()):
            try:
                found = topic_id_of(partition.folder)
            except FormatError as error:
                self._once((partition.folder, "metadata"), "partition_metadata_unreadable", error=str(error))
                del self.partitions[at]
                continue
            if None not in {found, partition.led.topic_id} and found != partition.led.topic_id:
                del self.partitions[at]

    def _refresh_policies(self, topics: set[str]) -> None:
        if topics <= self._policies.keys() and self._clock() - self._policies_at < _POLICY_AGE:
            return
        self._policies = self._metadata.cleanup_policy(topics)
        self._policies_at = self._clock()

    def _unreachable(self, error: BrokerUnavailable) -> None:
        self._metrics.broker_reachable.set(0)
        self._once("broker", "broker_unavailable", error=str(error), instead="high watermarks from the checkpoint")

    def _complain_about(self, inventory: Inventory) -> None:
        for path in inventory.strangers:
            if path not in self._ignored:
                logger.info("directory_ignored", folder=str(path), rule="its name is no <topic>-<partition>")
        self._ignored = set(inventory.strangers)
        self._metrics.log_dirs_unreadable.set(len(inventory.unreadable))
        for path, reason in inventory.unreadable.items():
            self._once(("unreadable", path), "log_dir_unreadable", folder=str(path), error=reason)

    def _once(self, what: Hashable, event: str, **details: object) -> None:
        self._raised.add(what)
        self._troubles[what] = {"was": event, **{name: value for name, value in details.items() if name != "error"}}
        self._repeats.failed(("leadership", what), event, "warning", **details)

    def _clear_what_is_over(self) -> None:
        for what in self._troubles.keys() - self._raised:
            self._repeats.cleared(("leadership", what), "trouble_over", **self._troubles.pop(what))
