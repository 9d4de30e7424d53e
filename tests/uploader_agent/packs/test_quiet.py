"""Quiet tails of topics without ``freshness``: packed together, once, and sealed when they must be."""

from __future__ import annotations

import os
from collections import Counter
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from tests.support.waiting import wait_until
from tests.uploader_agent.fakes import ID, OTHER_ID, FakePartition, T, World, records
from tests.uploader_agent.packs.packing import append, content, entries, failing, packs, seals, spans
from tests.uploader_agent.test_run import NEVER, running, stored_is, watermark_is
from tests.uploader_agent.tested_agent import TestedAgent
from tidemark.errors import UnknownOutcome
from tidemark.formats.keys import TopicPartition
from tidemark.formats.raw.watermark_index import IndexEntry, WatermarkIndex
from uploader_agent.broker.admin import Led
from uploader_agent.disk.watcher import Watcher
from uploader_agent.packing import packer
from uploader_agent.packs.reading import LARGEST_RANGE
from uploader_agent.partitions.led_partition import LedPartition

SCANS: dict[str, Any] = {"scan_interval": "50ms", "metadata_interval": NEVER, "tail_after": "1s"}
"""Settings under which a tail that is an hour old is packed at once, and looked at again and again after that."""

BUSY = TopicPartition("busy", 0)


def quieten(partition: FakePartition, base: int = 0) -> None:
    """Let the segment have been appended to last an hour ago."""
    modified = partition.log(base).stat().st_mtime - 3600
    os.utime(partition.log(base), (modified, modified))


def quiet(world: World, tp: TopicPartition = T, end: int = 50, topic_id: str = ID) -> FakePartition:
    """A partition whose tail ends at ``end``, and is quiet."""
    partition = world.disk.partition(tp, topic_id=topic_id).segment(0, records(0, end))
    quieten(partition)
    world.metadata.leads[tp] = Led(3, topic_id)
    world.metadata.high[tp] = end
    return partition


def many(world: World, count: int) -> list[TopicPartition]:
    """So many partitions with quiet tails."""
    tps = [TopicPartition("many", number) for number in range(count)]
    del world.metadata.leads[T]
    for tp in tps:
        quiet(world, tp)
    return tps


def pause(world: World, count: int) -> Counter[str]:
    """The PUT requests that it takes until the tails of ``count`` partitions are stored, by the kind of object."""
    tps = many(world, count)
    with running(world, Watcher(), **SCANS | {"tail_after": "10s"}):
        wait_until(lambda: all(stored_is(world, 50, tp) for tp in tps), what="all tails to be stored")
    return kinds(world.store.puts)


def kinds(keys: list[str]) -> Counter[str]:
    """Keys by what they are for."""
    named = {"_watermarks": "watermarks", "_topics": "incarnations", "_tails": "pack", "_heads": "head"}
    return Counter(named.get(key.split("/")[0], key.rpartition(".")[2]) for key in keys)


def packed(world: World, **settings: Any) -> None:
    """The quiet tail is packed by an agent that has ended since."""
    with running(world, Watcher(), **SCANS | settings):
        wait_until(lambda: stored_is(world, world.metadata.high[T]), what="the tail to be packed")


def looked(agent: TestedAgent, times: int = 3) -> None:
    """Wait until the agent has looked through the disks so many times more."""
    before = agent.metrics.scans._value.get()
    wait_until(lambda: agent.metrics.scans._value.get() >= before + times, what="some scans")


def partition_of(agent: TestedAgent, tp: TopicPartition = T) -> LedPartition:
    return agent.leadership.partitions[tp]


def index(world: World, broker: int = 1) -> IndexEntry:
    key = world.control.index(broker)
    [entry] = WatermarkIndex.from_bytes(world.store.inner.get(key).body, key).entries
    return entry


# -- packed once -------------------------------------------------------------------------------------------------------


def test_a_quiet_tail_is_packed_once_and_is_not_waited_for(world: World) -> None:
    quiet(world)
    with running(world, Watcher(), **SCANS) as agent:
        wait_until(lambda: stored_is(world, 50), what="the tail to be packed")
        looked(agent)
        puts = kinds(world.store.puts)
        looked(agent)
        assert agent.waits() == []
        assert not partition_of(agent).is_unsettled
        assert kinds(world.store.puts)["pack"] == puts["pack"] == 1
        assert partition_of(agent).packed.tail.error is None
    assert seals(world) == []
    assert content(world) == records(0, 50)
    assert (index(world).stored_end, index(world).next_offset) == (50, 0)
    assert index(world).bytes_per_offset == len(records(0, 50)) / 50, "nothing is sealed that could tell"


def test_an_append_after_the_pack_is_the_next_range(world: World) -> None:
    partition = quiet(world)
    with running(world, Watcher(), **SCANS | {"tail_after": "30s"}) as agent:
        wait_until(lambda: stored_is(world, 50), what="the tail to be packed")
        append(partition, 0, records(50, 70))
        world.metadata.high[T] = 70
        looked(agent)
        assert spans(world) == [(0, 50)], "it has not been quiet for half a minute"
        quieten(partition)
        wait_until(lambda: stored_is(world, 70), what="what was appended to be packed")
    assert spans(world) == [(0, 50), (50, 70)]
    first, second = packs(world)
    assert second.range.previous is not None
    assert second.range.previous.pack in first.key
    assert content(world) == records(0, 70)
    assert entries(world)[0].ranges == 2


def test_what_is_packed_is_sealed_when_kafka_rolls_it(world: World) -> None:
    partition = quiet(world)
    with running(world, Watcher(), **SCANS):
        wait_until(lambda: stored_is(world, 50), what="the tail to be packed")
        append(partition, 0, records(50, 80))
        partition.roll(80)
        world.metadata.high[T] = 80
        world.store.await_put(lambda: watermark_is(world, 80))
        wait_until(lambda: entries(world) == [], what="the head's entry to go")
    assert [(one.base, one.end) for one in seals(world)] == [(0, 80)]
    assert [(one.first, one.next) for one in world.manifest(0).parts] == [(0, 50)]


def test_many_tails_that_are_quiet_at_once_share_a_pack(world: World) -> None:
    """Each takes two writes of ``offset.wm``: the claim, and that its leader has packed."""
    assert pause(world, 20) - Counter(watermarks=100) == {"wm": 40, "pack": 1, "head": 1, "incarnations": 1}


def test_a_quiet_tail_goes_with_the_next_tick_of_live_topics(world: World) -> None:
    quiet(world)
    quiet(world, BUSY, topic_id=OTHER_ID)
    settings = SCANS | {"tail_after": "10m", "freshness": {"busy": "3s"}}
    with running(world, Watcher(), **settings):
        wait_until(lambda: stored_is(world, 50) and stored_is(world, 50, BUSY), what="both to be packed")
    assert len({one.key for one in packs(world)}) == 1


def test_a_partition_that_never_pauses_is_not_listed(world: World) -> None:
    world.disk.partition().fill(0, end=50).segment(50, records(50, 80))
    world.metadata.high[T] = 80
    with running(world, Watcher(), **SCANS | {"tail_after": NEVER}) as agent:
        world.store.await_put(lambda: watermark_is(world, 50))
        looked(agent)
    assert world.watermark()[1].tails == ()
    assert kinds(world.store.puts) - Counter(watermarks=100) == {
        "wm": 2, "log": 1, "index": 1, "timeindex": 1, "json": 1, "incarnations": 1,
    }  # fmt: skip


def test_a_pack_that_failed_is_tried_again(world: World) -> None:
    quiet(world)
    with running(world, Watcher(), **SCANS) as agent:
        with failing(world, lambda _operation, key: "_tails" in key, UnknownOutcome("pack", "told so")):
            wait_until(lambda: _error(agent) is not None, what="a try that failed")
            [wait] = [one for one in agent.waits() if one.kind == "tail"]
            assert "not packed at the last try: UnknownOutcome" in wait.reason
        wait_until(lambda: stored_is(world, 50), what="the tail to be packed")
    assert content(world) == records(0, 50)


def _error(agent: TestedAgent) -> str | None:
    found = agent.leadership.partitions.get(T)
    return found.packed.tail.error if found else None


# -- sealed instead ----------------------------------------------------------------------------------------------------


def test_without_a_topic_id_a_quiet_tail_is_sealed(world: World) -> None:
    partition = world.disk.partition(topic_id=None).segment(0, records(0, 50))
    quieten(partition)
    world.metadata.leads[T] = Led(3, None)
    world.metadata.high[T] = 50
    with running(world, Watcher(), **SCANS):
        world.store.await_put(lambda: watermark_is(world, 50))
    assert packs(world) == []


def test_one_upload_seals_what_is_packed(world: World) -> None:
    quiet(world)
    packed(world)
    agent = world.once(tail_after="0s")
    assert partition_of(agent).error is None
    assert world.watermark()[1].next_offset == 50
    assert [(one.first, one.next) for one in world.manifest(0).parts] == [(0, 50)]


def test_a_large_tail_is_sealed_at_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what an offset took so far: 50 of them fit into a range, and 300 more do not."""
    monkeypatch.setattr(packer, "LARGEST_RANGE", len(records(0, 250)))
    partition = quiet(world)
    with running(world, Watcher(), **SCANS):
        wait_until(lambda: stored_is(world, 50), what="the tail to be packed")
        append(partition, 0, records(50, 350))
        quieten(partition)
        world.metadata.high[T] = 350
        world.store.await_put(lambda: watermark_is(world, 350))
    assert spans(world) == [(0, 50)]
    assert [(one.base, one.end) for one in seals(world)] == [(0, 350)]
    assert LARGEST_RANGE == 8 << 20


def test_a_tail_behind_a_gap_is_sealed(world: World) -> None:
    """Readers go on without a hole from ``offset.wm``: a pack above one would be no use to them."""
    partition = world.disk.partition().fill(0, end=50)
    world.metadata.high[T] = 80
    with running(world, Watcher(), **SCANS | {"hold": {"enabled": False}}) as agent:
        world.store.await_put(lambda: watermark_is(world, 50))
        for path in partition.folder.glob("0*"):
            path.unlink()
        partition.segment(60, records(60, 80))
        quieten(partition, 60)
        world.metadata.log_start = 60
        wait_until(lambda: [one.base for one in seals(world)] == [0, 60], what="the tail to be sealed")
        looked(agent)
    assert [(gap.start, gap.end) for gap in world.watermark()[1].gaps] == [(50, 60)]
    assert packs(world) == []


# -- after a restart ---------------------------------------------------------------------------------------------------


def test_a_restart_asks_for_nothing_of_quiet_tails(world: World) -> None:
    """Its index and its head tell all: no ``offset.wm`` and no segment is looked for."""
    quiet(world)
    packed(world)
    asked: list[tuple[str, str]] = []
    puts = len(world.store.puts)
    world.store.before = lambda operation, key: asked.append((operation, key))
    with running(world, Watcher(), **SCANS | {"fill": {"enabled": False}}) as agent:
        wait_until(lambda: agent.health.ready and T in agent.leadership.partitions, what="ready")
        wait_until(lambda: partition_of(agent).packed.tail.unsealed(0).ranges == 1, what="the head to be read")
        looked(agent)
        assert partition_of(agent).stored_end == 50
        assert agent.waits() == []
    read = {key for operation, key in asked if operation != "put"}
    assert not [key for key in read if "orders" in key], read
    assert kinds(world.store.puts[puts:]).keys() <= {"watermarks"}
    assert index(world).stored_end == 50


def test_a_restart_goes_on_behind_the_tail(world: World) -> None:
    partition = quiet(world)
    packed(world)
    append(partition, 0, records(50, 70))
    quieten(partition)
    world.metadata.high[T] = 70
    packed(world)
    assert spans(world) == [(0, 50), (50, 70)]
    assert content(world) == records(0, 70)


def test_what_the_head_lacks_is_packed_again_whatever_the_index_said(world: World) -> None:
    quiet(world)
    packed(world)
    for key in (world.control.head(1), packs(world)[0].key):
        (world.root / "store" / key).unlink()
    with running(world, Watcher(), **SCANS):
        wait_until(lambda: len(entries(world)) == 1, what="the tail to be packed again")
    assert spans(world) == [(0, 50)]
    assert content(world) == records(0, 50)


def test_a_tail_is_sealed_when_it_has_been_packed_for_a_day(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by an agent that was started since: the head's entry says since when."""
    quiet(world)
    packed(world)
    with running(world, Watcher(), **SCANS) as agent:
        looked(agent)
        assert seals(world) == []
    monkeypatch.setattr(packer, "MOST_UNSEALED_AGE", timedelta(0))
    with running(world, Watcher(), **SCANS):
        world.store.await_put(lambda: watermark_is(world, 50))
        wait_until(lambda: entries(world) == [], what="the head's entry to go")
    assert [(one.first, one.next) for one in world.manifest(0).parts] == [(0, 50)]


# -- another leader, another topic -------------------------------------------------------------------------------------


@pytest.fixture
def second(world: World) -> World:
    """Broker 2 leads from now on; its log goes as far as the tail that broker 1 has packed."""
    quiet(world)
    packed(world)
    second = world.another(2, leads={T: Led(4, ID)})
    partition = second.disk.partition().segment(0, records(0, 50)).lineage([(3, 0), (4, 50)])
    quieten(partition)
    second.metadata.high[T] = 50
    return second


def test_a_new_leader_takes_over_a_quiet_tail_and_packs_nothing(second: World) -> None:
    with running(second, Watcher(), **SCANS) as agent:
        wait_until(lambda: _stored_end(agent) == 50, what="the former leader's head to be read")
        looked(agent)
        assert agent.waits() == []
        assert partition_of(agent).packed.tail.unsealed(0).ranges == 1, "by its entry, the limits are kept"
    assert spans(second) == [(0, 50)]
    assert second.watermark()[1].tails == ((3, 1),), "it has packed nothing itself"
    assert index(second, 2).stored_end == 50


def test_a_new_leader_goes_on_behind_a_quiet_tail(second: World) -> None:
    partition = FakePartition(second.disk.log_dirs[0] / str(T))
    append(partition, 0, records(50, 70, epoch=4))
    quieten(partition)
    second.metadata.high[T] = 70
    with running(second, Watcher(), **SCANS):
        wait_until(lambda: stored_is(second, 70), what="what was appended to be packed")
    assert spans(second) == [(0, 50), (50, 70)]
    assert content(second) == records(0, 50) + records(50, 70, epoch=4)
    assert second.watermark()[1].tails == ((3, 1), (4, 2))


def test_a_new_leader_seals_the_former_ones_tail_after_a_day(second: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packer, "MOST_UNSEALED_AGE", timedelta(0))
    with running(second, Watcher(), **SCANS):
        second.store.await_put(lambda: watermark_is(second, 50))
    assert second.watermark()[1].tails == (), "the former epoch is sealed to its end"


def test_the_quiet_tail_of_a_deleted_topic_is_sealed_from_its_pack(world: World) -> None:
    partition = quiet(world)
    with running(world, Watcher(), **SCANS | {"metadata_interval": "50ms"}) as agent:
        wait_until(lambda: stored_is(world, 50), what="the tail to be packed")
        partition.folder.rename(partition.folder.with_name("orders-0.f00-delete"))
        world.metadata.leads = {}
        wait_until(lambda: agent.components.packs.of_other_leaderships == {T}, what="the entry to be another's")
        [bucket] = agent.components.packs.all
        bucket.head_maintenance.end_pauses()
        world.store.await_put(lambda: watermark_is(world, 50))
    assert world.stored(0) == records(0, 50)


def _stored_end(agent: TestedAgent) -> int:
    found = agent.leadership.partitions.get(T)
    return found.stored_end if found else 0


def test_packs_of_one_partition_follow_each_other(world: World) -> None:
    """Ten pauses of a partition are ten ranges of one chain, and nothing is sealed."""
    partition = quiet(world, end=10)
    with running(world, Watcher(), **SCANS):
        for end in range(10, 110, 10):
            if end > 10:
                append(partition, 0, records(end - 10, end))
                quieten(partition)
            world.metadata.high[T] = end
            wait_until(lambda end=end: stored_is(world, end), what="a pause")  # type: ignore[misc]
    ranges = packs(world)
    assert all(one.range.next == other.range.first for one, other in pairwise(ranges))
    assert len(ranges) == 10
    assert kinds(world.store.puts)["wm"] == 2
    assert seals(world) == []
