"""When partitions are packed, how old their oldest byte is that is not stored, and what people see of it."""

from __future__ import annotations

import pytest

from tests.support.waiting import wait_until
from tests.uploader_agent.fakes import ID, T, World, records
from tests.uploader_agent.packs.packing import FRESHNESS, append, content, entries, failing, tick
from tests.uploader_agent.test_run import NEVER, running
from tests.uploader_agent.tested_agent import TestedAgent
from tidemark.errors import UnknownOutcome
from tidemark.formats.keys import TopicPartition
from tidemark.formats.raw.watermark_index import WatermarkIndex
from uploader_agent.broker.admin import Led
from uploader_agent.disk.watcher import Watcher
from uploader_agent.packing.thread import Ticks
from uploader_agent.partitions.led_partition import LedPartition
from uploader_agent.partitions.poller import OffsetsAnswer
from uploader_agent.runtime import MACHINE, Runtime
from uploader_agent.settings import AgentSettings

SLOW = TopicPartition("slow", 0)


class Clock:
    """The monotonic clock of everything that is made while a test runs."""

    now = 1000.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(Runtime, "monotonic", lambda _self: clock.now)
    return clock


class Ticking:
    """The loop's part of an agent, one turn at a time; ``packed`` are the partitions of each tick."""

    def __init__(self, agent: TestedAgent, clock: Clock) -> None:
        self.packed: list[list[TopicPartition]] = []
        self.asked: list[list[TopicPartition]] = []
        self._agent = agent
        self._clock = clock
        self.ticks = Ticks(agent.leadership, agent.poller, self._pack, MACHINE)
        self.ticks.reconsider()

    def _pack(self, partitions: object) -> None:
        assert isinstance(partitions, list)
        self.packed.append(sorted(one.tp for one in partitions))

    def turn(self, seconds: float, *, answer: bool = True) -> None:
        """A turn of the loop so many seconds later, and the broker's answers to what it asks."""
        self._clock.now += seconds
        self.ticks.turn()
        for found in self._agent.poller.answer_all() if answer else ():
            assert isinstance(found, OffsetsAnswer)
            self.asked.append(sorted(found.asked))
            self._agent.leadership.observe(found)
            self.ticks.answered(found)


def test_an_append_is_packed_by_the_running_agent(world: World) -> None:
    """Neither scan nor metadata poll is due, and nothing tells of an append: the tick alone looks."""
    partition = world.disk.partition().segment(0, records(0, 30))
    world.metadata.default_high = 30
    quiet = {"scan_interval": NEVER, "metadata_interval": NEVER, "tail_after": NEVER}
    with running(world, Watcher(), freshness=FRESHNESS, **quiet):
        wait_until(lambda: entries(world) != [], what="a head")
        append(partition, 0, records(30, 50))
        world.metadata.default_high = 50
        wait_until(lambda: entries(world)[0].tail_end == 50, what="what was appended to be packed")
    assert content(world) == records(0, 50)


def test_a_partition_is_due_before_its_oldest_byte_is_too_old(world: World, clock: Clock) -> None:
    """The tick is that of the most demanding topic; others wait for their own third."""
    fast, slow = world.disk.partition(), world.disk.partition(SLOW)
    for one in (fast, slow):
        one.segment(0, b"")
    world.metadata.leads[SLOW] = Led(3, ID)
    world.metadata.default_high = 0
    with world.agent(freshness={"slow": "30s", "orders": "3s"}) as agent:
        agent.refresh()
        ticking = Ticking(agent, clock)
        for _ in range(3):
            ticking.turn(1.0)
        assert (ticking.asked, ticking.packed) == ([], []), "nothing is new, and nothing is asked"
        for one in (fast, slow):
            append(one, 0, records(0, 10))
        world.metadata.default_high = 10
        ticking.turn(1.0)
        assert (ticking.asked, ticking.packed) == ([[T]], [[T]])
        for _ in range(7):
            ticking.turn(1.0)
        assert all(SLOW not in one for one in ticking.packed)
        ticking.turn(1.0)
        assert SLOW in ticking.packed[-1], "at the next tick its byte would be older than ten seconds"


def test_a_tick_does_not_wait_for_a_broker_that_hangs(world: World, clock: Clock) -> None:
    """What was answered before goes; the rest goes as soon as it is answered."""
    first, second = world.disk.partition(), world.disk.partition(SLOW)
    world.metadata.leads[SLOW] = Led(3, ID)
    world.metadata.default_high = 10
    first.segment(0, records(0, 10))
    second.segment(0, b"")
    with world.agent(freshness=FRESHNESS) as agent:
        agent.refresh()
        ticking = Ticking(agent, clock)
        append(second, 0, records(0, 10))
        ticking.turn(1.0, answer=False)
        assert ticking.packed == []
        assert ticking.ticks.next_time == clock.now + 0.5
        ticking.turn(0.5, answer=False)
        assert T in ticking.packed[0]
        assert len(ticking.packed) == 1
        ticking.turn(0.1)
        assert SLOW in ticking.packed[1], "late, and before the next tick"
        ticking.turn(0.1)
        assert len(ticking.packed) == 2


def test_the_age_of_the_oldest_byte_that_is_not_stored(world: World, clock: Clock) -> None:
    partition = world.disk.partition().segment(0, b"")
    world.metadata.default_high = 0
    with world.agent(freshness=FRESHNESS) as agent:
        agent.refresh()
        [led] = agent.leadership.partitions.values()
        clock.now += 100.0
        led.look()
        assert led.unstored_age(clock.now) == 0.0
        clock.now += 5.0
        append(partition, 0, records(0, 10))
        led.look()
        assert led.unstored_age(clock.now) == 5.0, "since the last look that showed nothing new"
        clock.now += 2.0
        world.metadata.default_high = 10
        tick(agent)
        assert led.unstored_age(clock.now) == 0.0


def test_what_retention_took_from_the_disk_is_a_gap_and_not_a_tail_that_waits(world: World, clock: Clock) -> None:
    """Kafka removed all that was not stored, and an empty active segment is left: there is nothing to pack."""
    partition = world.disk.partition().segment(26, b"")
    world.metadata.default_high = 26
    with world.agent(freshness=FRESHNESS) as agent:
        agent.refresh()
        [led] = agent.leadership.partitions.values()
        tick(agent)
        assert (led.observation and led.observation.log_end, led.stored_end) == (26, 0)
        clock.now += 100.0
        assert led.unstored_age(clock.now) == 0.0
        append(partition, 26, records(26, 30))
        led.look()
        assert led.unstored_age(clock.now) == 100.0


def test_the_index_tells_of_packs(world: World) -> None:
    world.disk.partition().segment(0, records(0, 30))
    world.metadata.default_high = 30
    with world.agent(freshness={".*": "45s"}) as agent:
        tick(agent)
        agent.refresh()
        agent.components.drain()
    key = world.control.index(1)
    [entry] = WatermarkIndex.from_bytes(world.store.inner.get(key).body, key).entries
    assert (entry.tail_end, entry.freshness, entry.oldest_unstored, entry.next_offset) == (30, 45.0, 0.0, 0)


def test_waiting_says_what_a_late_tail_waits_for(world: World) -> None:
    world.disk.partition().segment(0, records(0, 30))
    world.metadata.default_high = 20

    def wait(agent: TestedAgent) -> str:
        [led] = agent.leadership.partitions.values()
        led.plan(0.0)
        found = [one for one in agent.waits() if one.kind == "tail"]
        return found[0].reason if found else "nothing"

    with world.agent(freshness=FRESHNESS, tail_after="1d") as agent:
        agent.refresh()
        [led] = agent.leadership.partitions.values()
        led.uploader.learn()
        assert "the high watermark 20 is below the log end 30" in wait(agent)
        world.metadata.default_high = 30
        with failing(world, lambda _operation, key: "_tails" in key, UnknownOutcome("pack", "told so")):
            tick(agent)
        assert "not packed at the last try: UnknownOutcome" in wait(agent)
        agent.refresh()
        tick(agent)
        assert wait(agent) == "nothing", "it is in the store"


def test_a_survey_knows_what_the_running_agent_has_packed(world: World) -> None:
    """``status`` runs beside it."""
    world.disk.partition().segment(0, records(0, 30))
    world.metadata.default_high = 30
    with world.agent(freshness=FRESHNESS) as agent:
        tick(agent)
    puts = len(world.store.puts)
    with world.agent(freshness=FRESHNESS, read_only=True) as agent:
        agent.survey()
        agent.leadership.partitions[T].plan(0.0)
        assert agent.waits() == []
    assert len(world.store.puts) == puts


def test_freshness_is_reloaded(world: World) -> None:
    world.disk.partition().segment(0, records(0, 30))
    world.metadata.default_high = 30
    with world.agent() as agent:
        agent.refresh()
        [led] = agent.leadership.partitions.values()
        assert _is_packed(led) == (None, False)
        agent.reconfigure(_with_freshness(world, FRESHNESS), "agent.yaml")
        assert _is_packed(led) == (3.0, True)
        assert agent.components.ticks.next_time < float("inf")
        agent.reconfigure(_with_freshness(world, {}), "agent.yaml")
        assert _is_packed(led) == (None, False)
        assert agent.components.ticks.next_time == float("inf")


def _is_packed(partition: LedPartition) -> tuple[float | None, bool]:
    return partition.freshness, partition.local.log.lists_tail


def _with_freshness(world: World, freshness: dict[str, str]) -> AgentSettings:
    return world.settings(freshness=freshness)
