"""Maintains the head's entries that no pack replaces: entries that are sealed, and entries of other leaderships.

An entry of another leadership stays until ``offset.wm`` no longer lists it. Then the part of the tail that no seal has
is sealed on its own branch, since a log may return to that branch. The entry of a deleted topic id is sealed from its
packs, on the lineage and under the epoch that ``offset.wm`` has, since no leader will come to seal it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import structlog

from tidemark.backoff import Backoff
from tidemark.errors import TidemarkError
from tidemark.formats.keys import TopicPartition
from tidemark.formats.raw.head import EntryKey, HeadEntry
from uploader_agent.packing.packer import Packer
from uploader_agent.packs.broker_head import BrokerHead
from uploader_agent.packs.recovery import Abandoned
from uploader_agent.partitions.led_partition import LedPartition
from uploader_agent.runtime import Runtime

logger = structlog.get_logger(__name__)

LOOK_BACKOFF: Final = Backoff(15.0, 1800.0)
"""The pauses between two looks at the ``offset.wm`` of an entry: another leader may take hours to seal the tail."""


class Maintenance:
    """For the packer's thread. ``led`` returns the partitions of the packer's bucket that this broker leads now."""

    def __init__(
        self,
        packer: Packer,
        abandoned: Abandoned,
        led: Callable[[], Mapping[TopicPartition, LedPartition]],
        runtime: Runtime,
    ) -> None:
        self.of_other_leaderships: frozenset[TopicPartition] = frozenset()
        """The partitions of entries of other leaderships; for any thread."""
        self._packer = packer
        self._abandoned = abandoned
        self._led = led
        self._clock = runtime.monotonic
        self._pauses: dict[EntryKey, tuple[float, float]] = {}
        """The time of the next look at each entry, and the pause after it."""

    def maintain(self) -> None:
        """Make the head whole, and remove the entries that are sealed, once."""
        head, led = self._packer.head, self._led()
        try:
            head.check()
            if head.awaited:
                head.settle()
            else:
                head.make_whole()
            self.of_other_leaderships = frozenset(self._remove_sealed(head, led))
        except TidemarkError as error:
            logger.warning("head_not_kept", key=head.key, error=str(error))
        else:
            self._compare(head, led)
        for partition in led.values():
            self._packer.limit(partition)

    def _compare(self, head: BrokerHead, led: Mapping[TopicPartition, LedPartition]) -> None:
        """Correct the led partitions with a tail that does not end at the offset in ``head``."""
        keys = ((partition, partition.entry_key) for partition in led.values())
        self._packer.resume(
            (partition, head.entries.get(key))
            for partition, key in keys
            if not partition.packed.tail.agrees(head.entries.tail_end(key))
        )

    def end_pauses(self) -> None:
        """Cut the pauses of all entries short."""
        self._pauses = dict.fromkeys(self._pauses, (0.0, LOOK_BACKOFF.first))

    def _remove_sealed(self, head: BrokerHead, led: Mapping[TopicPartition, LedPartition]) -> set[TopicPartition]:
        """Remove the finished entries; return the partitions of other leaderships' entries that stay."""
        entries = head.entries.copy()
        ours = {partition.entry_key: partition for partition in led.values()}
        dropped = self._packer.drop_sealed(entries, (ours[key] for key in entries.keys() & ours.keys()))
        others = {key: entries[key] for key in entries if key not in ours}
        done = [key for key, entry in others.items() if self._is_done(head, key, entry)]
        for key in done:
            entries.remove(key)
            self._pauses.pop(key, None)
        if len(entries) < len(head.entries):
            head.put(entries)
            for partition in dropped:
                partition.packed.drop_own()
        return {TopicPartition(entry.topic, entry.partition) for key, entry in others.items() if key in entries}

    def _is_done(self, head: BrokerHead, key: EntryKey, entry: HeadEntry) -> bool:
        """True if the entry of another leadership may be removed; it is looked at with growing pauses."""
        now = self._clock()
        due, pause = self._pauses.setdefault(key, (now + LOOK_BACKOFF.first, LOOK_BACKOFF.first))
        if now < due:
            return False
        self._pauses[key] = now + pause, LOOK_BACKOFF.longer(pause)
        try:
            return self._abandoned.is_sealed(head, entry)
        except TidemarkError as error:
            tail = f"{entry.topic}-{entry.partition}, epoch {entry.epoch}"
            logger.warning("tail_not_sealed", tail=tail, error=f"{type(error).__name__}: {error}")
            return False
