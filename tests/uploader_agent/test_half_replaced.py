"""A leader ends, or is fenced, between a longer ``.log`` and its manifest: what is left, and who mends it."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tidemark.remote.reader import Reader
from tests.uploader_agent.fakes import CLUSTER, ID, T, World, records
from tests.uploader_agent.test_commands import outcomes, reuploaded
from tests.uploader_agent.test_gaps import die_before
from tests.uploader_agent.test_verify import verified
from tidemark.errors import UnknownOutcome
from tidemark.remote import Storage
from uploader_agent.broker.admin import Led
from uploader_agent.verify import Severity


@pytest.fixture
def second(world: World) -> World:
    """Broker 1 has stored [0, 300) in three segments; broker 2 leads since, and its second one is [100, 400)."""
    world.disk.partition().fill(0, 100, 200, end=300)
    world.once()
    found = world.another(2, leads={T: Led(4, ID)})
    found.disk.partition().fill(0, 100, end=400)
    return found


@pytest.fixture
def third(world: World, second: World) -> World:
    """Broker 3, which leads after broker 2; its segments begin elsewhere."""
    found = world.another(3, leads={T: Led(5, ID)})
    found.disk.partition().fill(0, 150, 250, end=400)
    return found


def before_replacing(world: World, action: Callable[[], object]) -> None:
    """Do ``action`` once, when the ``.log`` at 100 is about to be replaced: after it was tried to create it."""
    met = []

    def before(operation: str, name: str) -> None:
        if (operation, name) == ("put", world.keys().segment(100, "log")):
            met.append(name)
            if len(met) == 2:
                world.store.before = lambda _operation, _key: None
                action()

    world.store.before = before


def half_replaced(world: World, base: int = 100) -> bool:
    """Whether the segment's ``.log`` is another version than its manifest's."""
    stored = world.store.head(world.keys().segment(base, "log"))
    return world.manifest(base).objects[f"{base:020d}.log"].etag != stored.etag


def read(world: World) -> list[int]:
    """The offsets that a consumer of the store reads."""
    with Reader(Storage.at(world.store.url, CLUSTER)) as reader:
        return [one.offset for one in reader.read(0)]


def test_a_leader_that_is_fenced_after_it_has_replaced_a_log_writes_the_manifest(
    world: World, second: World, third: World
) -> None:
    """The next leader surveys while the ``.log`` is under way, so that nobody would look at it again."""
    before_replacing(world, third.once)
    agent = second.once()
    assert "Fenced" in str(agent.leadership.partitions[T].error)
    assert not half_replaced(world)
    assert world.manifest(100).next_offset == 400
    base, watermark = world.watermark()
    assert (base, watermark.broker, watermark.leader_epoch, watermark.next_offset) == (250, 3, 5, 400)
    assert read(world) == list(range(400))


def test_a_leader_that_is_fenced_before_it_replaces_a_log_leaves_it(world: World, second: World, third: World) -> None:
    """It names the segment first, in ``offset.wm``."""
    content = world.stored(100)
    third.once()
    agent = second.once()
    assert "Fenced" in str(agent.leadership.partitions[T].error)
    assert world.stored(100) == content


def test_a_manifest_is_not_written_over_that_of_a_later_version(world: World, second: World) -> None:
    """The next leader has replaced the segment once more while the former one had its manifest in hand."""
    third = world.another(3, leads={T: Led(5, ID)})
    third.disk.partition().fill(0, 100, end=500)
    key = world.keys().segment(100, "manifest.json")

    def before(operation: str, name: str) -> None:
        if (operation, name) == ("put", key):
            world.store.before = lambda _operation, _key: None
            third.once()

    world.store.before = before
    agent = second.once()
    assert "Fenced" in str(agent.leadership.partitions[T].error)
    assert not half_replaced(world)
    assert (world.manifest(100).next_offset, world.manifest(100).broker) == (500, 3)


@pytest.fixture
def left(world: World, second: World, third: World) -> World:
    """Broker 2's agent ended before the manifest, and nobody's ``offset.wm`` names the segment any more."""

    def refuse(operation: str, name: str) -> None:
        if (operation, name) == ("put", world.keys().segment(100, "manifest.json")):
            raise UnknownOutcome(name, "told so")

    def take_over() -> None:
        third.once()
        world.store.before = refuse

    before_replacing(world, take_over)
    second.once(upload={"concurrency": 1, "retry_initial": "1ms", "retry_cap": "1ms"})
    world.store.before = lambda _operation, _key: None
    third.once()
    assert world.watermark()[1].replacing == ()
    assert half_replaced(world)
    assert len(world.stored(100)) == len(records(100, 400))
    return world


def test_what_a_dead_leader_left_is_read_as_far_as_its_manifest_goes(left: World) -> None:
    assert read(left) == list(range(400))


def test_what_a_dead_leader_left_is_no_fault_to_verify(left: World, third: World) -> None:
    for deep in (False, True):
        verdict, findings = verified(third, deep=deep)
        assert (verdict.word, verdict.wrong) == (Severity.OVERLAP, 0)
        [lagging] = [one for one in findings if one.word is Severity.LAGGING]
        assert (lagging.offset, lagging.end, lagging.object) == (100, 200, left.keys().segment(100, "log"))
    left.store.inner.put(left.keys().segment(100, "log"), records(100, 400, value="other"))
    verdict, findings = verified(third)
    assert verdict.word is Severity.CORRUPT
    assert "and its manifest says" in next(one.detail for one in findings if one.wrong)


def test_what_a_dead_leader_left_is_mended_by_a_reupload_of_its_replica(left: World, second: World) -> None:
    (second.disk.log_dirs[0] / "replication-offset-checkpoint").write_text("0\n1\norders 0 400\n")
    assert outcomes(reuploaded(second, 100, 400)) == [(100, "brought")]
    assert not half_replaced(left)
    assert read(left) == list(range(400))


@pytest.mark.parametrize("same_base", [True, False])
def test_the_next_leader_mends_it_whether_its_segments_begin_there_or_not(
    world: World, second: World, third: World, same_base: bool
) -> None:
    """As long as it surveys after the ``.log`` was replaced: then ``offset.wm``, or the listing, names it."""
    die_before(second, world.keys().segment(100, "manifest.json"))
    assert half_replaced(world)
    if same_base:
        third.disk.partition().fill(100, end=400)
    third.once()
    assert not half_replaced(world)
    assert world.manifest(100).next_offset == 400
    assert read(world) == list(range(400))


@pytest.mark.parametrize("bases", [(0, 150, 250), (0, 100), (0,)], ids=["other bases", "the same base", "a base less"])
def test_another_leads_before_any_write_of_the_former(
    tmp_path: Path, rng: random.Random, full: bool, bases: tuple[int, ...]
) -> None:
    """Whichever write it is: in the end each ``.log`` is its manifest's, and all can be read."""
    numbers = range(1, 12)
    for number in numbers if full else rng.sample(numbers, 2):
        world = World(tmp_path / str(number))
        world.disk.partition().fill(0, 100, 200, end=300)
        world.once()
        second, third = (world.another(broker, leads={T: Led(broker + 2, ID)}) for broker in (2, 3))
        second.disk.partition().fill(0, 100, end=400)
        third.disk.partition().fill(*bases, end=500)
        writes: list[str] = []

        def before(
            operation: str,
            key: str,
            world: World = world,
            number: int = number,
            third: World = third,
            writes: list[str] = writes,
        ) -> None:
            if operation == "put":
                writes.append(key)
                if len(writes) == number:
                    third.once()

        world.store.before = before
        second.once(upload={"concurrency": 1, "retry_initial": "1ms", "retry_cap": "1ms"})
        world.store.before = lambda _operation, _key: None
        assert len(writes) >= number, "the former leader wrote less"
        named = [name for name in world.names() if name.endswith(".log")]
        assert [name for name in named if half_replaced(world, int(name[:20]))] == [], (number, writes)
        assert read(world) == list(range(500)), (number, writes)


def test_stored_bytes_that_run_across_a_truncation_are_no_segment(world: World) -> None:
    """A leader's last ``.log`` has no manifest, and an election cut its end off; the brokers have none of it any more.

    By the starts of its epochs it would fit: epoch 3 began at 100, and nothing of epoch 5 is in it.
    """
    replica = world.disk.partition()
    replica.fill(0, 100, end=200)
    world.once()
    world.store.inner.put(world.keys().segment(200, "log"), records(200, 300))
    leader = world.another(2, leads={T: Led(5, ID)})
    theirs = leader.disk.partition()
    theirs.lineage([(3, 0), (5, 250)])
    theirs.segment(300, records(300, 400, epoch=5))
    theirs.segment(400, b"")
    leader.once()
    found = leader.watermark()[1]
    assert (found.next_offset, [(gap.start, gap.end) for gap in found.gaps]) == (200, [(200, 300)])
    assert found.ranges_above == ((300, 400),)
