"""Two brokers and their cluster: replicas with logs and lineages, what is committed, elections, truncation, losses.

The controller's view of a partition (leader, epoch, in-sync replicas) is known to the metadata at once, and to each
broker later: until then a deposed leader goes on, and metadata name an epoch that no log has.
"""

from __future__ import annotations

import random
import struct
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count, pairwise
from pathlib import Path
from typing import NamedTuple

from tests.tidemark.kafka_log.build import marker, reseal, simple
from tests.uploader_agent.simulation.clock import Scheduler
from tests.uploader_agent.simulation.disk import LogDir, PartitionDir
from tests.uploader_agent.simulation.faults import Faults
from tidemark.formats.keys import TopicPartition
from tidemark.formats.raw.incarnations import topic_id_text
from tidemark.kafka_log import Lineage

US, THEM = 1, 2
BROKERS = (US, THEM)
PRODUCERS = (7, 8)
"""Those that produce in transactions."""

_TRANSACTIONAL = 0x10
_PLAIN = [simple(0, records, producer_id=1) for records in (1, 2, 3)]
_THINNED = [simple(0, 1, producer_id=1, last_offset_delta=records - 1) for records in (1, 2, 3)]
"""The same batches as compaction leaves them if it keeps the first record."""
_MARKERS = {commits: marker(0, 1, commit=commits) for commits in (False, True)}


class Batch(NamedTuple):
    """A record batch of the log: its bytes as they were appended, and those with the first record alone.

    ``producer`` is -1 outside transactions; ``commits`` is None in data.
    """

    base: int
    end: int
    epoch: int
    content: bytes
    thinned: bytes
    producer: int = -1
    commits: bool | None = None

    @property
    def id(self) -> tuple[int, int]:
        """What names a batch: offset and epoch."""
        return self.base, self.epoch


class Transaction(NamedTuple):
    """A producer's transaction, from its ``first`` offset to its marker at ``last``."""

    producer: int
    first: int
    last: int
    aborted: bool

    def crosses(self, starts: Iterable[int]) -> bool:
        """Whether a log has begun within it."""
        return any(self.first < start <= self.last for start in starts)


class Moment(NamedTuple):
    """What a broker knew of a log that it led: from when on, under which epoch, and up to where."""

    since: float
    leader_epoch: int
    high_watermark: int
    log_end: int


@dataclass
class Replica:
    """One broker's log. ``batches`` are all of its branch, also those that retention has taken from the disk."""

    broker: int
    disk: PartitionDir
    batches: list[Batch] = field(default_factory=list)
    epochs: Lineage = field(default_factory=Lineage)
    log_start: int = 0
    high_watermark: int = 0
    leader_epoch: int = -1
    """The newest epoch that the broker has heard of."""
    leads: bool = False
    """Whether the broker believes that it leads under that epoch."""
    in_sync: set[int] = field(default_factory=set)
    """The in-sync replicas that this leader has heard of."""
    fetched: int = 0
    """How far this leader has seen the follower fetch."""
    left: dict[int, bytes] = field(default_factory=dict)
    """What compaction has left here of the batches that it has cleaned, by base offset."""
    history: list[Moment] = field(default_factory=list)

    @property
    def end(self) -> int:
        """The log end offset."""
        return self.batches[-1].end if self.batches else self.log_start

    @property
    def kept_epochs(self) -> Lineage:
        """The lineage, where retention has cut it."""
        kept = self.epochs.since(self.log_start).entries
        return Lineage(tuple((epoch, max(start, self.log_start)) for epoch, start in kept))

    def content(self, start: int, end: int) -> bytes:
        """The bytes of the batches from ``start`` to ``end``, as compaction has left them."""
        within = (batch for batch in self.batches if start <= batch.base and batch.end <= end)
        return b"".join(self.left.get(batch.base, batch.content) for batch in within)

    def assign(self, epoch: int, start: int) -> None:
        """Note that ``epoch`` begins; entries that this contradicts go, as in ``LeaderEpochFileCache.assign``."""
        entries = self.epochs.entries
        if not entries or entries[-1][0] < epoch:
            self.epochs = Lineage((*(entry for entry in entries if entry[1] < start), (epoch, start)))

    def append(self, batches: Iterable[tuple[Batch, bytes]]) -> None:
        """Append batches, each with the bytes that are left of it."""
        for batch, content in batches:
            self.batches.append(batch)
            if content != batch.content:
                self.left[batch.base] = content
            if content:
                self.assign(batch.epoch, batch.base)
                self.disk.append(content)

    def cut(self, end: int) -> None:
        """Truncate the log. An epoch goes in any case that has begun at its end and has no batch, as in Kafka."""
        end = min(end, self.end)
        self.epochs = self.epochs.truncated(end)
        if end == self.end:
            return
        self.batches = [batch for batch in self.batches if batch.end <= end]
        self.left = {base: content for base, content in self.left.items() if base < end}
        self.high_watermark = min(self.high_watermark, end)
        if end < self.log_start:
            self.begin_at(end)
            return
        base = max(base for base in self.disk.bases if base <= end)
        self.disk.truncate(base, len(self.content(base, end)))

    def save(self) -> SavedLog:
        """A copy of the log."""
        log = tuple(self.batches), self.epochs, self.log_start, self.high_watermark, dict(self.left)
        return SavedLog(*log, tuple(self.disk.bases))

    def restore(self, saved: SavedLog) -> None:
        """Put a copy in place of the log."""
        self.batches, self.epochs, self.log_start = list(saved.batches), saved.epochs, saved.log_start
        self.high_watermark, self.left = saved.high_watermark, dict(saved.left)
        ends = [*saved.bases[1:], self.end]
        self.disk.replace({base: self.content(base, end) for base, end in zip(saved.bases, ends, strict=True)})

    def lead_again(self, epoch: int) -> None:
        """Begin an epoch that the log may have seen (``LeaderEpochFileCache.assign``): later ones are forgotten."""
        entries = list(self.epochs.entries)
        if entries and entries[-1][0] == epoch:
            return
        while entries and (entries[-1][0] >= epoch or entries[-1][1] >= self.end):
            entries.pop()
        self.epochs = Lineage((*entries, (epoch, self.end)))

    def begin_at(self, start: int) -> None:
        """Drop the whole log, and begin an empty one."""
        self.log_start = start
        self.disk.begin_again(start)

    def roll(self) -> None:
        """Begin another segment, if the active one has any record."""
        if self.end > self.disk.bases[-1]:
            self.disk.roll(self.end, {open_.producer: open_.first for open_ in transactions(self.batches)[1]})

    def write_epochs(self) -> None:
        """Write ``leader-epoch-checkpoint``."""
        self.disk.epochs([*self.kept_epochs.entries])


class SavedLog(NamedTuple):
    """A replica's log in a backup."""

    batches: tuple[Batch, ...]
    epochs: Lineage
    log_start: int
    high_watermark: int
    left: dict[int, bytes]
    bases: tuple[int, ...]


class SavedPartition(NamedTuple):
    """What the controller had decided about a partition at the time of a backup, and its replicas' logs."""

    leader: int
    leader_epoch: int
    in_sync: frozenset[int]
    logs: dict[int, SavedLog]


@dataclass
class Partition:
    """A partition: its replicas, and what the controller has decided."""

    at: TopicPartition
    topic_id: uuid.UUID
    replicas: dict[int, Replica]
    leader: int
    leader_epoch: int = 0
    in_sync: set[int] = field(default_factory=set)
    gone: bool = False
    fetching: bool = False
    appended: dict[tuple[int, int], Batch] = field(default_factory=dict)
    """Each batch that was ever appended, by (offset, epoch)."""
    committed: set[tuple[int, int]] = field(default_factory=set)
    """Each batch that was ever below a leader's high watermark."""
    emptied: set[tuple[int, int]] = field(default_factory=set)
    """Each batch of which compaction has left nothing on some broker."""
    longest: int = 0
    """The highest log end that there ever was."""
    highest: int = 0
    """The highest high watermark that there ever was."""
    starts: list[int] = field(default_factory=list)
    """All offsets at which a broker's log has begun."""
    retired: list[tuple[int, int]] = field(default_factory=list)
    """Offsets that retention has taken from a disk without asking whether they are stored."""

    @property
    def led(self) -> Replica:
        """The replica of the leader that the controller has chosen."""
        return self.replicas[self.leader]

    @property
    def high_watermark(self) -> int:
        """The leader's high watermark."""
        return self.led.high_watermark

    @property
    def log_end(self) -> int:
        """The leader's log end offset."""
        return self.led.end

    @cached_property
    def kafka_id(self) -> str:
        """The topic id as Kafka writes it."""
        text = topic_id_text(self.topic_id)
        assert text is not None
        return text

    def branch(self, lineage: Lineage) -> list[Batch]:
        """The batches that were ever appended on ``lineage``."""
        return sorted(batch for batch in self.appended.values() if lineage.is_live(batch.base, batch.epoch))

    def wrong_bytes(self, start: int, end: int, data: bytes, *, compacted: bool) -> str | None:
        """What is wrong with ``data``, if they are not committed batches from ``start`` to ``end``."""
        at = start
        for id_, content in split(data).items():
            batch = self.appended.get(id_)
            true = {batch.content, batch.thinned} if batch and compacted else {batch.content} if batch else set()
            if batch is None or content not in true:
                return f"the batch at {id_} (offset, epoch) is not the log's"
            if batch.id not in self.committed:
                return f"the batch at {id_} (offset, epoch) was never committed"
            if batch.base < at or (batch.base > at and not compacted):
                return f"the batch after offset {at} begins at {batch.base}"
            at = batch.end
        return None if at == end or (compacted and at < end) else f"the batches end at {at}, and not at {end}"


def split(data: bytes) -> dict[tuple[int, int], bytes]:
    """Batches by their base offsets and epochs."""
    found: dict[tuple[int, int], bytes] = {}
    at = 0
    while at < len(data):
        base, length, epoch = struct.unpack_from(">qii", data, at)
        found[base, epoch] = data[at : at + 12 + length]
        at += 12 + length
    return found


def transactions(batches: Iterable[Batch]) -> tuple[list[Transaction], list[Transaction]]:
    """The transactions that a log has decided, and those that are open at its end, which is their ``last``."""
    decided: list[Transaction] = []
    first: dict[int, int] = {}
    end = 0
    for batch in batches:
        end = batch.end
        if batch.producer < 0:
            continue
        if batch.commits is None:
            first.setdefault(batch.producer, batch.base)
        elif batch.producer in first:
            decided.append(Transaction(batch.producer, first.pop(batch.producer), batch.base, not batch.commits))
    return decided, [Transaction(producer, start, end, False) for producer, start in first.items()]


class Leading(NamedTuple):
    """Who leads a partition of which topic, and who has a replica."""

    topic_id: uuid.UUID
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]


class Cluster:
    """Changes partitions as it is told to, and everything on the brokers' disks with them."""

    def __init__(
        self, disks: dict[int, LogDir], scheduler: Scheduler, faults: Faults, *, compacted: bool, transactional: bool
    ) -> None:
        self.compacted = compacted
        """Whether ``cleanup.policy`` of all topics is ``compact``."""
        self.restored = False
        """Whether anything was restored from a backup."""
        self.keeps_last = False
        """Whether compaction leaves a record of a log's last batch, as it does unless that is a tombstone."""
        self.partitions: dict[TopicPartition, Partition] = {}
        self.lives: list[Partition] = []
        """All partitions that there ever were, those of deleted topics too."""
        self.views: list[tuple[float, dict[TopicPartition, Leading]]] = [(0.0, {})]
        """Who has led what, and since when."""
        self._transactional = transactional
        self._disks = disks
        self._scheduler = scheduler
        self._faults = faults
        self._ids = count(1)
        self._serials = count(1)

    def create(self, topic: str, partitions: int, *, replicated: bool) -> None:
        """Make a topic, led by broker 1."""
        topic_id = uuid.UUID(int=(next(self._ids) << 64) | 0x4000_0000_0000_8000_0000_0000_0000)
        brokers = BROKERS if replicated else (US,)
        for number in range(partitions):
            at = TopicPartition(topic, number)
            made = Partition(at, topic_id, {}, US, in_sync=set(brokers))
            for broker in brokers:
                disk = PartitionDir(self._disks[broker], str(at), made.kafka_id, self._faults, self._scheduler)
                made.replicas[broker] = Replica(broker, disk)
            self.partitions[at] = made
            self.lives.append(made)
            for broker in brokers:
                self._learn(made, broker)
        self._tell()

    def delete(self, topic: str) -> None:
        """Delete a topic."""
        for at in [at for at in self.partitions if at.topic == topic]:
            partition = self.partitions.pop(at)
            partition.gone = True
            for replica in partition.replicas.values():
                replica.disk.rename_away()
        self._tell()

    def append(self, partition: Partition, broker: int, records: Sequence[int]) -> None:
        """Produce batches of so many records each, or markers, if ``broker`` believes that it leads."""
        replica = partition.replicas.get(broker)
        if replica is None or not replica.leads:
            return
        for number in records:
            batch = self._batch(replica, number)
            partition.appended[batch.id] = batch
            replica.append([(batch, batch.content)])
        partition.longest = max(partition.longest, replica.end)
        self._advance(partition, replica)
        self._fetch_soon(partition)

    def compact(self, partition: Partition, replica: Replica, number: float) -> None:
        """Roll, and clean all segments below the high watermark and the first open transaction.

        The last batches of one may go, or all of them. A batch of a transaction keeps a record.
        """
        replica.roll()
        draw = random.Random(f"compact {number} {replica.end}")
        limit = min([replica.high_watermark, *(open_.first for open_ in transactions(replica.batches)[1])])
        for base, end in pairwise(replica.disk.bases):
            if end > limit:
                break
            for batch in replica.batches:
                if base <= batch.base and batch.end <= end and batch.commits is None:
                    chance, left = draw.random(), replica.left.get(batch.base, batch.content)
                    thinned = batch.thinned if left else left
                    gone = thinned if batch.producer >= 0 else b""
                    if self.keeps_last and batch is replica.batches[-1]:
                        gone = thinned
                    left = left if chance < 0.3 else thinned if chance < 0.5 else gone
                    replica.left[batch.base] = left
                    if not left:
                        partition.emptied.add(batch.id)
            replica.disk.clean(base, replica.content(base, end))

    def retire(self, partition: Partition, replica: Replica, number: int, limit: int | None = None) -> None:
        """Retention takes up to so many segments, none of them active or above the high watermark.

        With a ``limit`` it takes only what lies below.
        """
        bases = replica.disk.bases
        most = replica.high_watermark if limit is None else min(limit, replica.high_watermark)
        number = min(number, sum(base <= most for base in bases[1:]))
        if number:
            start = bases[number]
            if limit is None:
                partition.retired.append((bases[0], start))
            replica.disk.retire(number)
            replica.log_start = max(start, replica.log_start)
            partition.starts.append(replica.log_start)
            replica.write_epochs()

    def delete_records(self, partition: Partition, number: float, limit: int | None = None) -> None:
        """DeleteRecords moves the log start, maybe into a batch, on all brokers that have the offset."""
        leader = partition.led
        most = leader.high_watermark if limit is None else min(limit, leader.high_watermark)
        start = leader.log_start + int(number * (most - leader.log_start + 1))
        if start <= leader.log_start:
            return
        partition.starts.append(start)
        if limit is None:
            partition.retired.append((leader.log_start, start))
        for replica in partition.replicas.values():
            if replica.log_start < start <= replica.end:
                replica.log_start = start
                replica.write_epochs()

    def shrink(self, partition: Partition) -> None:
        """The leader takes its follower out of the in-sync replicas."""
        leader = partition.led
        if leader.leads and leader.leader_epoch == partition.leader_epoch:
            partition.in_sync = {partition.leader}
            leader.in_sync = set(partition.in_sync)
            self._advance(partition, leader)

    def view(self, moment: float) -> dict[TopicPartition, Leading]:
        """The leaders at a moment."""
        return next(view for since, view in reversed(self.views) if since <= max(0.0, moment))

    def elect(self, partition: Partition, leader: int, *, clean: bool) -> None:
        """The controller chooses a leader; ``clean`` elections choose one of the in-sync replicas."""
        if leader == partition.leader or leader not in partition.replicas:
            return
        if clean and leader not in partition.in_sync:
            return
        if leader not in partition.in_sync:
            partition.in_sync = {leader}
        self._lead(partition, leader)

    def lose_power(self, broker: int, number: float) -> None:
        """A broker loses the ends of its logs. Where it led, an epoch begins, under an in-sync replica if there is one.

        Without a new epoch, one (offset, epoch) could name two batches.
        """
        for partition in self.partitions.values():
            replica = partition.replicas.get(broker)
            if replica is None:
                continue
            kept = [batch.end for batch in replica.batches if batch.end >= replica.log_start]
            lost = min(int(number * 4), len(kept))
            if lost:
                replica.cut(max(replica.log_start, kept[-lost - 1] if lost < len(kept) else replica.log_start))
            replica.write_epochs()
            replica.leads, replica.leader_epoch = False, -1
            if len(partition.in_sync) > 1:
                partition.in_sync.discard(broker)
            if partition.leader == broker:
                self._lead(partition, min(partition.in_sync))
            else:
                self._learn_soon(partition, broker)

    def back_up(self) -> dict[TopicPartition, SavedPartition]:
        """A copy of all disks and metadata."""
        return {
            at: SavedPartition(
                one.leader,
                one.leader_epoch,
                frozenset(one.in_sync),
                {broker: replica.save() for broker, replica in one.replicas.items()},
            )
            for at, one in self.partitions.items()
        }

    def restore(
        self, saved: dict[TopicPartition, SavedPartition], brokers: Iterable[int], *, disks: bool, metadata: bool
    ) -> None:
        """Restore disks, the metadata, or both. All brokers start again; without the metadata, in a new epoch."""
        for at, before in saved.items():
            partition = self.partitions[at]
            for broker in partition.replicas.keys() & set(brokers) if disks else ():
                partition.replicas[broker].restore(before.logs[broker])
            if metadata:
                partition.leader, partition.leader_epoch = before.leader, before.leader_epoch
                partition.in_sync = set(before.in_sync)
            else:
                partition.leader_epoch += 1
            for replica in partition.replicas.values():
                replica.leads, replica.leader_epoch = False, -1
                replica.write_epochs()
                self._learn_soon(partition, replica.broker)
        self.restored = True
        self._tell()

    def settle(self, partition: Partition) -> None:
        """All brokers know who leads, and the follower has caught up, or does so soon."""
        for broker in partition.replicas:
            self._learn(partition, broker)
        self._fetch_soon(partition)

    def checkpoint(self) -> None:
        """Write the high watermarks to the disks, as Kafka does every five seconds."""
        for broker, disk in self._disks.items():
            marks = [
                f"{at.topic} {at.partition} {partition.replicas[broker].high_watermark}\n"
                for at, partition in sorted(self.partitions.items())
                if broker in partition.replicas
            ]
            path = disk.path / "replication-offset-checkpoint"
            Path(f"{path}.tmp").write_text(f"0\n{len(marks)}\n{''.join(marks)}")
            disk.touch(Path(f"{path}.tmp"))
            Path(f"{path}.tmp").rename(path)
        self._scheduler.call_later(5.0, self.checkpoint)

    def _batch(self, replica: Replica, records: int) -> Batch:
        """The next batch of a leader: its bytes are those of no other one."""
        base, fields = replica.end, {"leader_epoch": replica.leader_epoch, "base_sequence": next(self._serials)}
        at = {"base_offset": base} | fields
        draw = self._faults.within(0.0, 1.0) if self._transactional else 1.0
        if draw >= 0.7:
            content, thinned = (reseal(form[records - 1], **at) for form in (_PLAIN, _THINNED))
            return Batch(base, base + records, replica.leader_epoch, content, thinned)
        producer = PRODUCERS[int(draw * 100) % 2]
        at |= {"producer_id": producer, "producer_epoch": 0}
        opened = {open_.producer for open_ in transactions(replica.batches)[1]}
        if producer in opened and draw < 0.42:
            commits = draw < 0.21
            content = reseal(_MARKERS[commits], **at)
            return Batch(base, base + 1, replica.leader_epoch, content, content, producer, commits)
        at |= {"attributes": _TRANSACTIONAL}
        content, thinned = (reseal(form[records - 1], **at) for form in (_PLAIN, _THINNED))
        return Batch(base, base + records, replica.leader_epoch, content, thinned, producer)

    def _lead(self, partition: Partition, leader: int) -> None:
        partition.leader, partition.leader_epoch = leader, partition.leader_epoch + 1
        self._tell()
        for broker in partition.replicas:
            self._learn_soon(partition, broker)

    def _learn_soon(self, partition: Partition, broker: int) -> None:
        slow = self._faults.strike("learns_late", f"{broker} of {partition.at}")
        delay = self._faults.felt(self._faults.within(0.0, 10.0) if slow else self._faults.within(0.0, 0.1))
        self._scheduler.call_later(delay, lambda: self._learn(partition, broker))

    def _learn(self, partition: Partition, broker: int) -> None:
        """A broker acts upon what the controller has decided: a leader notes where its epoch begins."""
        replica = partition.replicas[broker]
        if partition.gone or replica.leader_epoch == partition.leader_epoch:
            return
        replica.leader_epoch, replica.leads = partition.leader_epoch, partition.leader == broker
        if replica.leads:
            if self.restored:
                replica.lead_again(partition.leader_epoch)
            replica.assign(partition.leader_epoch, replica.end)
            replica.write_epochs()
            replica.in_sync, replica.fetched = set(partition.in_sync), 0
            self._advance(partition, replica)
        self._fetch_soon(partition)

    def _fetch_soon(self, partition: Partition) -> None:
        """The follower fetches, now or later."""
        if len(partition.replicas) == 1 or partition.fetching:
            return
        partition.fetching = True
        slow = self._faults.strike("fetch_slow", str(partition.at))
        delay = self._faults.felt(self._faults.within(0.0, 20.0) if slow else self._faults.within(0.001, 0.5))
        self._scheduler.call_later(delay, lambda: self._fetch(partition))

    def _fetch(self, partition: Partition) -> None:
        """The follower truncates to where its log leaves the leader's (KIP-101), and copies what it lacks."""
        partition.fetching = False
        leader = partition.led
        [follower] = [replica for replica in partition.replicas.values() if replica is not leader]
        if partition.gone or not leader.leads:
            return
        if not follower.leader_epoch == leader.leader_epoch == partition.leader_epoch:
            return  # who learns of the epoch fetches again
        follower.cut(_common_end(follower, leader))
        if follower.end < leader.log_start:
            follower.batches = [batch for batch in leader.batches if batch.end <= leader.log_start]
            follower.left = {}
            follower.epochs = leader.epochs.truncated(leader.log_start)
            follower.begin_at(leader.log_start)
        lacking = [batch for batch in leader.batches if batch.base >= follower.end]
        follower.append((batch, leader.left.get(batch.base, batch.content)) for batch in lacking)
        follower.write_epochs()
        follower.high_watermark = max(follower.high_watermark, min(leader.high_watermark, follower.end))
        leader.fetched = follower.end
        if follower.end >= max(leader.high_watermark, leader.epochs.entries[-1][1]):
            partition.in_sync.add(follower.broker)
            leader.in_sync = set(partition.in_sync)
        self._advance(partition, leader)
        if follower.high_watermark < leader.high_watermark:
            self._fetch_soon(partition)

    def _advance(self, partition: Partition, leader: Replica) -> None:
        """The high watermark is what all in-sync replicas were seen to have."""
        end = min(leader.end, leader.fetched) if len(leader.in_sync) > 1 else leader.end
        if end > leader.high_watermark:
            fresh = [batch.id for batch in leader.batches if leader.high_watermark < batch.end <= end]
            leader.high_watermark = end
            partition.committed.update(fresh)
            partition.highest = max(partition.highest, end)
            self._faults.tell(f"   {partition.at}: broker {leader.broker} has the high watermark {end}")
        leader.history.append(Moment(self._scheduler.now, leader.leader_epoch, leader.high_watermark, leader.end))

    def _tell(self) -> None:
        """All brokers are told who leads, sooner or later."""
        view = {
            at: Leading(one.topic_id, one.leader, one.leader_epoch, tuple(one.replicas))
            for at, one in sorted(self.partitions.items())
        }
        self.views.append((self._scheduler.now, view))


def _common_end(follower: Replica, leader: Replica) -> int:
    """Up to where a follower's log is the leader's: to the end of the newest epoch that both have."""
    theirs = {epoch for epoch, _ in leader.epochs.entries}
    common = [epoch for epoch, _ in follower.epochs.entries if epoch in theirs]
    if not common:
        return min([follower.end, leader.end, *(start for _, start in follower.epochs.entries[:1])])
    ends = (replica.epochs.end_offset(common[-1], replica.end) for replica in (follower, leader))
    return min([follower.end, leader.end, *(end[1] for end in ends if end is not None)])
