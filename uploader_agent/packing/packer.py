"""One tick of a bucket: claims, packs and the head, for the partitions that have new batches.

Promises: a pack is created once under a random name. The head names it only when it is stored, and is replaced by
If-Match. What a failed tick has packed counts for nothing, and the next tick packs the same or newer batches.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import partial

import structlog

from tidemark.formats.head import MOST_ENTRY_BYTES, HeadEntry
from tidemark.formats.keys import TopicPartition
from tidemark.formats.pack import (
    MOST_UNSEALED_AGE,
    MOST_UNSEALED_BYTES,
    MOST_UNSEALED_RANGES,
    RangeContent,
    WrittenRange,
)
from tidemark.formats.watermark import MOST_TAILS
from tidemark.raw.packs import MOST_CHAIN
from uploader_agent.observability.metrics import Metrics
from uploader_agent.packing.backlog import Backlog
from uploader_agent.packing.joining import join, read_heads
from uploader_agent.packing.partition_tick import Added, PartitionTick
from uploader_agent.packs.broker_head import BrokerHead
from uploader_agent.packs.head_entries import HeadEntries
from uploader_agent.packs.pack_writer import Packs
from uploader_agent.packs.reading import LARGEST_RANGE, Batches, NotPackable
from uploader_agent.packs.slots import run_all
from uploader_agent.partitions.led_partition import LedPartition
from uploader_agent.runtime import Runtime
from uploader_agent.scheduling.retry import Failures

logger = structlog.get_logger(__name__)


class Packer:
    """For one thread, and one bucket. ``revisit`` is told of a partition that is to be planned again."""

    def __init__(
        self,
        broker: int,
        head: BrokerHead,
        failures: Failures,
        revisit: Callable[[LedPartition], None],
        metrics: Metrics,
        runtime: Runtime,
    ) -> None:
        self.head = head
        self.backlog = Backlog(head.name, runtime)
        self._broker = broker
        self._failures = failures
        self._revisit = revisit
        self._metrics = metrics
        self._runtime = runtime
        self._paused: dict[TopicPartition, float] = {}
        self._missed: set[TopicPartition] = set()
        """Those that have failed in this tick."""

    def pack(self, partitions: Iterable[LedPartition]) -> list[LedPartition]:
        """Pack what is new, and put the head; the partitions that are to be tried again."""
        self._missed = set()
        wanted = [one for one in partitions if self._may_try(one)]
        self._try_all((one for one in wanted if not _is_claimed(one)), lambda one: one.uploader.claim())
        again = self._pack_claimed([one for one in wanted if _is_claimed(one)])
        self.backlog.done(one for one in wanted if one.tp not in self._missed)
        return again

    def look(self, partitions: list[LedPartition]) -> None:
        """Find out what is packed of surveyed ``partitions``, and write nothing."""
        try:
            self.head.read()
            self._joined(partitions)
        except Exception as error:  # noqa: BLE001 - as of what fails while it packs
            self._failed(partitions, error)

    def resume(self, partition: LedPartition, own: HeadEntry | None) -> None:
        """Have the partition go on from this leadership's entry in the head, which is not what was known of it."""
        partition.packed.resume(own)
        self._plan_again(partition)

    def forget(self, tp: TopicPartition) -> None:
        """The partition is not ours any more."""
        self._failures.forget(tp)
        self._paused.pop(tp, None)
        self.backlog.forget(tp)

    # -- one partition -------------------------------------------------------------------------------------------------

    def _may_try(self, partition: LedPartition) -> bool:
        paused = self._paused.get(partition.tp, 0.0)
        return partition.packs and paused <= self._runtime.monotonic()

    def _try(self, partition: LedPartition, step: Callable[[], object]) -> bool:
        """Whether ``step`` succeeded. A failure holds nobody else up, and the partition itself for a pause."""
        try:
            step()
        except NotPackable as error:
            partition.packed.error = str(error)
            self._to_be_sealed(partition, partition.high_watermark or 0, str(error))
        except Exception as error:  # noqa: BLE001 - whatever one partition does, the others go on
            self._paused[partition.tp] = self._runtime.monotonic() + self._has_failed(partition, error)
        else:
            return True
        return False

    def _try_all(self, partitions: Iterable[LedPartition], step: Callable[[LedPartition], object]) -> None:
        """Try ``step`` with each of ``partitions``, a few at the same time."""
        run_all([partial(self._try, one, partial(step, one)) for one in partitions], self._runtime)

    def _failed(self, partitions: Iterable[LedPartition], error: Exception) -> None:
        for partition in partitions:
            self._has_failed(partition, error)

    def _has_failed(self, partition: LedPartition, error: Exception) -> float:
        """Note it; the seconds for which the partition is to wait, if others go on."""
        self._missed.add(partition.tp)
        self.backlog.failed(error)
        pause, told = self._failures.failed(partition.tp, error)
        partition.packed.error = told or partition.packed.error
        return pause

    def _list_tail(self, partition: LedPartition) -> None:
        """Have ``offset.wm`` say that this leadership may have packed; without room for that, seal the partition."""
        uploader = partition.uploader
        uploader.list_tail()
        if not uploader.may_pack and len(uploader.tails) >= MOST_TAILS:
            why = "offset.wm lists as many tails as it may: their offsets are sealed first"
            self._to_be_sealed(partition, partition.high_watermark or 0, why)

    def _to_be_sealed(self, partition: LedPartition, end: int, why: str) -> None:
        if end > (partition.packed.seal_to or 0):
            partition.packed.seal_to = end
            logger.debug("tail_to_be_sealed", partition=str(partition.tp), end=end, reason=why)
            self._plan_again(partition)

    def _plan_again(self, partition: LedPartition) -> None:
        """Have the loop plan the partition soon, or with the next scan."""
        partition.restless = True
        self._revisit(partition)

    # -- all partitions ------------------------------------------------------------------------------------------------

    def _pack_claimed(self, members: list[LedPartition]) -> list[LedPartition]:
        """Pack ``members``, and put the head; those that are to be tried again."""
        head, started = self.head, self._runtime.monotonic()
        if not members:
            return []
        try:
            head.make_whole()
            rounds = [PartitionTick(one, one.remote.sealed_end) for one in self._joined(members)]
            packable = [one for one in rounds if one.has_news and not self._is_large(one)]
            unlisted = (one.partition for one in packable if not one.partition.uploader.may_pack)
            self._try_all(unlisted, self._list_tail)
            self._write_packs([one for one in packable if one.partition.uploader.may_pack])
            news = [one for one in rounds if one.packed]
            if news:
                self._name(head, rounds, news)
                self._metrics.pack_seconds.observe(self._runtime.monotonic() - started)
        except Exception as error:  # noqa: BLE001 - the thread goes on, and tries again
            self._failed(members, error)
            return members  # the head may have been written: what was read counts as being packed until it is known
        for partition in members:
            partition.packed.end_packing()
        return []

    def _name(self, head: BrokerHead, rounds: list[PartitionTick], news: list[PartitionTick]) -> None:
        """Have the head name the ranges of ``news``, and take account of them."""
        changed = head.entries.copy()
        for one in news:
            if not self._try(one.partition, partial(self._add_entry, changed, one)):
                one.packed.clear()
        self.drop_sealed(changed, (one.partition for one in rounds))
        head.put(changed)
        for one in news:
            self._advance(one)

    def _joined(self, members: list[LedPartition]) -> list[LedPartition]:
        """Those of ``members`` that know what this broker and former leaders have packed of them."""
        head = self.head
        new = [one for one in members if one.packed.joined != head.version]
        theirs = read_heads(head, new, self._runtime)
        failed = {one.tp for one in new if not self._try(one, partial(join, one, head, self._broker, theirs))}
        return [one for one in members if one.tp not in failed]

    def _write_packs(self, rounds: list[PartitionTick]) -> None:
        """Store packs with the next ranges of all, until there are no more. A pack has one range of a partition."""
        while rounds:
            packs: Packs[Added] = Packs(self.head.store, self.head.control, self._broker, self._metrics)
            more: list[PartitionTick] = []
            for one in rounds:
                found = self._next(one)
                if found is not None:
                    content, batches = found
                    added = Added(one, batches.place, batches.opened, batches.lineage)
                    more += _taken(packs.add(added, content, batches.data))
            rounds = [*more, *_taken(packs.finish())]

    def _next(self, one: PartitionTick) -> tuple[RangeContent, Batches] | None:
        """The partition's next range, if there is one, and room for it."""
        found: list[tuple[RangeContent, Batches]] = []

        def find() -> None:
            content = one.read(self.head, self._runtime.utc_now())
            if content is not None:
                found.append(content)

        self._try(one.partition, find)
        if not found:
            one.partition.packed.stuck_at = one.start
            self._plan_again(one.partition)
            return None
        return found[0] if self._has_room(one, found[0][1]) else None

    def _is_large(self, one: PartitionTick) -> bool:
        """Whether more is new of a partition than may be packed of it, or than is worth it: then it is sealed.

        A quiet tail of several ranges would take a pack for each, and its bytes go to the store once more in the seal.
        """
        partition = one.partition
        fits = partition.packed.unsealed(one.sealed_end).size + one.waiting <= MOST_UNSEALED_BYTES
        if fits and (partition.freshness is not None or one.waiting <= LARGEST_RANGE):
            return False
        self._to_be_sealed(partition, partition.high_watermark or 0, f"about {one.waiting:.0f} bytes of it are new")
        return True

    def _has_room(self, one: PartitionTick, batches: Batches) -> bool:
        """Whether as much may be packed of the partition; otherwise it is sealed."""
        partition = one.partition
        before = partition.packed.unsealed(one.sealed_end)
        large = before.size + one.size + len(batches.data) > MOST_UNSEALED_BYTES
        long = partition.packed.own_unsealed(one.sealed_end).ranges + len(one.packed) >= MOST_CHAIN
        if not large and not long:
            return True
        end = batches.first if before.ranges else partition.high_watermark or 0
        partition.packed.error = f"its seals are late: {before} are packed, and no reader takes more"
        self._to_be_sealed(partition, end, partition.packed.error)
        return False

    # -- the head ------------------------------------------------------------------------------------------------------

    def _add_entry(self, entries: HeadEntries, one: PartitionTick) -> None:
        """Replace the partition's entry; without room for a larger one, it is sealed instead."""
        if not entries.put(one.entry(self._runtime.monotonic()), MOST_ENTRY_BYTES):
            one.packed.clear()
            why = "the head has no room for it"
            self._to_be_sealed(one.partition, one.partition.high_watermark or 0, why)

    def _advance(self, one: PartitionTick) -> None:
        """Take account of ranges that the head names."""
        partition = one.partition
        if not one.packed:
            return
        partition.packed.advance(one.packed, one.sealed_end)
        partition.packed.error = None
        self.backlog.packed(partition)
        partition.ages.forget(partition.stored_end)
        self._failures.succeeded(partition.tp, wrote=True)
        self._metrics.packed_ranges.inc(len(one.packed))
        self._metrics.packed_bytes.inc(one.size)
        self.limit(partition, one.size)

    def limit(self, partition: LedPartition, next_size: int = 0) -> None:
        """Have the partition sealed if more of it is packed than may be, or will be with ``next_size`` bytes more."""
        unsealed = partition.packed.unsealed(partition.remote.sealed_end)
        old = unsealed.since is not None and self._runtime.utc_now() - unsealed.since >= MOST_UNSEALED_AGE
        large = unsealed.size + next_size > MOST_UNSEALED_BYTES
        if old or large or unsealed.ranges >= MOST_UNSEALED_RANGES:
            self._to_be_sealed(partition, partition.packed.end, f"much of it is packed and not sealed: {unsealed}")

    @staticmethod
    def drop_sealed(entries: HeadEntries, led: Iterable[LedPartition]) -> list[LedPartition]:
        """Remove the entries of which all is sealed, of partitions that this broker leads; those partitions."""
        dropped: list[LedPartition] = []
        for partition in led:
            tail_end = entries.tail_end(partition.entry_key)
            if tail_end is not None and tail_end <= partition.remote.next_offset:
                entries.remove(partition.entry_key)
                dropped.append(partition)
        return dropped


def _is_claimed(partition: LedPartition) -> bool:
    """Whether ``offset.wm`` has the leadership, and it is known what the store has."""
    return partition.remote.surveyed and partition.uploader.claimed


def _taken(stored: Collection[tuple[Added, WrittenRange]]) -> list[PartitionTick]:
    """Take what is stored; the ticks that have more to pack."""
    for new, written in stored:
        new.tick.take(new, written)
    return [new.tick for new, _ in stored if new.tick.has_more]
