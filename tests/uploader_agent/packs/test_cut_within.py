"""A log that an unclean election has cut within a batch: the first offsets of the batch are live, and the last are not.

DeleteRecords had moved the former leader's log start into the batch. A replica that was behind began an empty log at
that offset, and became the leader.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import pairwise

import pytest

from tests.tidemark.kafka_log.build import simple
from tests.uploader_agent.fakes import ID, T, World
from tests.uploader_agent.packs.packing import FRESHNESS, append, care, pack_once, packs, pieces, tick
from tests.uploader_agent.packs.test_leaders import lost_leadership
from tests.uploader_agent.test_agent import no_errors, remove
from tests.uploader_agent.tested_agent import TestedAgent
from tidemark.intervals import Intervals
from tidemark.kafka_log import Lineage, scan_batches
from uploader_agent.broker.admin import Led
from uploader_agent.packs.packed_run import read_run

FORMER, NEW = 3, 4


@dataclass
class Log:
    """Batches of one leader, by the offsets at which they begin and end."""

    epoch: int
    bounds: list[int]

    @classmethod
    def drawn(cls, rng: random.Random, epoch: int, start: int) -> Log:
        bounds = [start]
        for _ in range(rng.randint(1, 6)):
            bounds.append(bounds[-1] + rng.randint(1, 5))
        return cls(epoch, bounds)

    @property
    def end(self) -> int:
        return self.bounds[-1]

    def data(self, start: int, end: int) -> bytes:
        """The batches from ``start`` to ``end``."""
        batches = [(base, following) for base, following in pairwise(self.bounds) if start <= base and following <= end]
        return b"".join(simple(base, following - base, leader_epoch=self.epoch) for base, following in batches)


class History:
    """Broker 1 has sealed and packed a part of its log; broker 2 leads since, from an offset in it on."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self.world = world
        self.rng = rng
        world.metadata.policy = rng.choice(["delete", "compact"])
        self.former = former = Log.drawn(rng, FORMER, 0)
        self.partition = world.disk.partition()
        rolled = rng.choice(former.bounds)
        if rolled:
            self.partition.segment(0, former.data(0, rolled)).roll(rolled)
            world.metadata.default_high = rolled
            if rng.random() < 0.7:
                no_errors(world.once(freshness=FRESHNESS))
        self.begun = rolled
        self.known = rng.choice([bound for bound in former.bounds[1:] if bound >= rolled])
        self.partition.segment(rolled, former.data(rolled, self.known))
        self.cut = rng.randint(1, former.end)
        self.latter = latter = Log.drawn(rng, NEW, self.cut)
        self.second = world.another(2, leads={T: Led(NEW, ID)}, policy=world.metadata.policy, log_start=self.cut)
        self.second.begins_epochs, self.second.metadata.default_high = False, latter.end
        self.middle = rng.choice(latter.bounds[:-1])
        self.log = self.second.disk.partition().lineage([(NEW, self.cut)])
        if self.middle > self.cut:
            self.log.segment(self.cut, latter.data(self.cut, self.middle)).roll(self.middle)
        self.log.segment(self.middle, latter.data(self.middle, latter.end))
        self.stored = False
        """Whether broker 2 has packed or sealed all of its own."""
        self.found: set[int] = set()
        """The offsets that a reader has found since broker 2 leads."""

    def former_packs(self, deposed: TestedAgent, end: int) -> None:
        """Broker 1 packs up to ``end``; it does not know that it was deposed."""
        append(self.partition, self.begun, self.former.data(self.known, end))
        self.known = self.world.metadata.default_high = end
        tick(deposed)

    def step(self, deposed: TestedAgent) -> None:
        second, log, metadata = self.second, self.log, self.second.metadata
        match self.rng.choice(["pack", "pack", "seal", "former packs", "former cares", "delete", "lose"]):
            case "pack":
                self.stored = True
                with second.agent(freshness=FRESHNESS) as agent:
                    tick(agent)
                    no_errors(agent)
            case "seal":
                self.stored = True
                no_errors(second.once(freshness=FRESHNESS, tail_after="0s"))
            case "former packs":
                self.former_packs(deposed, self.former.end)
            case "former cares":
                lost_leadership(self.world, NEW)
                with self.world.agent(freshness=FRESHNESS) as agent:
                    agent.refresh()
                    care(agent, 3)
                self.world.metadata.leads = {T: Led(FORMER, ID)}
            case "delete" if metadata.log_start < self.latter.end:
                metadata.log_start = self.rng.randint(metadata.log_start, self.latter.end - 1)
                log.lineage([(NEW, metadata.log_start)])
            case "lose" if self.stored and log.log(self.middle).exists():
                for base in {self.cut, self.middle}:
                    remove(log, base)
                metadata.log_start = self.latter.end
                log.lineage([(NEW, self.latter.end)]).segment(self.latter.end, b"")

    @property
    def true(self) -> dict[int, int]:
        """The epoch of each offset that was ever packed or is on the disk, up to the first that was not."""
        former = dict.fromkeys(range(min(self.cut, self.known)), FORMER)
        return former | dict.fromkeys(range(self.cut, self.latter.end if self.known >= self.cut else 0), NEW)

    def check(self) -> None:
        """Each offset is read from its branch; what was readable stays so, and is in no gap."""
        written = self.second.watermark()[1]
        if written.leader_epoch == NEW:
            read = self.read()
            assert read.items() <= self.true.items()
            assert self.found <= read.keys()
            assert not [at for at in self.found if at in Intervals.of(written.gaps)]
            self.found |= read.keys()

    def read(self) -> dict[int, int]:
        """What a reader finds: the epoch of the batch at each offset."""
        read: dict[int, int] = {}
        for segment, start, end in pieces(self.second):
            data = self.world.store.inner.get_range(segment.key, segment.position, segment.stop)
            for header in scan_batches([data], segment.key, segment.base):
                live = range(max(start, header.base_offset), min(end, header.next_offset))
                assert not read.keys() & {*live}
                read |= dict.fromkeys(live, header.leader_epoch)
        return read


@pytest.mark.parametrize("number", range(30))
def test_each_offset_is_read_from_its_branch(world: World, number: int) -> None:
    history = History(world, random.Random(f"cut within {number}"))
    with world.agent(freshness=FRESHNESS) as deposed:
        history.former_packs(deposed, history.known)
        if history.rng.random() < 0.7:
            history.former_packs(deposed, history.former.end)
        for _ in range(history.rng.randint(1, 5)):
            history.step(deposed)
            history.check()
        for _ in range(2):
            no_errors(history.second.once(freshness=FRESHNESS, tail_after="0s"))
            history.check()
    assert history.read() == history.true


@pytest.mark.parametrize(("start", "end"), [(0, 4), (0, 10), (3, 10)])
def test_a_run_from_packs_ends_with_the_batch_that_was_cut(world: World, start: int, end: int) -> None:
    former, latter = Log(FORMER, [0, 3, 7]), Log(NEW, [4, 6, 10])
    world.disk.partition().segment(0, former.data(0, 7))
    pack_once(world, 7)
    second = world.another(2, leads={T: Led(NEW, ID)}, log_start=4)
    second.begins_epochs = False
    second.disk.partition().lineage([(NEW, 4)]).segment(4, latter.data(4, 10))
    pack_once(second, 10)
    store, lineage = world.store.inner, Lineage(((FORMER, 0), (NEW, 4)))
    run = read_run(store, packs(world), lineage, start, end)
    assert run is not None
    assert (run.start, run.end, run.data) == (start, 7, former.data(start, 7))
    assert run.lineage.entries == ((FORMER, 0),), "readers take offset 3 of its last batch"
    following = read_run(store, packs(world), lineage, 4, 10)
    assert following is not None
    assert (following.start, following.end, following.data) == (4, 10, latter.data(4, 10))
    assert following.lineage == lineage


def test_a_replica_fills_a_gap_behind_the_batch_that_was_cut(world: World) -> None:
    former, latter = Log(FORMER, [0, 3, 7]), Log(NEW, [4, 6, 10])
    world.disk.partition().segment(0, former.data(0, 7)).roll(7)
    world.metadata.default_high = 7
    no_errors(world.once())
    second, third = world.another(2, leads={T: Led(NEW, ID)}, log_start=4), world.another(3, leads={})
    second.begins_epochs, second.metadata.default_high = False, 10
    second.disk.partition().lineage([(NEW, 4)]).segment(6, latter.data(6, 10)).roll(10)
    no_errors(second.once())
    assert [(gap.start, gap.end) for gap in second.watermark()[1].gaps] == [(4, 6)]
    replica = third.disk.partition().lineage([(NEW, 4)]).segment(4, latter.data(4, 6))
    replica.segment(6, latter.data(6, 10)).roll(10)
    third.once()
    no_errors(second.once())
    assert second.watermark()[1].gaps == ()
    assert second.watermark()[1].next_offset == 10
