"""Random lives of a partition's live end: a reader that polls all along gets each committed record once and in order.

A log grows, under leaders that come and go, also uncleanly. They pack, seal, and publish when they like. Deposed ones
go on to pack. Heads come late or go. Retention deletes packs that seals hold. What is cut off is reported as a
truncation, and nothing else goes back.
"""

from __future__ import annotations

import random

import pytest

from tests.support.raw_builder import RawBuilder
from tests.tidemark.remote.live import Chain, Packing, Range
from tests.tidemark.remote.model import Log, Row
from tests.tidemark.remote.reader import TP, Reader, records_of
from tests.tidemark.remote.reading import read
from tests.tidemark.remote.world import RemoteStore
from tidemark.errors import NotFound
from tidemark.kafka_log import Lineage, OpenTransaction
from tidemark.remote import RemotePartition, RemoteTopics, Stretch
from tidemark.storage import Storage

BROKERS = (5, 6, 7)


class Leader:
    """A leadership: the log as this broker has it, and how many batches of it are packed; the head has ``shown``."""

    def __init__(self, agent: Packing, chain: Chain, log: Log, packed: int) -> None:
        self.agent, self.chain, self.log, self.packed, self.shown = agent, chain, log, packed, packed

    def pack(self, rng: random.Random, *, put_head: bool) -> None:
        """Pack some of what is not packed, in one to three packs."""
        for _ in range(rng.randint(1, 3)):
            after = min(len(self.log.batches), self.packed + rng.randint(1, 6))
            batches = self.log.batches[self.packed : after]
            if not batches:
                break
            base, end = batches[0].base, batches[-1].end
            aborted = [(one.producer, one.first, one.last) for one in self.log.aborts() if base <= one.last < end]
            self.agent.pack(Range([one.raw for one in batches], aborted=aborted), put_head=False)
            self.packed, self.chain.listed = after, True
        if put_head:
            self.put_head()

    def put_head(self) -> None:
        """The head, with all that is packed."""
        self.agent.put_head()
        self.shown = self.packed


class World:
    """One partition, and what the store has of it."""

    def __init__(self, raw: RawBuilder, rng: random.Random) -> None:
        self.raw, self.rng = raw, rng
        self.agents = {broker: Packing(raw, broker) for broker in BROKERS}
        self.past: list[Leader] = []
        self.seals: list[int] = []
        self.sealed = 0  # batches of the leader's log
        self.tails: list[tuple[int, int]] = []
        self.epoch = 3
        log = Log("a", [])
        log.lead(3)
        log.grow(rng, 5)
        self.leader = self._lead(log, 5)

    @property
    def log(self) -> Log:
        """The log of who has claimed the partition last."""
        return self.leader.log

    @property
    def sealed_end(self) -> int:
        return self.log.batches[self.sealed - 1].end if self.sealed else 0

    def act(self, *, elections: bool = True) -> None:
        """One thing happens."""
        rng = self.rng
        kinds = ["grow", "grow", "pack", "pack", "pack", "seal", "head", "delete", "lose"]
        what = rng.choice([*kinds, "elect", "zombie"] if elections else kinds)
        if what == "grow":
            self.log.grow(rng, rng.randint(1, 6))
        elif what == "pack":
            self.leader.pack(rng, put_head=rng.random() < 0.8)
        elif what == "seal":
            self.seal()
        elif what == "elect" and rng.random() < 0.5:
            self.elect()
        elif what == "zombie" and self.past:
            self.zombie(rng.choice(self.past[-2:]))
        elif what == "head":
            self.leader.put_head()
        elif what == "delete":
            self.delete()
        elif what == "lose" and rng.random() < 0.1:
            self.raw.store.delete(self.leader.agent.control.head(rng.choice(BROKERS)))

    def seal(self) -> None:
        """Some of what is not sealed; behind what is packed as well."""
        log, first = self.log, self.sealed
        after = min(len(log.batches), first + self.rng.randint(1, 8))
        if after == first:
            return
        batches = log.batches[first:after]
        base, end = batches[0].base, batches[-1].end
        known = self.raw.partition()
        known.open_transactions = tuple(
            OpenTransaction(producer_id=one.producer, producer_epoch=0, first_offset=one.first)
            for one in log.open_at(base)
        )
        self.raw.segment(
            [one.raw for one in batches],
            base=base,
            lineage=tuple(one for one in log.lineage if one[1] < end),
            aborted=[(one.producer, one.first, one.last) for one in log.aborts() if base <= one.last < end],
        )
        self.sealed = after
        self.seals.append(base)
        self.publish()
        if self.leader.packed <= after:  # what is packed next begins a new chain
            chain = self.leader.chain
            self.leader.packed, chain.end, chain.last = after, end, None
            chain.opened = opened_at(log, end)
        if self.rng.random() < 0.7:
            self._shorten_heads()

    def elect(self) -> None:
        """Another leader claims the partition; cleanly, or with a log that lacks the end."""
        rng = self.rng
        self.epoch += rng.randint(1, 2)
        broker = rng.choice([one for one in BROKERS if one != self.leader.agent.broker])
        self.past.append(self.leader)
        old = self.log
        count = len(old.batches) if rng.random() < 0.4 else rng.randint(max(0, len(old.batches) - 15), len(old.batches))
        self.leader = self._lead(old.fork(f"{old.name}{self.epoch}", count, self.epoch), broker)

    def zombie(self, leader: Leader) -> None:
        """A deposed leader packs what only it has, and its head comes late."""
        if leader.agent.chain() is leader.chain:
            leader.log.grow(self.rng, self.rng.randint(0, 3))
            leader.pack(self.rng, put_head=True)

    def delete(self) -> None:
        """Retention takes the packs that seals hold, of the leader's own chain."""
        for key, end in self.leader.chain.packs:
            if end <= self.sealed_end:
                self.raw.store.delete(key)

    def publish(self) -> None:
        """``offset.wm`` by the leader."""
        known = self.raw.partition()
        lineage = Lineage(tuple(self.log.lineage))
        ends = {pair: lineage.end_offset(pair[0], 1 << 62) for pair in self.tails}
        self.tails = [pair for pair, end in ends.items() if end is None or end[1] > self.sealed_end]
        self.seals = [base for base in self.seals if base < self.sealed_end]
        known.lineage, known.leader_epoch = lineage.entries, self.epoch
        known.end = known.next_offset = self.sealed_end
        known.line1 = max(self.seals, default=0)
        known.tails = tuple(self.tails)
        self.raw.publish()

    def settle(self) -> None:
        """Everything is packed and committed; nobody else writes. The last batch is of the last leader.

        Without one, what a cut has left of a seal or range is undecided until the leader writes again.
        """
        self.log.grow(self.rng, 1)
        for producer in {one.producer for one in self.log.open_at(self.log.end)}:
            self.log._append_marker(producer, commit=self.rng.random() < 0.5)
        while self.leader.packed < len(self.log.batches):
            self.leader.pack(self.rng, put_head=False)
        for agent in self.agents.values():
            agent.put_head()

    def _lead(self, log: Log, broker: int) -> Leader:
        kept = 0
        if self.seals or self.sealed:
            old = self.log
            while kept < min(self.sealed, len(log.batches)) and old.batches[kept] is log.batches[kept]:
                kept += 1
        self.sealed = kept
        end = log.batches[kept - 1].end if kept else 0
        agent = self.agents[broker]
        self.tails.append((self.epoch, broker))
        packed = kept
        if self.past and self.rng.random() < 0.5:  # it inherits what was packed
            before = self.past[-1]
            while packed < min(before.shown, len(log.batches)) and before.log.batches[packed] is log.batches[packed]:
                packed += 1
        start = log.batches[packed - 1].end if packed else 0
        chain = agent.lead(lineage=tuple(log.lineage), end=start, opened=opened_at(log, start))
        found = Leader(agent, chain, log, packed)
        self.leader = found
        assert end == self.sealed_end
        self.publish()
        return found

    def _shorten_heads(self) -> None:
        """Heads drop what ``offset.wm`` no longer lists, and their lineages begin at the end of the seals."""
        for agent in self.agents.values():
            for key, chain in agent.chains.items():
                chain.listed = (key.epoch, agent.broker) in self.tails and chain.end > self.sealed_end
                if chain.listed:
                    below = [number for number, (_, start) in enumerate(chain.lineage) if start <= self.sealed_end]
                    chain.lineage = chain.lineage[max(below, default=0) :]
            agent.put_head()


def opened_at(log: Log, offset: int) -> tuple[OpenTransaction, ...]:
    """The transactions that are open at ``offset``, as an agent finds them."""
    return tuple(OpenTransaction(one.producer, 0, one.first) for one in log.open_at(offset))


def expected_of(log: Log, start: int, end: int, *, committed: bool) -> list[Row]:
    """The records of ``log`` in ``[start, end)``."""
    aborted = [one for one in log.transactions() if one.aborted] if committed else []
    return [
        row
        for one in log.batches
        for row in one.rows
        if start <= row.offset < end
        and not any(one.producer == each.producer and each.first <= one.base <= each.last for each in aborted)
    ]


class Polling:
    """A reader as the consumer is one: it has a position, and the leader epoch of the record before it."""

    def __init__(self, storage: Storage, world: World, *, committed: bool) -> None:
        self.storage, self.committed = storage, committed
        self.position, self.epoch, self.branch = 0, -1, -1
        self.truncations = 0
        self.log = world.log
        self.part = self._opened()

    def poll(self, world: World) -> None:
        """Read all there is; each run of records is what the log has there that was claimed when the reader looked."""
        if world.rng.random() < 0.1:
            self.part, self.branch, self.log = self._opened(), -1, world.log
        elif world.rng.random() < 0.8:
            self.look(world)
        self._validate()
        while True:
            try:
                found = self.part.next_stretch(self.position, committed=self.committed)
                if found is None:
                    return
                assert isinstance(found, Stretch), (self.position, found)
                rows = read(self.storage, found)
            except NotFound:  # its pack was deleted: as the reader does, it looks again
                self.look(world)
                self._validate()
                continue
            assert found.start == self.position
            assert rows == expected_of(self.log, found.start, found.end, committed=self.committed)
            self.position = found.end
            self.epoch = Lineage(tuple(self.log.lineage)).epoch_at(found.end - 1) or -1

    def look(self, world: World) -> None:
        """Refresh the catalogue."""
        self.part.refresh()
        self.log = world.log

    def _validate(self) -> None:
        """KIP-320, as the consumer does it: once for each branch, and again once the end has reached the position."""
        beyond = self.position > self.part.end(committed=False)
        if self.branch == self.part.branch and not beyond:
            return
        self.branch = -1 if beyond else self.part.branch
        at = self.part.diverged(self.position, self.epoch)
        if at is not None:
            assert at < self.position
            self.position, self.truncations = at, self.truncations + 1

    def _opened(self) -> RemotePartition:
        part = RemoteTopics(self.storage).partition("orders", 0)
        assert part is not None
        return part


def live(store: RemoteStore, rng: random.Random, actions: int) -> int:
    """A life; how many truncations were reported."""
    world = World(store.raw(), rng)
    readers = [Polling(store.storage(), world, committed=committed) for committed in (False, True)]
    for _ in range(actions):
        world.act()
        if rng.random() < 0.5:
            rng.choice(readers).poll(world)
    world.settle()
    for reader in readers:
        reader.look(world)
        reader.poll(world)
        assert reader.position == reader.part.end(committed=reader.committed) == world.log.end
    return sum(reader.truncations for reader in readers)


@pytest.mark.parametrize("number", [*range(4), *(pytest.param(one, marks=pytest.mark.full) for one in range(4, 200))])
def test_random_lives(local_store: RemoteStore, rng: random.Random, number: int) -> None:
    live(local_store, rng, 60)


@pytest.mark.parametrize("committed", [False, True])
def test_the_tier_delivers_each_record_of_a_random_life_once(
    local_store: RemoteStore, rng: random.Random, committed: bool
) -> None:
    """Its threads look and read ahead while seals take the place of packs, which go."""
    world = World(local_store.raw(), rng)
    found: list[tuple[int, bytes]] = []
    with Reader(local_store.storage(), committed=committed, refresh_seconds=0.01) as reader:
        reader.tier.read(TP, 0)
        for _ in range(80):
            world.act(elections=False)
            while (block := reader.tier.take(TP)) is not None:
                found += [(one.offset, one.value) for one in records_of(block)]
        world.settle()
        while reader.tier._lanes[TP].position < world.log.end:
            if (block := reader.next()) is not None:
                found += [(one.offset, one.value) for one in records_of(block)]
    expected = expected_of(world.log, 0, world.log.end, committed=committed)
    assert found == [(one.offset, one.value) for one in expected]
