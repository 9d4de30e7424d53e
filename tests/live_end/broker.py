"""Brokers with one partition: logs, lineages, high watermarks, elections, truncation, retention, compaction."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.live_end.model import Abort, Batch, Log, Open, branch_point, is_live, scan
from tidemark.kafka_log import Lineage


class Led(NamedTuple):
    """What a broker answers to the question who leads: this broker, under ``epoch``."""

    topic: str
    epoch: int


@dataclass
class Replica:
    """One broker's log. ``epoch`` and ``leads`` are what this broker believes, ``heard`` what it tells others."""

    broker: int
    log: list[Batch] = field(default_factory=list)
    log_start: int = 0
    lineage: Lineage = field(default_factory=Lineage)
    hw: int = 0
    epoch: int = -1
    leads: bool = False
    heard: tuple[int, int] = (-1, -1)
    isr: set[int] = field(default_factory=set)
    fetched: dict[int, int] = field(default_factory=dict)
    rolls: list[int] = field(default_factory=list)
    """Where its segments end, but for the active one: batches below may be removed up to there."""
    aborts: list[Abort] = field(default_factory=list)
    """The ``.txnindex`` on the disk, which is written after the markers."""

    @property
    def end(self) -> int:
        return self.log[-1].next if self.log else self.log_start

    @property
    def epoch_start(self) -> int:
        """Where the newest epoch begins."""
        return self.lineage.entries[-1][1] if self.lineage.entries else 0

    def assign(self, epoch: int, start: int) -> None:
        """As ``LeaderEpochFileCache.assign``: entries that the new one contradicts go."""
        if self.lineage.entries and self.lineage.entries[-1][0] >= epoch:
            return
        kept = tuple(entry for entry in self.lineage.entries if entry[1] < start)
        self.lineage = Lineage((*kept, (epoch, start)))

    def cut(self, end: int) -> None:
        """Truncate the log. Its end stays where it is cut, even if compaction has left no batch right before that."""
        end = min(end, self.end)
        self.log = [batch for batch in self.log if batch.next <= end]
        self.log_start = min(self.log_start, end)
        self.lineage = self.lineage.truncated(end)
        self.hw = min(self.hw, self.end)
        self.aborts = [one for one in self.aborts if one.last < self.end]
        self.rolls = [offset for offset in self.rolls if offset <= self.end]

    def read(self, start: int, end: int) -> Log | None:
        """The batches in ``[start, end)``; None if the log begins after ``start``."""
        if start < self.log_start:
            return None
        return tuple(batch for batch in self.log if start <= batch.base and batch.next <= end)


@dataclass
class Topic:
    """One incarnation of the topic."""

    name: str
    replicas: dict[int, Replica]
    leader: int = 0
    epoch: int = 0
    isr: set[int] = field(default_factory=set)
    deleted: bool = False
    history: dict[tuple[int, int], Batch] = field(default_factory=dict)
    """Each batch that was ever appended, by (base, epoch)."""
    committed: set[tuple[int, int]] = field(default_factory=set)
    """(base, epoch) of each batch that was ever below a leader's high watermark."""
    truth: dict[int, Lineage] = field(default_factory=dict)
    """The lineage of the leader of each epoch."""


class Cluster:
    """The brokers, and the controller's decisions."""

    def __init__(self, rng: random.Random, brokers: int, *, transactions: bool, compacted: bool, rises: bool) -> None:
        self._rng = rng
        self._brokers = brokers
        self._transactions = transactions
        self.compacted = compacted
        self._rises = rises
        self._uid = 0
        self.topics: list[Topic] = []
        self.create_topic()

    @property
    def topic(self) -> Topic:
        """The newest incarnation."""
        return self.topics[-1]

    def replica(self, broker: int) -> Replica:
        return self.topic.replicas[broker]

    def on_disk(self, topic: str, broker: int) -> Replica | None:
        """The replica of an incarnation that still exists."""
        return self.replica(broker) if self.topic.name == topic and not self.topic.deleted else None

    # -- what agents ask -----------------------------------------------------------------------------------------------

    def who_leads(self, broker: int) -> Led | None:
        """Whether this broker leads, by its metadata, which may be ahead of its log and behind the controller."""
        if self.topic.deleted:
            return None
        epoch, leader = self.replica(broker).heard
        return Led(self.topic.name, epoch) if leader == broker else None

    def high_watermark(self, topic: str, broker: int, epoch: int) -> int | None:
        """Answered by a broker that believes itself the leader under ``epoch``; it may have been deposed."""
        replica = self.on_disk(topic, broker)
        return replica.hw if replica and replica.leads and replica.epoch == epoch else None

    def checkpoint(self, topic: str, broker: int) -> int | None:
        """The high watermark that the broker last wrote to its disk, whoever leads."""
        replica = self.on_disk(topic, broker)
        return replica.hw if replica else None

    def lineage(self, topic: str, broker: int) -> Lineage | None:
        replica = self.on_disk(topic, broker)
        return replica.lineage if replica else None

    def read(self, topic: str, broker: int, start: int, end: int) -> Log | None:
        replica = self.on_disk(topic, broker)
        return replica.read(start, end) if replica else None

    def replicas(self, topic: str) -> set[int]:
        """The brokers that have a replica of the partition, by the metadata."""
        return set(next(one.replicas for one in self.topics if one.name == topic))

    def rolls(self, topic: str, broker: int) -> tuple[int, ...]:
        """Where the local segments end, but for the active one."""
        replica = self.on_disk(topic, broker)
        return tuple(replica.rolls) if replica else ()

    def log_start(self, topic: str, broker: int) -> int | None:
        replica = self.on_disk(topic, broker)
        return replica.log_start if replica else None

    def open_at(self, topic: str, broker: int, offset: int) -> tuple[Open, ...] | None:
        """Open transactions by the local log and its producer snapshots; None where it does not reach back."""
        replica = self.on_disk(topic, broker)
        if replica is None or offset < replica.log_start:
            return None
        live = self.branch(self.topic, replica.lineage, replica.end)
        return scan((batch for batch in live if batch.next <= offset), ())[0]

    def aborts(self, topic: str, broker: int, start: int, end: int) -> tuple[Abort, ...]:
        """What the ``.txnindex`` on the disk lists."""
        replica = self.on_disk(topic, broker)
        return tuple(one for one in replica.aborts if start <= one.last < end) if replica else ()

    @staticmethod
    def branch(topic: Topic, lineage: Lineage, end: int) -> Log:
        """All batches of a branch, as they were appended."""
        found = (batch for batch in topic.history.values() if batch.next <= end)
        return tuple(sorted(one for one in found if is_live(one.base, one.epoch, lineage)))

    def true_log(self, topic: Topic) -> Log:
        """The log of the current leader, below its high watermark, as it was appended."""
        leader = topic.replicas[topic.leader]
        return self.branch(topic, leader.lineage, leader.hw)

    # -- what happens to them ------------------------------------------------------------------------------------------

    def create_topic(self) -> None:
        """A new incarnation, led by broker 0."""
        brokers = range(self._brokers)
        self.topics.append(Topic(f"t{len(self.topics)}", {one: Replica(one) for one in brokers}, isr=set(brokers)))
        for broker in brokers:
            self.hear(broker)
            self.learn(broker)

    def delete_topic(self) -> None:
        self.topic.deleted = True

    def hear(self, broker: int) -> None:
        """The broker's metadata now says who leads."""
        self.replica(broker).heard = (self.topic.epoch, self.topic.leader)

    def learn(self, broker: int) -> None:
        """The broker acts upon it: a leader assigns its epoch's start."""
        replica, topic = self.replica(broker), self.topic
        self.hear(broker)
        if replica.epoch == topic.epoch:
            return
        replica.epoch, replica.leads = topic.epoch, topic.leader == broker
        if replica.leads:
            replica.assign(topic.epoch, replica.end)
            replica.isr, replica.fetched = set(topic.isr), {}
            topic.truth[topic.epoch] = replica.lineage
            self._advance(replica)

    def append(self, broker: int) -> None:
        """A producer's batch or a coordinator's marker, if the broker believes itself the leader."""
        replica, topic, rng = self.replica(broker), self.topic, self._rng
        if not replica.leads:
            return
        self._uid += 1
        producer, marker, length = None, None, rng.randint(1, 4)
        if self._transactions and rng.random() < 0.7:
            producer = rng.randrange(2)
            opened = {one.producer for one in scan(self.branch(self.topic, replica.lineage, replica.end), ())[0]}
            if producer in opened and rng.random() < 0.6:
                marker, length = rng.choice(("commit", "abort")), 1
        base = replica.end
        rows = () if marker else tuple(range(base, base + length))
        batch = Batch(base, base + length, replica.epoch, self._uid, rows, producer, marker)  # type: ignore[arg-type]  # mypy sees a str
        replica.log.append(batch)
        topic.history[batch.base, batch.epoch] = batch
        self._advance(replica)

    def fetch(self, broker: int) -> None:
        """A follower truncates to where its log diverges from the leader's, and copies up to three batches."""
        follower, topic = self.replica(broker), self.topic
        leader = topic.replicas[topic.leader]
        if follower is leader or not leader.leads or not follower.epoch == leader.epoch == topic.epoch:
            return
        follower.cut(min(branch_point(follower.lineage, follower.end, leader.lineage), leader.end))
        if follower.end < leader.log_start:
            follower.log, follower.log_start = [], leader.log_start
            follower.lineage = leader.lineage.truncated(leader.log_start)
        for batch in [one for one in leader.log if one.base >= follower.end][: self._rng.randint(1, 3)]:
            follower.assign(batch.epoch, batch.base)
            follower.log.append(batch)
        leader.fetched[broker] = follower.end
        follower.hw = min(leader.hw, follower.end)
        if follower.end >= max(leader.hw, leader.epoch_start) and leader.broker == topic.leader:
            topic.isr.add(broker)
            leader.isr = set(topic.isr)
        self._advance(leader)

    def shrink(self) -> None:
        """The leader and the controller take a follower out of the in-sync replicas."""
        topic = self.topic
        leader = topic.replicas[topic.leader]
        others = sorted(topic.isr - {topic.leader})
        if others and leader.leads and leader.epoch == topic.epoch:
            topic.isr.discard(self._rng.choice(others))
            leader.isr = set(topic.isr)
            self._advance(leader)

    def elect(self, *, clean: bool) -> None:
        """The controller chooses a leader. Brokers hear of it later; the old one goes on until then."""
        topic = self.topic
        candidates = sorted(topic.isr - {topic.leader}) if clean else sorted(set(topic.replicas) - {topic.leader})
        if not candidates:
            return
        topic.leader = self._rng.choice(candidates)
        topic.epoch += 1
        if not clean and topic.leader not in topic.isr:
            topic.isr = {topic.leader}

    def power_loss(self, broker: int) -> None:
        """The broker loses the end of its log. If it led, an epoch begins, under another in-sync replica if any."""
        replica, topic = self.replica(broker), self.topic
        lost = self._rng.randint(0, 6)
        cut = max(replica.log_start, replica.end - lost)
        end = max((batch.next for batch in replica.log if batch.next <= cut), default=replica.log_start)
        replica.cut(end)
        replica.leads = False
        if len(topic.isr) > 1:
            topic.isr.discard(broker)
        if topic.leader == broker:
            others = sorted(topic.isr - {broker})
            topic.leader = others[0] if others else broker
            topic.epoch += 1 if self._rises or others else 0
        replica.epoch, replica.heard = -1, (-1, -1)
        if not self._rises and topic.leader == broker:
            self.learn(broker)

    def keep_from(self, broker: int, offset: int) -> None:
        """Retention: the log of the broker begins at the batch with ``offset``, its last batch stays."""
        replica = self.replica(broker)
        kept = [batch for batch in replica.log if batch.next > offset or batch is replica.log[-1]]
        if kept and offset > replica.log_start:
            replica.log_start = max(replica.log_start, min(offset, kept[0].base))
            replica.log = kept

    def roll(self, broker: int) -> None:
        """The broker begins another segment."""
        replica = self.replica(broker)
        if replica.log and replica.end not in replica.rolls:
            replica.rolls.append(replica.end)

    def compact(self, broker: int) -> None:
        """The cleaner removes rows below the high watermark and the first open transaction, and empty batches.

        It removes rows in the same order on all brokers, as newer records with their keys replace them: of two replicas
        one has all that the other has left of a batch.
        """
        replica = self.replica(broker)
        opened = scan(self.branch(self.topic, replica.lineage, replica.hw), ())[0]
        limit = min([replica.hw, *(one.first for one in opened), replica.log[-1].base if replica.log else 0])
        cleaned: list[Batch] = []
        for batch in replica.log:
            rows = batch.rows
            if batch.next <= limit and batch.marker is None:
                worth = [random.Random(f"{batch.uid} {row}").random() for row in rows]
                limits = (limit for limit in (0.3, 0.5, 0.7, 0.9, 1.0) if any(one < limit for one in worth))
                bar = next(limits) if rows and self._rng.random() < 0.6 else 0.0
                if batch.producer is not None:  # see "What the model does not show" in the design
                    bar = min(bar, max(worth, default=0.0))
                rows = tuple(row for row, one in zip(rows, worth, strict=True) if one >= bar)
            if rows or batch.rows == rows:
                cleaned.append(batch._replace(rows=rows))
        replica.log = cleaned

    def index_aborts(self, broker: int) -> None:
        """The ``.txnindex`` catches up with the log."""
        replica = self.replica(broker)
        replica.aborts = list(scan(self.branch(self.topic, replica.lineage, replica.end), ())[1])

    def _advance(self, leader: Replica) -> None:
        """The high watermark: what all in-sync replicas were seen to have."""
        followers = (leader.fetched.get(one, 0) for one in leader.isr - {leader.broker})
        leader.hw = max(leader.hw, min([leader.end, *followers]))
        self.topic.committed.update((batch.base, batch.epoch) for batch in leader.log if batch.next <= leader.hw)

    # -- in the end ----------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Everybody knows the leader, and has its log."""
        for broker in (self.topic.leader, *range(self._brokers)):
            self.learn(broker)
        for _ in range(2):
            for broker in range(self._brokers):
                while self._behind(broker):
                    self.fetch(broker)
                self.fetch(broker)

    def _behind(self, broker: int) -> bool:
        leader = self.replica(self.topic.leader)
        follower = self.replica(broker)
        apart = branch_point(follower.lineage, follower.end, leader.lineage)
        return follower is not leader and (follower.end != leader.end or apart < follower.end)
