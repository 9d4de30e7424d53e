"""Random logs, landed step by step from packs and seals: always as the true log has them, and as from seals alone."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.spark.audit.test_audit import audited
from tests.spark.run.test_live_end import sums
from tests.spark.world import World, in_process
from tests.support.live_end import Packed, Packer
from tests.tidemark.remote.model import Batch, Log, compact
from tidemark.kafka_log import Lineage, OpenTransaction
from tidemark.planning import plan_rebuild, plan_repair, write_plan
from tidemark.planning.partition_plan import left_at
from tidemark.raw_topic import RawTopic
from tidemark.store import LocalStore
from tidemark_spark.run.driver import run

BROKERS = (1, 2, 3)


@dataclass
class Written:
    """A range that was packed: its batches, and the branch that it is of."""

    packed: Packed
    lineage: Lineage

    def is_live(self, lineage: Lineage) -> bool:
        """Whether all of it is on ``lineage``."""
        return self.lineage.divergence(lineage, self.packed.part.next) is None


@dataclass
class Cluster:
    """One partition: the leader's log, and what agents have stored of it. ``covered`` is up to where that reaches."""

    world: World
    rng: random.Random
    compacted: bool
    log: Log = field(default_factory=lambda: Log("a", [(1, 0)]))
    epoch: int = 1
    leader: int = 1
    sealed: int = 0
    covered: int = 0
    written: list[Written] = field(default_factory=list)
    removed: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.packers = {broker: Packer(self.world.raw, broker) for broker in BROKERS}
        self.claim()

    def claim(self) -> None:
        """The leader's agent writes whose log counts."""
        known = self.world.raw.partition()
        known.lineage, known.leader_epoch = tuple(self.log.lineage), self.epoch
        known.end = known.next_offset = self.sealed
        known.tail_end = self.covered

    def grow(self) -> None:
        """The leader's log gets batches; some of them compaction takes before anybody reads them."""
        count = len(self.log.batches)
        self.log.grow(self.rng, self.rng.randint(1, 4))
        if self.compacted:
            fresh = Log("", [], self.log.batches[count:])
            self.removed |= {base for base in compact(fresh, self.rng) if base > self.log.batches[count].base}

    def pack(self) -> None:
        """The leader packs on from where what is stored ends."""
        batches = self._some(self.covered)
        while batches and batches[-1].base in self.removed:
            batches.pop()  # a range ends with a batch
        if not batches:
            return
        packer, known = self.packers[self.leader], self.world.raw.partition()
        end = batches[-1].end
        packed = packer.pack(
            self._bodies(batches),
            first=self.covered,
            aborted=self._aborted(self.covered, end),
            compacted=self.compacted,
            opened=self._open_at(self.covered),
        )
        self.written.append(Written(packed, Lineage(known.lineage).truncated(end)))
        self.covered = end

    def seal(self) -> None:
        """The leader seals on from where the seals end, and forgets the tails that are sealed."""
        batches = self._some(self.sealed)
        if not batches:
            return
        known, lineage, end = self.world.raw.partition(), Lineage(tuple(self.log.lineage)), batches[-1].end
        known.open_transactions = tuple(self._open_at(self.sealed))
        within = (one for one in self.written if one.is_live(lineage))
        parts = [
            one.packed.part for one in within if self.sealed <= one.packed.part.first < one.packed.part.next <= end
        ]
        self.world.raw.segment(
            self._bodies(batches),
            base=self.sealed,
            next_offset=end,
            lineage=lineage.truncated(end).entries,
            compacted=self.compacted,
            aborted=self._aborted(self.sealed, end),
            parts=parts,
            rotated=False,
        )
        self.sealed, self.covered = end, max(self.covered, end)
        self.claim()
        ends = [*(start for _, start in lineage.entries[1:]), None]
        over = {epoch for (epoch, _), at in zip(lineage.entries, ends, strict=True) if at is not None and at <= end}
        if self.covered == self.sealed:
            over.add(self.epoch)
        for epoch, broker in known.tails:
            if epoch in over:
                self.packers[broker].drop(epoch=epoch)
        known.tails = tuple(pair for pair in known.tails if pair[0] not in over)

    def elect(self) -> None:
        """A clean election."""
        self._lead(self.log)

    def cut(self) -> None:
        """An unclean election: the new leader lacks the last batches."""
        count = max(0, len(self.log.batches) - self.rng.randint(1, 6))
        while count and self.log.batches[count - 1].base in self.removed:
            count -= 1  # compaction never takes the last batch
        end = self.log.batches[count - 1].end if count else 0
        self.removed -= {one.base for one in self.log.batches[count:]}
        kept = [one for one in self.log.lineage if one[1] < end]
        self._lead(Log(f"{self.log.name}{self.epoch}", kept, self.log.batches[:count]))
        self.sealed, self.covered = min(self.sealed, end), min(self.covered, end)
        self.claim()

    def expire(self) -> None:
        """Retention deletes the packs that seals hold."""
        lineage = Lineage(tuple(self.log.lineage))
        for one in self.written:
            if one.is_live(lineage) and one.packed.part.next <= self.sealed:
                self.world.raw.store.delete(one.packed.key)

    @contextmanager
    def late(self) -> Iterator[None]:
        """A store shows some of the newest packs late."""
        store = self.world.raw.store
        there = {info.key for info in store.list("_tails/")}
        keys = [one.packed.key for one in self.written if one.packed.part.first >= self.sealed]
        keys = [key for key in keys if key in there]
        hidden = self.rng.sample(keys, min(len(keys), self.rng.randint(1, 2)))
        bodies = {key: store.get(key).body for key in hidden}
        for key in bodies:
            store.delete(key)
        yield
        for key, body in bodies.items():
            store.put(key, body, if_none_match=True)

    def step(self) -> None:
        """Something happens."""
        acts = [self.grow, self.grow, self.pack, self.pack, self.seal, self.elect, self.cut, self.expire]
        self.rng.choices(acts, weights=[4, 4, 4, 4, 3, 1, 1, 1])[0]()

    def expected(self) -> int:
        """How far the partition can land."""
        return min([self.covered, *(one.first for one in self.log.open_at(self.covered))])

    def rows(self, end: int) -> list[tuple[int, int, bytes]]:
        """The rows of the true log below ``end``."""
        aborted = self.log.aborts()
        return [
            (row.offset, row.epoch, row.value)
            for one in self.log.batches
            if one.base not in self.removed
            and not any(one.producer == each.producer and each.first <= one.base < each.last for each in aborted)
            for row in one.rows
            if row.offset < end
        ]

    def _lead(self, log: Log) -> None:
        self.epoch += self.rng.randint(1, 2)
        self.leader = self.rng.choice(BROKERS)
        lineage = [one for one in log.lineage if one[1] < log.end]
        self.log = Log(log.name, [*lineage, (self.epoch, log.end)], log.batches)
        self.claim()

    def _some(self, start: int) -> list[Batch]:
        """The batches from ``start`` on, up to a random one; none if compaction has taken all of these."""
        batches = [one for one in self.log.batches if one.base >= start]
        batches = batches[: self.rng.randint(1, 6)]
        return batches if any(one.base not in self.removed for one in batches) else []

    def _bodies(self, batches: list[Batch]) -> list[bytes]:
        return [one.raw for one in batches if one.base not in self.removed]

    def _aborted(self, start: int, end: int) -> list[tuple[int, int, int]]:
        return [(one.producer, one.first, one.last) for one in self.log.aborts() if start <= one.last < end]

    def _open_at(self, offset: int) -> list[OpenTransaction]:
        return [
            OpenTransaction(producer_id=one.producer, producer_epoch=0, first_offset=one.first)
            for one in self.log.open_at(offset)
        ]


def rows_of(world: World) -> list[tuple[int, int, bytes]]:
    """The table's rows."""
    return [(row["kafka_offset"], row["kafka_leader_epoch"], row["kafka_value"]) for row in world.rows()]


def check_kept(cluster: Cluster) -> int | None:
    """What has landed is the true log's; returns up to where. None while the log leaves a branch that has landed."""
    world = cluster.world
    state = world.ledger.by_partition.get((0, 0))
    part = RawTopic(world.table).partition((0, 0))
    watermark = RawTopic(world.table).watermark(part)
    assert watermark is not None
    if state is None:
        return 0
    if left_at(watermark, state) is not None:
        return None
    assert state.gaps == ()
    assert rows_of(world) == cluster.rows(state.next_offset)
    return state.next_offset


def check(cluster: Cluster) -> None:
    """... and it is all that can land."""
    assert check_kept(cluster) in {None, cluster.expected()}


def schedule(root: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch, *, compacted: bool) -> Cluster:
    """Steps of agents, landings, and steps of agents in the middle of a landing's plan."""
    world = World(root / "live")
    cluster = Cluster(world, rng, compacted)
    real, busy = LocalStore.get, [False]

    def get(store: LocalStore, key: str, **of: Any) -> Any:
        if busy[0] and ("_heads" in key or key.endswith("offset.wm")) and rng.random() < 0.2:
            busy[0] = False
            for _ in range(rng.randint(1, 3)):
                cluster.step()
            world.raw.publish()
        return real(store, key, **of)

    monkeypatch.setattr(LocalStore, "get", get)
    for _ in range(14):
        for _ in range(rng.randint(1, 6)):
            cluster.step()
        if rng.random() < 0.3:
            with cluster.late():
                world.land()
            check_kept(cluster)
        elif rng.random() < 0.4:
            world.raw.publish()
            busy[0] = True
            plan = world.plan()
            busy[0] = False
            run(world.table, plan, in_process)
            world.check()
        else:
            world.land()
            check(cluster)
    return cluster


def made_again(world: World) -> None:
    """A table that somebody changed is repaired, and then all of it is rebuilt; nothing is another thing then."""
    before = rows_of(world), world.classes(), sums(world)
    if world.ledger.rows:
        DeltaTable(world.table.url).delete("kafka_offset % 5 = 1")
    for planned in (plan_repair, partial(plan_rebuild, dates=None)):
        plan = planned(world.table)
        write_plan(world.table, plan)
        assert run(world.table, plan, in_process).status in {"landed", "empty"}
        world.check()
        assert (rows_of(world), world.classes(), sums(world)) == before
    report = audited(world)
    assert report.passed, report.text()
    assert not any(one.by_evidence for one in report.partitions), "raw proves all"


def sealed_up(cluster: Cluster) -> None:
    """All is sealed, and no pack is left."""
    world = cluster.world
    cluster.grow()
    while cluster.sealed < cluster.log.end:
        cluster.seal()
    for info in list(world.raw.store.list("_tails/")):
        world.raw.store.delete(info.key)


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("number", [0, *(pytest.param(one, marks=pytest.mark.full) for one in range(1, 60))])
def test_what_lands_is_the_true_log(
    tmp_path: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch, number: int, compacted: bool
) -> None:
    cluster = schedule(tmp_path, rng, monkeypatch, compacted=compacted)
    world = cluster.world
    while cluster.covered < cluster.log.end:
        cluster.pack()
    world.land()
    check(cluster)
    if world.ledger.n and check_kept(cluster) is not None:  # a repair takes back what the log has left
        made_again(world)
    sealed_up(cluster)
    world.land()
    check(cluster)
    assert world.next_offset() == cluster.expected()
    other = World(tmp_path / "seals", raw=f"file://{tmp_path}/live/raw")
    run(other.table, other.plan(), in_process)
    assert (rows_of(other), other.classes(), sums(other)) == (rows_of(world), world.classes(), sums(world))
    made_again(world)
