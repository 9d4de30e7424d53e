"""Maintains the head's entries that no pack replaces: of what is sealed, and of what this broker leads no more.

An entry of another leadership stays until ``offset.wm`` no longer lists it. Then the tail is sealed on its own branch,
as far as no seal has it: a log may return there. The entry of a topic id that was deleted is sealed from its packs, on
the lineage and under the epoch that ``offset.wm`` has, since no leader will come and do it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import structlog

from tidemark.errors import TidemarkError
from tidemark.formats.head import EntryKey, HeadEntry
from tidemark.formats.keys import TopicPartition
from uploader_agent.packing.packer import Packer
from uploader_agent.packs.abandoned import Abandoned
from uploader_agent.packs.broker_head import BrokerHead
from uploader_agent.partitions.led_partition import LedPartition
from uploader_agent.runtime import Runtime

logger = structlog.get_logger(__name__)

_FIRST_PAUSE, _LONGEST_PAUSE = 15.0, 1800.0
"""Seconds between two looks at the ``offset.wm`` of an entry: another leader may take hours to seal the tail."""


class HeadMaintenance:
    """For the packer's thread. ``led`` is what this broker leads now of the packer's bucket."""

    def __init__(
        self,
        packer: Packer,
        abandoned: Abandoned,
        led: Callable[[], Mapping[TopicPartition, LedPartition]],
        runtime: Runtime,
    ) -> None:
        self.left: frozenset[TopicPartition] = frozenset()
        """The partitions of entries of other leaderships; for any thread."""
        self._packer = packer
        self._abandoned = abandoned
        self._led = led
        self._clock = runtime.monotonic
        self._next: dict[EntryKey, tuple[float, float]] = {}
        """When an entry is looked at next, and the pause after that."""

    def look(self) -> None:
        """Look at the head, and at all its entries, once."""
        head, led = self._packer.head, self._led()
        try:
            head.check()
            head.make_whole()
            self.left = frozenset(self._look_at(head, led))
        except TidemarkError as error:
            logger.warning("head_not_kept", key=head.key, error=str(error))
        else:
            self._compare(head, led)
        for partition in led.values():
            self._packer.limit(partition)

    def _compare(self, head: BrokerHead, led: Mapping[TopicPartition, LedPartition]) -> None:
        """Have all led partitions end where ``head`` says."""
        for partition in led.values():
            key = partition.entry_key
            if not partition.packed.agrees(head.entries.tail_end(key)):
                self._packer.resume(partition, head.entries.get(key))

    def look_at_all_next(self) -> None:
        """Do not wait for the end of any entry's pause."""
        self._next = dict.fromkeys(self._next, (0.0, _FIRST_PAUSE))

    def _look_at(self, head: BrokerHead, led: Mapping[TopicPartition, LedPartition]) -> set[TopicPartition]:
        """The partitions of entries that stay, of other leaderships."""
        entries = head.entries.copy()
        ours = {one.entry_key: one for one in led.values()}
        dropped = self._packer.drop_sealed(entries, (ours[key] for key in entries.keys() & ours.keys()))
        others = {key: entries[key] for key in entries if key not in ours}
        done = [key for key, entry in others.items() if self._is_done(head, key, entry)]
        for key in done:
            entries.remove(key)
            self._next.pop(key, None)
        if len(entries) < len(head.entries):
            head.put(entries)
            for partition in dropped:
                partition.packed.drop_own()
        return {TopicPartition(one.topic, one.partition) for key, one in others.items() if key in entries}

    def _is_done(self, head: BrokerHead, key: EntryKey, entry: HeadEntry) -> bool:
        """Whether the entry of another leadership may go; it is looked at with growing pauses."""
        now = self._clock()
        due, pause = self._next.setdefault(key, (now + _FIRST_PAUSE, _FIRST_PAUSE))
        if now < due:
            return False
        self._next[key] = now + pause, min(2 * pause, _LONGEST_PAUSE)
        try:
            return self._abandoned.is_sealed(head, entry)
        except TidemarkError as error:
            tail = f"{entry.topic}-{entry.partition}, epoch {entry.epoch}"
            logger.warning("tail_not_sealed", tail=tail, error=f"{type(error).__name__}: {error}")
            return False
