"""What is made of packs alone: the entries of a lost head, and seals of partitions that this broker no longer leads.

:func:`recover_entries` makes the entries, and :class:`Abandoned` seals what no leader will seal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import structlog
from pydantic import ValidationError

from tidemark.errors import FormatError, LaterFormat, NotFound, PreconditionFailed
from tidemark.formats.base import describe
from tidemark.formats.keys import TopicPartition
from tidemark.formats.raw.head import MOST_ENTRY_BYTES, EntryKey, HeadEntry, PartitionOfId
from tidemark.formats.raw.pack import TRAILER_SIZE, PackedRange, Range, RangePointer
from tidemark.formats.raw.watermark import Watermark
from tidemark.kafka_log import Lineage
from tidemark.raw.heads import read_head
from tidemark.raw.packs import live_end, read_lines
from tidemark.storage import ClusterStore, PartitionStore, StoredWatermark
from tidemark.store import ObjectInfo
from uploader_agent.broker.admin import Cleanup, Offsets
from uploader_agent.packs.broker_head import BrokerHead, EntryLines, Unsealed, run_all
from uploader_agent.packs.packed_run import known_ranges
from uploader_agent.packs.seal_packed import seal_packed
from uploader_agent.runtime import NEVER, Runtime
from uploader_agent.stored import stored_log, watermark
from uploader_agent.stored.incarnations import Resolve
from uploader_agent.stored.stored_log import StoredLog
from uploader_agent.upload.segment_upload import UploadRoute

logger = structlog.get_logger(__name__)


def recover_entries(broker: int, resolve: Resolve, runtime: Runtime, cluster: ClusterStore, named: bool) -> EntryLines:
    """The entries of a lost head of ``broker`` that no process knows, from its own packs in the bucket of ``cluster``.

    They are those of a head that names all ranges, or has ``named`` them before. Ranges of compacted topics that no
    head may have named are left out: a seal may lack records of them. Damaged packs are left out: their ranges are
    packed again from the disk, or sealed from there.

    The footers of all packs are read: each line states the leadership of a range, and the range before it. So the last
    range of each leadership is the end of its chain. A pack that no head has ever named, since its tick failed, does no
    harm: its batches were committed, and are on the lineage of their leadership like those of any other pack. A reader
    picks the valid batches by lineage.

    One LIST, one or two GETs for each pack that retention has left (two days of ticks), and one for each ``offset.wm``.
    Raises LaterFormat and StoreError.
    """
    packed = _FoundChains(cluster, resolve, runtime)
    run_all([partial(packed.read, info) for info in cluster.packs(broker)], runtime)
    if packed.failure is not None:
        raise packed.failure
    entries = EntryLines()
    for key, chain in packed.chains.items():
        if chain.compacted and not named:
            continue
        try:
            entry = chain.entry()
        except ValidationError as error:
            logger.warning("tail_not_recovered", tail=str(key), error=describe(error))
            continue
        if entry is not None and not entries.put(entry, MOST_ENTRY_BYTES):
            logger.warning("tail_not_recovered", tail=str(key), error="the head has no room for it")
    return entries


class _FoundChains:
    """The chains in the packs that a few threads read."""

    def __init__(self, cluster: ClusterStore, resolve: Resolve, runtime: Runtime) -> None:
        self.chains: dict[EntryKey, _Chain] = {}
        self.failure: Exception | None = None
        self._cluster = cluster
        self._resolve = resolve
        self._lock = runtime.lock()
        self._sealed: dict[PartitionOfId, tuple[int, Lineage]] = {}
        """The end of the seals and the lineage in each ``offset.wm``; 0 and none without one."""

    def read(self, info: ObjectInfo) -> None:
        """Add the ranges of a pack to their chains."""
        if self.failure is not None:
            return
        try:
            ranges = [*_pack_lines(self._cluster, info)]
            names = {_partition_of(range_): range_ for range_, _ in ranges}
            sealed = {name: self._sealed_of(range_) for name, range_ in names.items() if name not in self._sealed}
        except LaterFormat as error:
            self.failure = error  # a head without its ranges would lose them
            return
        except (FormatError, NotFound) as error:
            logger.warning("pack_not_read", key=info.key, error=str(error))
            return
        except Exception as error:  # noqa: BLE001 - for the thread that waits for all of them
            self.failure = error
            return
        with self._lock:
            self._sealed.update(sealed)
            for range_, pointer in ranges:
                key = EntryKey(range_.topic_id, range_.partition, range_.leader_epoch, len(range_.restores))
                if key not in self.chains:
                    self.chains[key] = _Chain(range_, pointer, *self._sealed[_partition_of(range_)])
                self.chains[key].add(range_, pointer)

    def _sealed_of(self, range_: Range) -> tuple[int, Lineage]:
        tp = TopicPartition(range_.topic, range_.partition)
        try:
            _, partition = self._resolve(tp, range_.topic_id)
            stored = watermark.read(partition)
        except LaterFormat:
            raise
        except FormatError as error:
            logger.warning("offset_wm_not_read", partition=str(tp), error=str(error))
            stored = None
        return (stored.watermark.next_offset, stored.lineage) if stored else (0, Lineage())


@dataclass(slots=True)
class _Chain:
    """The end of one leadership's chain, and the amount of it that is not sealed.

    ``sealed_end`` and ``stored_lineage`` are what ``offset.wm`` says of the partition.
    """

    last: Range
    pointer: RangePointer
    sealed_end: int
    stored_lineage: Lineage
    unsealed: Unsealed = field(default_factory=Unsealed)
    compacted: bool = False
    starts: dict[int, int] = field(default_factory=dict)
    """The epochs of its batches, and the first offset seen of each."""

    def add(self, range_: Range, pointer: RangePointer) -> None:
        """Add a range of the leadership; ranges come in any order."""
        if (range_.next, range_.shipped_at) > (self.last.next, self.last.shipped_at):
            self.last, self.pointer = range_, pointer
        self.compacted = self.compacted or range_.compacted
        if range_.next > self.sealed_end:
            self.unsealed = self.unsealed.plus(Unsealed(1, range_.size, range_.shipped_at))
            for epoch, start in range_.epochs:
                self.starts[epoch] = min(start, self.starts.get(epoch, start))

    def entry(self) -> HeadEntry | None:
        """The head's entry; None if all is sealed. Raises ValidationError if the packs lack a field of it."""
        last = self.last
        entry = HeadEntry(
            topic=last.topic,
            topic_id=last.topic_id,
            partition=last.partition,
            epoch=last.leader_epoch,
            lineage=self._lineage().since(min(self.sealed_end, last.first)).entries,
            restores=last.restores,
            tail_end=last.next,
            last=self.pointer,
            high_watermark=last.next,
            observed_at=NEVER,
            ranges=self.unsealed.ranges,
            size=self.unsealed.size,
            since=self.unsealed.since,
        )
        is_sealed = last.next <= self.sealed_end and live_end(entry, self.stored_lineage) == last.next
        return None if is_sealed else entry

    def _lineage(self) -> Lineage:
        """The lineage of the leadership's log: from ``offset.wm`` if that has the epoch, and from the batches.

        The batches do not show the start of the leader's own epoch if it has packed none of its own.
        """
        epoch = self.last.leader_epoch
        known_below = self.stored_lineage.parted_at(self.last.restores)
        own = self.stored_lineage if known_below is None else self.stored_lineage.truncated(known_below)
        stored = tuple(entry for entry in own.entries if entry[0] <= epoch)
        if stored and stored[-1][0] == epoch:
            return Lineage(stored).with_batches(self.starts.items())
        packed = sorted({**dict(self.last.epochs), **self.starts}.items())
        known = tuple(entry for entry in packed if entry[0] >= 0)
        return Lineage(known if known and known[-1][0] == epoch else (*known, (epoch, self.last.next)))


def _partition_of(range_: Range) -> PartitionOfId:
    return PartitionOfId(range_.topic_id, range_.partition)


def _pack_lines(cluster: ClusterStore, info: ObjectInfo) -> Iterator[tuple[Range, RangePointer]]:
    """The ranges of a pack, and pointers to their lines. Raises as :func:`tidemark.raw.packs.read_lines`."""
    name, lines = str(cluster.keys.pack_of(info.key)), read_lines(cluster.store, info.key, info.size)
    for (start, packed), end in zip(lines.items(), [*lines, info.size - TRAILER_SIZE][1:], strict=True):
        yield packed.range, RangePointer(pack=name, position=start, length=end - start)


class Abandoned:
    """Seals the tails of partitions that this broker no longer leads from their packs, when no leader will do it.

    ``is_deleted`` returns True if the cluster no longer has a topic id.
    """

    def __init__(
        self, broker: int, resolve: Resolve, is_deleted: Callable[[TopicPartition, str], bool], runtime: Runtime
    ) -> None:
        self._broker = broker
        self._resolve = resolve
        self._is_deleted = is_deleted
        self._runtime = runtime

    def is_sealed(self, head: BrokerHead, entry: HeadEntry) -> bool:
        """True if the head's ``entry`` may be removed. A tail that no leader seals is sealed first.

        Raises StoreError, FormatError and ContinuityError: the entry stays, and is looked at again.
        """
        tp = TopicPartition(entry.topic, entry.partition)
        _, partition = self._resolve(tp, entry.topic_id)
        stored = watermark.read(partition)
        if stored is None:
            return True  # somebody has removed the partition's objects
        tail = _AbandonedTail(self._broker, tp, entry, head, partition, stored)
        replaced = len(entry.restores) < len(stored.watermark.restores)
        if replaced or (entry.epoch, self._broker) not in stored.watermark.tails:
            tail.seal(entry.history, [entry])
            # A head that was made again from packs may name what no head had named when ``offset.wm`` dropped this
            # leadership. A leader has that in its log, or tells that it is cut off; of a deleted topic nobody would.
            return replaced or not self._is_deleted(tp, entry.topic_id) or tail.publish(self._runtime)
        if self._is_deleted(tp, entry.topic_id):
            tail.publish(self._runtime)
        return False


class _AbandonedTail:
    """An entry, and the partition's objects in the store."""

    def __init__(
        self,
        broker: int,
        tp: TopicPartition,
        entry: HeadEntry,
        head: BrokerHead,
        partition: PartitionStore,
        stored: StoredWatermark,
    ) -> None:
        self._broker = broker
        self._tp = tp
        self._entry = entry
        self._head = head
        self._stored = stored
        self._partition = partition
        folder = Path(str(tp))
        self._route = UploadRoute(tp, entry.topic_id, folder, partition, broker)

    def seal(self, lineage: Lineage, entries: list[HeadEntry]) -> StoredLog:
        """Seal the offsets that only the packs of ``entries`` have on ``lineage``; return the log in the store."""
        lineage = lineage.with_history(self._stored.lineage)
        log = self._load(lineage)
        while True:
            start = log.sealed_end
            ranges = self._ranges(entries, lineage, start)
            end = max((live_end(entry, lineage) for entry in entries), default=start)
            if not ranges or end <= start:
                return log
            offsets = Offsets(max(entry.high_watermark for entry in entries))
            sealed = seal_packed(self._route, entries, ranges, lineage, start, end, offsets, Cleanup("delete"), log)
            if sealed is None:
                return log
            log = log.with_segment(sealed, lineage)
            if log.sealed_end <= start:
                return log

    def publish(self, runtime: Runtime) -> bool:
        """Seal all tails of a deleted topic on the lineage of ``offset.wm``, and write the result to ``offset.wm``.

        Returns False if another broker has written ``offset.wm`` meanwhile: then the next look sees the rest.
        """
        before = self._stored.watermark
        lineage = before.history
        entries = self._entries(before)
        log = self.seal(lineage, [*entries.values()])
        end = log.sealed_end
        new = before.model_copy(
            update={
                "next_offset": max(before.next_offset, end),
                "ranges_above": tuple(watermark.above(log.present, end)),
                "tails": tuple(tail for tail in before.tails if not _is_sealed(tail, entries, lineage, end)),
                "broker": self._broker,
                "written_at": runtime.utc_now(),
            }
        )
        if not watermark.says_more(new, before):
            return True
        base = watermark.last_base(log.readable_bases, new.next_offset, self._stored.base_offset)
        try:
            watermark.write(self._partition, base, new, self._stored)
        except PreconditionFailed:
            return False
        logger.info("deleted_topic_sealed", partition=str(self._tp), next_offset=new.next_offset)
        return True

    def _entries(self, before: Watermark) -> dict[tuple[int, int], HeadEntry]:
        """The entries of all leaderships that may have packed."""
        entries: dict[tuple[int, int], HeadEntry] = {}
        for epoch, broker in before.tails:
            key = EntryKey(self._entry.topic_id, self._tp.partition, epoch, len(before.restores))
            if broker == self._broker:
                known: Mapping[EntryKey, HeadEntry] = self._head.entries
            else:
                theirs = read_head(self._head.cluster, broker)
                known = theirs.value.by_key if theirs else {}
            if key in known:
                entries[epoch, broker] = known[key]
        return entries

    def _load(self, lineage: Lineage) -> StoredLog:
        epoch = self._stored.watermark.leader_epoch + 1  # as the next leader, with a log on this lineage, would see it
        return stored_log.load(
            self._partition,
            lineage,
            epoch,
            self._entry.topic_id,
            self._broker,
            lambda _: False,
            replaced=lineage.restores != self._stored.watermark.restores,
        )

    def _ranges(self, entries: list[HeadEntry], lineage: Lineage, start: int) -> list[PackedRange]:
        return known_ranges(self._head.cluster, entries, lineage, start)


def _is_sealed(
    tail: tuple[int, int], entries: dict[tuple[int, int], HeadEntry], lineage: Lineage, sealed_end: int
) -> bool:
    """True if no part of a leadership's tail is left to seal: no agent packs a deleted topic any more."""
    entry = entries.get(tail)
    return entry is None or live_end(entry, lineage) <= sealed_end
