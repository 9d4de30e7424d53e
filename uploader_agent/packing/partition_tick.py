"""The part of a tick that packs one partition: the tails that it joins, its next ranges, and its entry in the head."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial

import structlog

from tidemark.errors import FormatError, LaterFormat
from tidemark.formats.raw.head import Head, HeadEntry
from tidemark.formats.raw.manifest import compacts
from tidemark.formats.raw.pack import RangeContent, WrittenRange
from tidemark.kafka_log import BatchHeader, Lineage, OpenTransaction
from tidemark.raw.heads import read_head
from uploader_agent.disk.segment_files import SegmentChanged
from uploader_agent.packs.broker_head import BrokerHead, Unsealed, run_all
from uploader_agent.packs.packed_run import open_at_end
from uploader_agent.packs.reading import LogPosition, PackedBatches, WantedRange, read
from uploader_agent.packs.tail import NextRange, Packed
from uploader_agent.partitions.led_partition import LedPartition
from uploader_agent.partitions.partition_uploader import Doubt
from uploader_agent.runtime import Runtime
from uploader_agent.stored.histories import HistoryDiffers
from uploader_agent.upload.validation import cleanup_of

logger = structlog.get_logger(__name__)

TheirHeads = Mapping[int, Head | Exception | None]
"""Other brokers' heads by node id: None without a head, or the error of reading it."""


@dataclass(frozen=True, slots=True)
class RangeAdded:
    """A range that was added to a pack, without its bytes."""

    tick: PartitionTick
    place: LogPosition
    last: BatchHeader
    opened: tuple[OpenTransaction, ...]
    lineage: Lineage


@dataclass
class PartitionTick:
    """A partition in a tick. ``packed`` are its stored ranges that the head does not name yet, of ``size`` bytes.

    ``doubt`` is the last one before it: what it reads may be of a log that has been replaced since.
    """

    partition: LedPartition
    sealed_end: int
    doubt: Doubt
    packed: list[Packed] = field(default_factory=list)
    lineage: Lineage = field(default_factory=Lineage)
    size: int = 0

    @property
    def start(self) -> int:
        """The offset at which the partition's next range begins."""
        return self._next_range.start

    @property
    def has_unpacked(self) -> bool:
        """True if there are committed offsets above the end of seals and packs."""
        return self.start < (self.partition.high_watermark or 0)

    @property
    def waiting(self) -> float:
        """The committed bytes that neither seals nor packs have, estimated from the bytes per offset so far."""
        partition = self.partition
        end = max(self.sealed_end, partition.packed.tail.end)
        return max(0, (partition.high_watermark or 0) - end) * (partition.bytes_per_offset or 0.0)

    @property
    def has_more(self) -> bool:
        """True if the packed ranges end below the high watermark."""
        return self.packed[-1].next < (self.partition.high_watermark or 0)

    def read(self, head: BrokerHead, shipped_at: datetime) -> tuple[RangeContent, PackedBatches] | None:
        """Read the partition's next range. Raises as :func:`~uploader_agent.packs.reading.read`, and StoreError."""
        partition, next_range = self.partition, self._next_range
        high_watermark, topic_id = partition.high_watermark, partition.led.topic_id
        if high_watermark is None or topic_id is None or next_range.start >= high_watermark:
            return None
        local = partition.local.log
        cleanup = cleanup_of(partition.folder.parent, partition.tp, next_range.start, local.cleanup)
        wanted = WantedRange(
            tp=partition.tp,
            topic_id=topic_id,
            leader_epoch=partition.led.leader_epoch,
            start=next_range.start,
            end=high_watermark,
            compacted=compacts(cleanup.policy),
            marks_gaps=partition.marks_gaps,
            shipped_at=shipped_at,
            previous=next_range.previous,
            opened=self._opened(head, next_range),
            place=next_range.place,
            before=None if self.packed else self._before(next_range),
        )
        partition.packed.begin_packing(next_range.start)
        try:
            with partition.uploader.route.files() as files:
                return read(files, wanted)
        except HistoryDiffers as error:
            partition.uploader.doubt()
            raise SegmentChanged(str(error)) from error

    def take(self, added: RangeAdded, written: WrittenRange) -> None:
        """Note a range that is stored."""
        self.packed.append(Packed(written, added.place, added.last, added.opened))
        self.lineage, self.size = added.lineage, self.size + written.size

    def entry(self, now: float) -> HeadEntry:
        """The partition's entry with the packed ranges; ``now`` is a time of the monotonic clock."""
        partition, last = self.partition, self.packed[-1]
        confirmed = partition.confirmed
        assert confirmed is not None
        assert partition.led.topic_id is not None
        unsealed = partition.packed.tail.own_unsealed(self.sealed_end)
        unsealed = unsealed.plus(Unsealed(len(self.packed), self.size, self.packed[0].written.part.shipped_at))
        return HeadEntry(
            topic=partition.tp.topic,
            topic_id=partition.led.topic_id,
            partition=partition.tp.partition,
            epoch=partition.led.leader_epoch,
            lineage=self.lineage.since(self.sealed_end).entries,
            restores=self.lineage.restores,
            tail_end=last.next,
            last=last.written.pointer,
            high_watermark=max(confirmed.high_watermark, last.next),
            observed_at=confirmed.asked_at,
            oldest_unstored=_rounded(partition.unstored_age(now, last.next)),
            ranges=unsealed.ranges,
            size=unsealed.size,
            since=unsealed.since,
        )

    @property
    def _next_range(self) -> NextRange:
        if not self.packed:
            return self.partition.packed.tail.next_range(self.sealed_end)
        last = self.packed[-1]
        return NextRange(last.next, last.written.pointer, last.place, last.opened)

    def _opened(self, head: BrokerHead, next_range: NextRange) -> tuple[OpenTransaction, ...] | None:
        """The transactions open at the next range's start, from the store; None if only the local log has them."""
        opened = next_range.opened
        if opened is None:
            opened = self.partition.remote.log.open_before(next_range.start)
        if opened is None and next_range.last is not None:
            opened = open_at_end(head.cluster, next_range.last)
        return opened

    def _before(self, next_range: NextRange) -> BatchHeader | None:
        """The last stored batch below the next range, if it is known."""
        packed = self.partition.packed.tail.last_batch
        if packed is not None and packed.next_offset == next_range.start:
            return packed
        return self.partition.remote.log.last_batch(next_range.start)


def _rounded(seconds: float | None) -> float | None:
    return seconds if seconds is None else round(seconds, 3)


def read_heads(head: BrokerHead, partitions: Collection[LedPartition], runtime: Runtime) -> TheirHeads:
    """The heads of all brokers that may have packed unsealed offsets of claimed ``partitions``, each read once.

    They are the brokers of the leaderships that ``offset.wm`` lists. Their heads are read after the claim, since by
    then they have everything that a reader accepted from them before the claim.
    """
    heads: dict[int, Head | Exception | None] = {}
    brokers = {broker for partition in partitions for _, broker in partition.uploader.other_tails()}
    run_all([partial(_read_head, head, broker, heads) for broker in brokers], runtime)
    return heads


def join_heads(partition: LedPartition, head: BrokerHead, broker: int, theirs: TheirHeads) -> None:
    """Join the partition to its tails: the entry of this broker, ``broker``, in the stored head, and former leaders'.

    Raises the error of a head that could not be read.
    """
    inherited: list[HeadEntry] = []
    for epoch, other in partition.uploader.other_tails():
        stored = head.entries if other == broker else theirs[other]
        if isinstance(stored, Exception):
            raise stored
        entries = stored.by_key if isinstance(stored, Head) else stored or {}
        key = partition.entry_key._replace(epoch=epoch)
        inherited += [entries[key]] if key in entries else []
    own = head.entries.get(partition.entry_key)
    partition.packed.join(head.version, own, inherited, partition.uploader.lineage())


def _read_head(head: BrokerHead, broker: int, heads: dict[int, Head | Exception | None]) -> None:
    """Add another broker's head to ``heads``; a damaged head counts as none, which only costs bytes."""
    try:
        version = read_head(head.cluster, broker)
        heads[broker] = version.value if version else None
    except LaterFormat as error:
        heads[broker] = error
    except FormatError as error:
        logger.warning("head_not_read", broker=broker, error=str(error))
        heads[broker] = None
    except Exception as error:  # noqa: BLE001 - only the partitions that need this head fail
        heads[broker] = error
