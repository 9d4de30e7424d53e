"""An ``offset.wm`` of an epoch that the cluster never gave is overcome; a true successor's never is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from tests.uploader_agent.fakes import ID, T, World, records
from tidemark.formats.keys import TopicPartition
from tidemark.formats.raw.watermark import parse, render
from tidemark.storage import StoredWatermark
from uploader_agent.broker.admin import BrokerUnavailable, Leader, Led
from uploader_agent.broker.authority import Authority, MetadataMark
from uploader_agent.observability.metrics import Metrics
from uploader_agent.stored import foreign_epochs
from uploader_agent.stored.foreign_epochs import PAUSE, ForeignEpochs

FORGED = 1 << 30
OURS = Led(3, ID)


@dataclass
class Quorum(Authority):
    """A cluster whose committed leader is ``committed``; this broker has it unless it ``lags`` behind with ``had``."""

    committed: Leader = field(default_factory=lambda: Leader(1, OURS, replicas=(1, 2)))
    had: Leader | None = None
    same: bool = True
    down: bool = False

    def mark(self) -> MetadataMark:
        self._check()
        return MetadataMark(1, 1, 100)

    def confirms(self, mark: MetadataMark) -> bool | None:
        self._check()
        assert mark.offset == 100
        return (self.had is None) if self.same else None

    def leader(self, at: TopicPartition) -> Leader | None:
        self._check()
        assert at == T
        return self.had or self.committed

    def _check(self) -> None:
        if self.down:
            raise BrokerUnavailable("told so")


class Clock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def forge(world: World, **changes: object) -> StoredWatermark:
    """Write an ``offset.wm`` of an epoch that nobody gave, by whoever may put it."""
    key = world.keys().watermark
    base, found = world.watermark()
    forged = found.model_copy(update={"leader_epoch": FORGED, "broker": 7, "next_offset": 10**9, **changes})
    etag = world.store.inner.put(key, render(base, forged))
    return StoredWatermark(base, forged, etag)


@pytest.fixture
def forged(world: World) -> StoredWatermark:
    """[0, 200) is uploaded, then ``offset.wm`` forged."""
    world.disk.partition().fill(0, 100, end=200)
    world.once()
    return forge(world)


def judged(quorum: Quorum, stored: StoredWatermark, *steps: Callable[[], object]) -> list[bool]:
    """What is said of ``stored`` each time that a pause has passed; each of ``steps`` happens in such a pause."""
    clock = Clock()
    epochs = ForeignEpochs(1, quorum, Metrics(), clock)
    said = [epochs.judge(T, OURS, stored)]
    for number in range(3):
        if number < len(steps):
            steps[number]()
        clock.now += PAUSE
        said.append(epochs.judge(T, OURS, stored))
    return said


def test_it_takes_three_steps_each_a_pause_after_the_other(forged: StoredWatermark) -> None:
    assert judged(Quorum(), forged) == [False, False, True, True]
    clock = Clock()
    metrics = Metrics()
    epochs = ForeignEpochs(1, Quorum(), metrics, clock)
    for _ in range(int(3 * PAUSE)):
        clock.now += 0.5
        assert not epochs.judge(T, OURS, forged)
    assert metrics.registry.get_sample_value("tidemark_agent_fenced_partitions") == 1
    clock.now += PAUSE
    assert epochs.judge(T, OURS, forged)
    assert metrics.registry.get_sample_value("tidemark_agent_fenced_partitions") == 0
    assert metrics.registry.get_sample_value("tidemark_agent_foreign_epochs_total") == 1


def test_a_successor_is_never_overridden(forged: StoredWatermark) -> None:
    """Another broker leads by what is committed, whatever this one has of it, and since when."""
    theirs = Leader(2, Led(FORGED, ID))
    lagging, isolated, late = Quorum(theirs, had=Leader(1, OURS)), Quorum(theirs, down=True), Quorum()
    assert not any(judged(Quorum(theirs), forged))
    assert not any(judged(lagging, forged)), "the quorum's mark is not confirmed where this broker lags"
    assert not any(judged(isolated, forged))
    assert not any(judged(late, forged, lambda: None, lambda: setattr(late, "committed", theirs)))
    assert not any(judged(Quorum(Leader(1, Led(FORGED, ID))), forged)), "this broker itself, under the next epoch"
    assert not any(judged(Quorum(Leader(1, Led(3, "AkU3OEVBNTcwNTJENDM2Qk"))), forged)), "the topic was made again"


def test_another_leader_of_the_quorum_begins_again(forged: StoredWatermark) -> None:
    quorum = Quorum(same=False)
    assert judged(quorum, forged, lambda: None, lambda: setattr(quorum, "same", True)) == [False, False, False, False]


def test_each_version_and_each_leadership_is_judged_by_itself(world: World, forged: StoredWatermark) -> None:
    clock = Clock()
    epochs = ForeignEpochs(1, Quorum(), Metrics(), clock)
    for _ in range(3):
        assert not epochs.judge(T, OURS, forged)
        clock.now += PAUSE - 1
        assert not epochs.judge(T, OURS, forge(world))
        clock.now += PAUSE - 1
    clock.now += 3 * PAUSE
    assert not epochs.judge(T, Led(4, ID), forged)
    assert not epochs.judge(T, Led(3, None), forged), "a topic without an id may have been made again"


def test_a_forged_epoch_is_overcome(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that is stored counts again, by its manifests; what was forged is kept; what is new goes up."""
    disk = world.disk.partition().fill(0, 100, end=200)
    world.once()
    before = world.watermark()
    forged = forge(world)
    disk.segment(200, records(200, 300))
    disk.roll(300)
    world.once()
    assert world.watermark()[1] == forged.watermark, "without a proof it fences"
    assert f"{200:020d}.log" not in world.names()

    monkeypatch.setattr(foreign_epochs, "PAUSE", 0.0)
    world.authority = Quorum()
    world.once()
    _, found = world.watermark()
    assert (found.leader_epoch, found.next_offset, found.broker) == (3, 300, 1)
    assert (found.start_offset, found.gaps, found.foreign_epochs) == (before[1].start_offset, (), (FORGED,))
    [kept] = [one.key for one in world.store.inner.list(world.control.foreign_watermarks("orders", 0))]
    assert parse(world.store.inner.get(kept).body, kept) == (forged.base_offset, forged.watermark)
    world.store.puts.clear()
    world.once()
    assert world.keys().watermark not in world.store.puts
    assert world.watermark()[1].foreign_epochs == (FORGED,)


def test_a_foreign_one_of_a_partition_under_way_is_overcome(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent that knows the partition meets it when it writes."""
    monkeypatch.setattr(foreign_epochs, "PAUSE", 0.0)
    world.authority = Quorum()
    disk = world.disk.partition().fill(0, 100, end=200)
    world.once()
    disk.segment(200, records(200, 300))
    disk.roll(300)
    forged: list[StoredWatermark] = []

    def just_before(operation: str, key: str) -> None:
        if (operation, key) == ("put", world.keys().watermark) and not forged:
            forged.append(forge(world))

    world.store.before = just_before
    world.once()
    assert forged
    assert world.watermark()[1].order == (0, 3, 300)
    assert world.watermark()[1].foreign_epochs == (FORGED,)


def test_a_successors_watermark_stays_and_it_goes_on(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that was told of no change since, and its successor, whose epoch is committed."""
    monkeypatch.setattr(foreign_epochs, "PAUSE", 0.0)
    world.disk.partition().fill(0, 100, end=200)
    world.once()
    successor = world.another(2, leads={T: Led(4, ID)})
    other = successor.disk.partition().lineage([(3, 0), (4, 200)]).fill(0, 100, end=200)
    other.segment(200, records(200, 300, epoch=4))
    other.roll(300)
    successor.once()
    committed = Leader(2, Led(4, ID))
    for quorum in (Quorum(committed), Quorum(committed, had=Leader(1, OURS)), Quorum(committed, down=True)):
        mark = world.watermark()
        world.authority = quorum
        world.disk.partition().segment(200, records(200, 300, value="other")).roll(300)
        world.once()
        assert world.watermark() == mark
        assert world.stored(200) == records(200, 300, epoch=4)
    successor.once()
    assert world.watermark()[1].order == (0, 4, 300)
