"""Followers fill a leader's gaps: what they bring, what they leave alone, and what the leader makes of it."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.uploader_agent.fakes import ID, OTHER_ID, FakePartition, T, World, records
from tests.uploader_agent.repair.test_gaps import gap_reasons, with_hole
from tests.uploader_agent.test_agent import flipped, no_errors, remove
from tidemark.formats.keys import SegmentName
from tidemark.formats.raw.watermark_index import WatermarkIndex
from uploader_agent.broker.admin import Led
from uploader_agent.disk.watcher import Watcher


@pytest.fixture
def leader(world: World) -> World:
    """Broker 1 leads and lacks [100, 200)."""
    with_hole(world)
    no_errors(world.once())
    assert gap_reasons(world) == [(100, 200, "deleted_before_upload")]
    return world


@pytest.fixture
def follower(leader: World) -> World:
    """Broker 2 leads nothing; its replica is empty."""
    return leader.another(2, leads={})


def replica(follower: World, *bases: int, end: int, topic_id: str = ID, value: str = "") -> FakePartition:
    return follower.disk.partition(topic_id=topic_id).fill(*bases, end=end, value=value)


def say_anew(leader: World, **changes: Any) -> None:
    """What the leader's agent says of its gap, with other figures."""
    key = leader.control.broker_gaps(1)
    index = WatermarkIndex.from_bytes(leader.store.inner.get(key).body, key)
    [entry] = index.entries
    new = index.model_copy(update={"entries": (entry.model_copy(update=changes),)})
    leader.store.inner.put(key, new.to_bytes())


def logs(world: World) -> list[str]:
    return [name for name in world.names() if name.endswith(".log")]


def test_a_followers_segments_close_the_gap(leader: World, follower: World) -> None:
    """Its boundaries are its own: below the gap, within it, and beyond. It brings what the store lacks of each."""
    replica(follower, 0, 50, 130, 170, 210, end=290)
    leader.store.puts.clear()
    agent = follower.once()
    assert logs(leader) == [f"{base:020d}.log" for base in (0, 100, 130, 170, 200)]
    assert [leader.manifest(base).broker for base in (100, 130, 170)] == [2, 2, 2]
    assert not [key for key in leader.store.puts if key.endswith("offset.wm")]
    assert agent.metrics.filled._value.get() == 3
    no_errors(leader.once())
    base, watermark = leader.watermark()
    assert (base, watermark.next_offset, watermark.gaps, watermark.ranges_above) == (200, 300, (), ())
    for base, end in ((100, 130), (130, 170), (170, 200)):
        assert leader.stored(base) == records(base, end)
    assert WatermarkIndex.from_bytes(leader.store.get(leader.control.broker_gaps(1)).body, "gaps").entries == ()
    leader.store.puts.clear()
    follower.once()
    assert leader.store.puts == [leader.control.index(2)], "nothing is brought twice"


@pytest.mark.parametrize("moved_away", [False, True])
def test_a_former_leader_fills_from_what_it_holds(leader: World, follower: World, moved_away: bool) -> None:
    """It led, retention took what it held, and another broker leads now; its replica may even be gone."""
    partition = replica(follower, 0, 50, 130, 170, 210, end=290)
    follower.metadata.leads = {T: Led(2, ID)}
    with follower.agent(hold={"max": 1}) as agent:
        agent.refresh()
        agent.leadership.partitions[T].look()
        if moved_away:
            shutil.rmtree(partition.folder)
        else:
            partition.retire(0, 50, 130, 170)
            partition.unlink_deleted()
        follower.metadata.leads = {}
        agent.upload_once()
        assert agent.metrics.filled._value.get() == 3
        assert (0, 50) not in [(one.base_offset, one.next_offset) for one in agent.hold.segments(T, ID)], "covered"
    no_errors(leader.once())
    assert (leader.watermark()[1].next_offset, leader.watermark()[1].gaps) == (300, ())


def test_part_of_a_gap_is_better_than_nothing(leader: World, follower: World) -> None:
    replica(follower, 150, end=180)
    follower.once()
    no_errors(leader.once())
    assert gap_reasons(leader) == [(100, 150, "deleted_before_upload"), (180, 200, "deleted_before_upload")]
    assert leader.watermark()[1].ranges_above == ((150, 180), (200, 300))


def test_who_leads_nothing_shows_that_it_lives(follower: World) -> None:
    follower.once()
    key = follower.control.index(2)
    index = WatermarkIndex.from_bytes(follower.store.get(key).body, key)
    assert (index.broker, index.entries) == (2, ())


def test_only_gaps_that_changed_are_read(leader: World, follower: World) -> None:
    read: list[str] = []
    leader.store.before = lambda operation, key: read.append(key) if operation == "get" and "_gaps" in key else None
    with follower.agent() as agent:
        filler = agent.components.filler
        filler.turn(())
        filler.turn(())
        assert read == [leader.control.broker_gaps(1)]
        say_anew(leader, uploaded_end=310)
        filler.turn(())
        assert read == [leader.control.broker_gaps(1)] * 2


def test_what_does_not_parse_hides_no_other_gap(leader: World, follower: World) -> None:
    leader.store.inner.put(leader.control.broker_gaps(0), b"{")
    replica(follower, 100, end=200)
    follower.once()
    assert leader.manifest(100).broker == 2


@pytest.mark.parametrize(
    "why", ["another topic id", "above the high watermark", "active", "excluded", "led here", "switched off"]
)
def test_what_must_not_go_stays(leader: World, follower: World, why: str) -> None:
    settings: dict[str, object] = {}
    if why == "another topic id":
        replica(follower, 100, end=200, topic_id=OTHER_ID)
    elif why == "active":
        follower.disk.partition().segment(100, records(100, 200))
    else:
        replica(follower, 100, end=200)
    if why == "above the high watermark":
        say_anew(leader, high_watermark=199)
    elif why == "excluded":
        settings["exclude"] = ["orders"]
    elif why == "switched off":
        settings["fill"] = {"enabled": False}
    elif why == "led here":
        with follower.agent() as agent:
            assert agent.components.filler.turn({T}) == 0
        return
    follower.once(**settings)
    assert logs(leader) == [f"{base:020d}.log" for base in (0, 200)]


@pytest.mark.parametrize("where", ["offset.wm", "the manifest above", "its own lineage"])
def test_another_branch_of_the_log_is_refused(
    leader: World, follower: World, where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    partition = replica(follower, 100, end=200)
    if where == "offset.wm":
        partition.lineage([(2, 0)])
        partition.segment(100, records(100, 200, epoch=2))
    elif where == "the manifest above":
        # The leader's log went over to epoch 4 within the gap; offset.wm ends below and does not know.
        leader.disk.partition().lineage([(3, 0), (4, 150)])
        again = FakePartition(leader.disk.log_dirs[0] / "orders-0")
        again.lineage([(3, 0), (4, 150)])
        remove(again, 200, 300)
        again.fill(200, end=300, epoch=4)
        leader.metadata.leads = {T: Led(4, ID)}
        leader.once()
        assert leader.manifest(200, suffix="4").lineage == ((3, 0), (4, 150))
    else:
        partition.segment(100, records(100, 200, epoch=7))
    capsys.readouterr()
    follower.once()
    assert f"{100:020d}.manifest.json" not in leader.names()
    shown = capsys.readouterr()
    assert "segment_not_filled_in" in shown.out + shown.err


def test_epochs_that_both_brokers_have_forgotten_are_told_by_the_batches(world: World) -> None:
    """The leader changed at 160, within the gap; retention has cut both lineages above it."""
    partition = world.disk.partition().fill(0, end=100)
    world.once()
    remove(partition, 0, 100)
    partition.lineage([(5, 200)])
    partition.fill(200, end=300, epoch=5)
    world.metadata.leads, world.metadata.log_start = {T: Led(5, ID)}, 200
    no_errors(world.once())
    follower = world.another(2, leads={})
    copy = replica(follower, 80, 130, end=200)
    copy.segment(130, records(130, 160) + records(160, 200, epoch=5))
    copy.lineage([(5, 200)])
    follower.once()
    assert world.manifest(100).lineage == ((3, 0),)
    assert world.manifest(130).lineage == ((3, 0), (5, 160))
    no_errors(world.once())
    _, watermark = world.watermark()
    assert (watermark.next_offset, watermark.lineage) == (300, ((3, 0), (5, 160)))


def test_bytes_of_another_branch_under_the_base_are_left(leader: World, follower: World) -> None:
    key = leader.keys().segment(SegmentName(100), "log")
    leader.store.inner.put(key, records(100, 200, epoch=2))
    replica(follower, 100, end=200)
    follower.once()
    assert leader.stored(100) == records(100, 200, epoch=2)
    assert f"{100:020d}.manifest.json" not in leader.names()
    assert leader.stored(100, suffix="3") == records(100, 200)
    no_errors(leader.once())
    assert leader.watermark()[1].next_offset == 300


def test_bytes_of_this_branch_that_nobody_described_are_adopted(leader: World, follower: World) -> None:
    key = leader.keys().segment(SegmentName(100), "log")
    leader.store.inner.put(key, records(100, 170))
    replica(follower, 100, end=200)
    follower.once()
    assert (leader.manifest(100).next_offset, leader.manifest(100).broker) == (170, 2)
    assert key not in leader.store.puts


def test_what_one_replica_lacks_another_one_brings(leader: World, follower: World) -> None:
    first, second = follower, leader.another(3, leads={})
    replica(first, 100, end=150)
    replica(second, 100, end=200)
    first.once()
    assert leader.manifest(100).next_offset == 150
    leader.once()
    second.once()
    assert [(leader.manifest(base).next_offset, leader.manifest(base).broker) for base in (100, 150)] == [
        (150, 2),
        (200, 3),
    ]
    no_errors(leader.once())
    assert leader.watermark()[1].next_offset == 300


def test_what_another_replica_has_brought_is_not_brought_again(leader: World, follower: World) -> None:
    """The leader has not looked again, so that its gap is open still."""
    replica(follower, 100, end=200)
    follower.once()
    late = leader.another(3, leads={})
    replica(late, 100, end=200)
    leader.store.puts.clear()
    agent = late.once()
    assert agent.metrics.filled._value.get() == 0
    assert leader.store.puts == [leader.control.index(3)]
    assert leader.manifest(100).broker == 2


def corrupted(world: World) -> World:
    """Broker 1 leads, and its [100, 200) has a bit that flipped in the last batch."""
    world.disk.partition().fill(0, 100, 200, end=300).segment(100, flipped(records(100, 200)))
    no_errors(world.once())
    assert gap_reasons(world) == [(190, 200, "corrupt")]
    return world


@pytest.mark.parametrize("bases", [(100,), (60, 130)], ids=["same boundaries", "others"])
def test_a_corrupt_segment_is_mended_by_a_good_copy(world: World, bases: tuple[int, ...]) -> None:
    leader = corrupted(world)
    follower = leader.another(2, leads={})
    replica(follower, *bases, end=200)
    follower.once()
    assert (leader.manifest(190).broker, leader.stored(190)) == (2, records(190, 200)), "only what cannot be read"
    kept = leader.stored(100, "corrupt", suffix=leader.damaged(100))
    assert kept == flipped(records(100, 200)), "the damaged bytes are kept"
    no_errors(leader.once())
    _, watermark = leader.watermark()
    assert (watermark.next_offset, watermark.gaps) == (300, ())
    leader.store.puts.clear()
    no_errors(leader.once())
    assert leader.store.puts == [leader.control.index(1)], "the leader does not send its damaged copy again"


def test_a_copy_that_is_damaged_too_mends_nothing(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    leader = corrupted(world)
    follower = leader.another(2, leads={})
    replica(follower, 100, end=200).segment(100, flipped(records(100, 200)))
    capsys.readouterr()
    follower.once()
    assert leader.manifest(100, suffix=leader.damaged(100)).broker == 1
    shown = capsys.readouterr()
    assert "is damaged here, too" in shown.out + shown.err


def test_a_stale_index_of_a_dead_leader_starts_nothing(leader: World, follower: World) -> None:
    """Its gap was closed long ago, by the leader after it."""
    replica(follower, 0, 100, end=200)
    follower.once()
    stale = leader.store.get(leader.control.index(1)).body
    leader.once()
    assert leader.watermark()[1].gaps == ()
    leader.store.inner.put(leader.control.index(1), stale)
    third = leader.another(3, leads={})
    replica(third, 90, end=220)
    third.once()
    assert f"{90:020d}.log" not in leader.names()


def test_many_fill_at_a_time(leader: World) -> None:
    """Same segments and other ones, all at once: each object stays one of theirs, and each manifest true."""
    bases = [(100, 150), (100, 150), (100, 170), (80, 150), (100,), (120, 160)]
    others = [leader.another(number, leads={}) for number in range(2, 8)]
    for other, wanted in zip(others, bases, strict=True):
        replica(other, *wanted, end=200)
    barrier = threading.Barrier(len(others))
    with ExitStack() as stack:
        fillers = [stack.enter_context(other.agent(Watcher())).components.filler for other in others]

        def fill(number: int) -> None:
            barrier.wait()
            for _ in range(4):
                fillers[number].turn(())

        threads = [threading.Thread(target=fill, args=(number,)) for number in range(len(others))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    no_errors(leader.once())
    assert leader.watermark()[1].next_offset == 300
    for name in leader.names():
        parsed = SegmentName.parse(name)
        if parsed is not None and parsed[1] == "manifest.json":
            check_objects(leader, parsed[0])


def check_objects(world: World, segment: SegmentName) -> None:
    for name, total in world.manifest(segment.base, suffix=segment.suffix).objects.items():
        info = world.store.head(world.keys().file(name))
        assert (info.size, info.etag, f"{info.crc32c:08x}") == (total.size, total.etag, total.crc32c), name


def test_a_running_follower_fills_by_itself(leader: World, follower: World) -> None:
    replica(follower, 100, end=200)
    wanted = leader.keys().segment(SegmentName(100), "manifest.json")
    for agent in running(follower, fill_interval="20ms"):
        leader.store.await_put(lambda: wanted in leader.store.puts)
        assert agent is not None


def running(world: World, **settings: Any) -> Iterator[object]:
    with world.agent(Watcher(), **settings) as agent, agent.running():
        yield agent
