"""What one tick packs of a partition: its next ranges, and its entry in the head."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from tidemark.errors import NotFound
from tidemark.formats.head import HeadEntry
from tidemark.formats.manifest import PackedPart, compacts
from tidemark.formats.pack import RangeContent, WrittenRange, read_range_line
from tidemark.kafka_log import Lineage, UnfinishedTransaction
from uploader_agent.packs.broker_head import BrokerHead
from uploader_agent.packs.chain import Unsealed
from uploader_agent.packs.reading import Batches, Place, Wanted, read
from uploader_agent.packs.tail import NextRange, Packed
from uploader_agent.partitions.led_partition import LedPartition
from uploader_agent.upload.validation import policy_of


@dataclass(frozen=True, slots=True)
class Added:
    """A range that was added to a pack, without its bytes."""

    tick: PartitionTick
    place: Place
    opened: tuple[UnfinishedTransaction, ...]
    lineage: Lineage


@dataclass
class PartitionTick:
    """``packed`` are ranges that are stored, and that the head does not name yet; they have ``size`` bytes."""

    partition: LedPartition
    sealed_end: int
    packed: list[Packed] = field(default_factory=list)
    lineage: Lineage = field(default_factory=Lineage)
    size: int = 0

    @property
    def start(self) -> int:
        """Where the partition's next range begins."""
        return self._next_range.start

    @property
    def has_news(self) -> bool:
        """Whether what is committed ends above all that seals and packs hold."""
        return self.start < (self.partition.high_watermark or 0)

    @property
    def waiting(self) -> float:
        """About how many committed bytes neither seals nor packs have, by what an offset took so far."""
        partition = self.partition
        end = max(self.sealed_end, partition.packed.end)
        return max(0, (partition.high_watermark or 0) - end) * (partition.bytes_per_offset or 0.0)

    @property
    def has_more(self) -> bool:
        """Whether what was packed ends below the high watermark."""
        return self.packed[-1].next < (self.partition.high_watermark or 0)

    def read(self, head: BrokerHead, shipped_at: datetime) -> tuple[RangeContent, Batches] | None:
        """The partition's next range; raises as :func:`~uploader_agent.packs.reading.read`, and StoreError."""
        partition, begins = self.partition, self._next_range
        high_watermark, topic_id = partition.high_watermark, partition.led.topic_id
        if high_watermark is None or topic_id is None or begins.start >= high_watermark:
            return None
        local = partition.uploader.local
        policy = policy_of(partition.folder.parent, partition.tp, begins.start, local.cleanup_policy)
        wanted = Wanted(
            tp=partition.tp,
            topic_id=topic_id,
            leader_epoch=partition.led.leader_epoch,
            start=begins.start,
            end=high_watermark,
            compacted=compacts(policy),
            shipped_at=shipped_at,
            previous=begins.previous,
            opened=self._opened(head, begins),
            place=begins.place,
        )
        partition.packed.begin_packing(begins.start)
        with partition.uploader.route.files() as files:
            return read(files, wanted)

    def take(self, added: Added, written: WrittenRange) -> None:
        """Take a range that is stored."""
        one = written
        part = PackedPart(first=one.first, next=one.next, crc32c=one.crc32c, shipped_at=one.shipped_at)
        self.packed.append(Packed(part, one.size, one.begins_chain, one.pointer, added.place, added.opened))
        self.lineage, self.size = added.lineage, self.size + written.size

    def entry(self, now: float) -> HeadEntry:
        """The partition's entry with what is packed; ``now`` is by the monotonic clock."""
        partition, last = self.partition, self.packed[-1]
        said = partition.confirmed
        assert said is not None
        assert partition.led.topic_id is not None
        unsealed = partition.packed.own_unsealed(self.sealed_end)
        unsealed = unsealed.plus(Unsealed(len(self.packed), self.size, self.packed[0].part.shipped_at))
        return HeadEntry(
            topic=partition.tp.topic,
            topic_id=partition.led.topic_id,
            partition=partition.tp.partition,
            epoch=partition.led.leader_epoch,
            lineage=self.lineage.since(self.sealed_end).entries,
            tail_end=last.next,
            last=last.pointer,
            high_watermark=max(said.high_watermark, last.next),
            observed_at=said.asked_at,
            oldest_unstored=_rounded(partition.unstored_age(now, last.next)),
            ranges=unsealed.ranges,
            size=unsealed.size,
            since=unsealed.since,
        )

    @property
    def _next_range(self) -> NextRange:
        if not self.packed:
            return self.partition.packed.next_range(self.sealed_end)
        last = self.packed[-1]
        return NextRange(last.next, last.pointer, last.place, last.opened)

    def _opened(self, head: BrokerHead, begins: NextRange) -> tuple[UnfinishedTransaction, ...] | None:
        """What is open where the next range begins, by what is stored; None if only the local log can tell."""
        opened = begins.opened
        if opened is None:
            opened = self.partition.remote.open_before(begins.start)
        if opened is None and begins.last is not None:
            opened = _open_at_end(head, begins)
        return opened


def _rounded(seconds: float | None) -> float | None:
    return seconds if seconds is None else round(seconds, 3)


def _open_at_end(head: BrokerHead, begins: NextRange) -> tuple[UnfinishedTransaction, ...] | None:
    """What is open where the range ends after which the next one begins; None if its pack is gone."""
    assert begins.last is not None
    try:
        last = read_range_line(head.store, head.control, begins.last).range
    except NotFound:
        return None
    return tuple(one.unfinished for one in last.open)
