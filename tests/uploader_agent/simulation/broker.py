"""Two brokers as one of them sees the cluster: partitions, leaders and epochs, what is committed, and a client to ask.

Broker 1 has the agent and its disk; broker 2 is told of by what it does: it fetches, leads, and is fetched from.
"""

from __future__ import annotations

import base64
import random
import struct
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count, pairwise
from pathlib import Path
from typing import NamedTuple, TypeVar

from tests.tidemark.kafka_log.build import simple
from tests.uploader_agent.simulation.clock import Scheduler
from tests.uploader_agent.simulation.disk import LogDir, PartitionDir
from tests.uploader_agent.simulation.faults import Faults
from tidemark.formats.keys import TopicPartition

Answer = TypeVar("Answer")

US, THEM = 1, 2
_BATCHES = [[simple(0, records, producer_id=one) for records in (1, 2, 3)] for one in range(4)]
_THINNED = [[simple(0, 1, producer_id=one, last_offset_delta=records - 1) for records in (1, 2, 3)] for one in range(4)]
"""The same batches as compaction leaves them if it keeps the first record."""


class Batch(NamedTuple):
    """A record batch of the log: its bytes as they were appended, and those with the first record alone."""

    base: int
    end: int
    content: bytes
    thinned: bytes


@dataclass
class Moment:
    """What broker 1 knew of a log that it led: from when on, under which epoch, and up to where."""

    since: float
    leader_epoch: int
    high_watermark: int
    log_end: int


@dataclass
class Partition:
    """A partition's log as its leader has it (``batches``), and how far broker 1's replica goes (``on_disk``)."""

    at: TopicPartition
    topic_id: uuid.UUID
    replicated: bool
    disk: PartitionDir
    leader: int = US
    leader_epoch: int = 0
    batches: list[Batch] = field(default_factory=list)
    epochs: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])
    on_disk: int = 0
    high_watermark: int = 0
    longest: int = 0
    """The highest log end that there ever was."""
    log_start: int = 0
    history: list[Moment] = field(default_factory=list)
    retired: list[tuple[int, int]] = field(default_factory=list)
    """Offsets that retention has taken from the disk."""
    cut: int | None = None
    """Where broker 1's replica leaves the leader's log, until it fetches and truncates."""
    gone: bool = False
    left: dict[int, bytes] = field(default_factory=dict)
    """What compaction has left on broker 1's disk of the batches that it has cleaned, by base offset."""
    packed: dict[int, bytes] = field(default_factory=dict)
    """The batches that this partition's heads have named, by base offset: they may have landed."""

    @property
    def log_end(self) -> int:
        """The leader's log end offset."""
        return self.batches[-1].end if self.batches else 0

    @cached_property
    def kafka_id(self) -> str:
        """The topic id as Kafka writes it."""
        return base64.urlsafe_b64encode(self.topic_id.bytes).decode().rstrip("=")

    def content(self, start: int, end: int) -> bytes:
        """The bytes of the batches from ``start`` to ``end``."""
        return b"".join(one.content for one in self.batches if start <= one.base and one.end <= end)

    def cleaned(self, start: int, end: int) -> bytes:
        """As :meth:`content`, as far as compaction has left it on broker 1's disk."""
        within = (one for one in self.batches if start <= one.base and one.end <= end)
        return b"".join(self.left.get(one.base, one.content) for one in within)

    def is_log(self, start: int, end: int, data: bytes) -> bool:
        """Whether ``data`` are the batches from ``start`` to ``end``, or what compaction may have left of them."""
        if data == self.content(start, end):
            return True
        within = {one.base: one for one in self.batches if start <= one.base and one.end <= end}
        found = split(data)
        true = (one in within and data in {within[one].content, within[one].thinned} for one, data in found.items())
        return bool(self.left) and list(found) == sorted(found) and all(true)


def split(data: bytes) -> dict[int, bytes]:
    """Batches by their base offsets."""
    found: dict[int, bytes] = {}
    at = 0
    while at < len(data):
        base, length = struct.unpack_from(">qi", data, at)
        found[base] = data[at : at + 12 + length]
        at += 12 + length
    return found


class Leading(NamedTuple):
    """Who leads a partition of which topic."""

    topic_id: uuid.UUID
    leader: int
    leader_epoch: int


class Cluster:
    """Changes partitions as they are told to, and everything on broker 1's disk with them."""

    def __init__(self, disk: LogDir, scheduler: Scheduler, faults: Faults, *, compacted: bool) -> None:
        self.compacted = compacted
        """Whether ``cleanup.policy`` of all topics is ``compact``."""
        self.partitions: dict[TopicPartition, Partition] = {}
        self.lives: list[Partition] = []
        """All partitions that there ever were, those of deleted topics too."""
        self.views: list[tuple[float, dict[TopicPartition, Leading]]] = [(0.0, {})]
        """Who has led what, and since when."""
        self._disk = disk
        self._scheduler = scheduler
        self._faults = faults
        self._ids = count(1)

    def create(self, topic: str, partitions: int, *, replicated: bool) -> None:
        """Make a topic, led by broker 1."""
        topic_id = uuid.UUID(int=(next(self._ids) << 64) | 0x4000_0000_0000_8000_0000_0000_0000)
        for number in range(partitions):
            at = TopicPartition(topic, number)
            kafka_id = base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")
            directory = PartitionDir(self._disk, str(at), kafka_id, self._faults, self._scheduler)
            made = self.partitions[at] = Partition(at, topic_id, replicated, directory)
            self.lives.append(made)
            directory.epochs(made.epochs)
            self._note(made)
        self._tell()

    def delete(self, topic: str) -> None:
        """Delete a topic."""
        for at in [at for at in self.partitions if at.topic == topic]:
            partition = self.partitions.pop(at)
            partition.gone = True
            partition.disk.rename_away()
        self._tell()

    def append(self, partition: Partition, records: Sequence[int]) -> None:
        """Produce batches of so many records each."""
        kind = int(self._faults.within(0, 4)) % 4
        for number in records:
            at, epoch = partition.log_end, partition.leader_epoch
            forms = (_placed(forms[kind][number - 1], at, epoch) for forms in (_BATCHES, _THINNED))
            partition.batches.append(Batch(at, at + number, *forms))
        partition.longest = max(partition.longest, partition.log_end)
        if partition.leader == US:
            self._write(partition)
        self._replicate(partition)

    def roll(self, partition: Partition) -> None:
        """Begin another segment, if the active one on broker 1's disk has any record."""
        if partition.on_disk > partition.disk.bases[-1]:
            partition.disk.roll(partition.on_disk)

    def compact(self, partition: Partition, number: float) -> None:
        """Roll, and clean all segments below the high watermark: the last batches of one may go, or all of them."""
        self.roll(partition)
        bases = partition.disk.bases
        draw = random.Random(f"compact {number} {partition.log_end}")
        for base, end in pairwise(bases):
            if end > partition.high_watermark:
                break
            for batch in partition.batches:
                if base <= batch.base and batch.end <= end:
                    chance, left = draw.random(), partition.left.get(batch.base, batch.content)
                    partition.left[batch.base] = (
                        left if chance < 0.3 else batch.thinned if left and chance < 0.5 else b""
                    )
            partition.disk.clean(base, partition.cleaned(base, end))

    def retire(self, partition: Partition, number: int) -> None:
        """Retention takes up to so many segments, none of them active or above the high watermark."""
        bases = partition.disk.bases
        number = min(number, sum(base <= partition.high_watermark for base in bases[1:]))
        if number:
            start = bases[number]
            partition.retired.append((bases[0], start))
            partition.disk.retire(number)
            partition.log_start = start
            partition.disk.epochs(_from(partition.epochs, start))

    def lead(self, partition: Partition, leader: int) -> None:
        """Move the leadership; what the new leader does not have, and nobody has acknowledged, is cut off."""
        if leader == partition.leader or not partition.replicated:
            return
        ends = [one.end for one in partition.batches if one.end >= partition.high_watermark]
        if leader == THEM:
            have = ends[int(self._faults.within(0, len(ends))) % len(ends)] if ends else partition.log_end
            if partition.on_disk > have:
                partition.cut = have
        else:
            have = partition.on_disk
            if have < partition.high_watermark or partition.cut is not None:
                return  # not in sync: no clean election chooses it
        partition.batches = [one for one in partition.batches if one.end <= have]
        partition.leader, partition.leader_epoch = leader, partition.leader_epoch + 1
        partition.epochs = [one for one in partition.epochs if one[1] < have or one == (0, 0)]
        partition.epochs.append((partition.leader_epoch, have))
        if leader == US:
            partition.disk.epochs(_from(partition.epochs, partition.log_start))
            self._note(partition)
        self._tell()
        self._replicate(partition)

    def catch_up(self, partition: Partition) -> None:
        """The follower has caught up, or does so now."""
        self._replicate(partition)

    def checkpoint(self) -> None:
        """Write the high watermarks to the disk, as Kafka does every five seconds."""
        lines = [f"{at.topic} {at.partition} {one.high_watermark}\n" for at, one in sorted(self.partitions.items())]
        path = self._disk.path / "replication-offset-checkpoint"
        Path(f"{path}.tmp").write_text(f"0\n{len(lines)}\n{''.join(lines)}")
        self._disk.touch(Path(f"{path}.tmp"))
        Path(f"{path}.tmp").rename(path)
        self._scheduler.call_later(5.0, self.checkpoint)

    def _replicate(self, partition: Partition) -> None:
        """The follower fetches, now or later."""
        if not partition.replicated:
            self._fetched(partition, partition.log_end)
            return
        slow = self._faults.strike("fetch_slow", str(partition.at))
        delay = self._faults.felt(self._faults.within(0.0, 20.0) if slow else self._faults.within(0.001, 0.5))
        epoch, end = partition.leader_epoch, partition.log_end
        self._scheduler.call_later(delay, lambda: self._fetched(partition, end, epoch))

    def _fetched(self, partition: Partition, end: int, epoch: int | None = None) -> None:
        """The follower has what lies below ``end``, unless the leader has changed since."""
        if partition.gone or epoch not in {None, partition.leader_epoch}:
            return
        if partition.leader == THEM:
            self._truncate(partition)
            self._write(partition)
            end = partition.log_end
        if end > partition.high_watermark:
            partition.high_watermark = end
            self._faults.tell(f"   {partition.at}: high watermark {end}")
        self._note(partition)

    def _write(self, partition: Partition) -> None:
        """Bring the log on broker 1's disk to the leader's end."""
        content = partition.content(partition.on_disk, partition.log_end)
        if content:
            partition.disk.append(content)
            partition.on_disk = partition.log_end
        partition.disk.epochs(_from(partition.epochs, partition.log_start))
        self._note(partition)

    def _truncate(self, partition: Partition) -> None:
        """Cut from broker 1's disk what the leader does not have."""
        cut, partition.cut = partition.cut, None
        if cut is not None:
            base = max(base for base in partition.disk.bases if base <= cut)
            partition.disk.truncate(base, len(partition.cleaned(base, cut)))
            partition.on_disk = cut

    def _tell(self) -> None:
        """All brokers are told who leads, sooner or later."""
        view = {at: Leading(one.topic_id, one.leader, one.leader_epoch) for at, one in sorted(self.partitions.items())}
        self.views.append((self._scheduler.now, view))

    def _note(self, partition: Partition) -> None:
        if partition.leader == US and not partition.gone:
            now = self._scheduler.now
            seen = Moment(now, partition.leader_epoch, partition.high_watermark, partition.log_end)
            partition.history.append(seen)


def _placed(template: bytes, base: int, epoch: int) -> bytes:
    """The batch ``template`` at another offset, under another leader epoch; neither is in its checksum."""
    placed = bytearray(template)
    struct.pack_into(">q", placed, 0, base)
    struct.pack_into(">i", placed, 12, epoch)
    return bytes(placed)


def _from(epochs: list[tuple[int, int]], start: int) -> list[tuple[int, int]]:
    """The epochs of a log that starts at ``start``."""
    below = [one for one in epochs if one[1] <= start]
    return [(epoch, max(offset, start)) for epoch, offset in below[-1:]] + [one for one in epochs if one[1] > start]
