"""What a person has acknowledged as lost stays acknowledged, whatever the agents write after that."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.raw_builder import word
from tests.uploader_agent.fakes import CLUSTER, ID, T, World, records
from tests.uploader_agent.repair.test_gap_filler import running
from tests.uploader_agent.repair.test_gaps import with_hole
from tests.uploader_agent.test_agent import no_errors, remove
from tests.uploader_agent.verify.test_verify import examine
from tidemark.formats.keys import SegmentName
from tidemark.remote import RemoteTopics, Stretch
from tidemark.storage import Storage
from uploader_agent.broker.admin import Led
from uploader_agent.verify import Severity


def acknowledge(world: World, start: int, end: int) -> None:
    key = world.control.acknowledgement("orders", 0, start, end)
    world.store.inner.put(key, word(start, end).to_bytes())


@pytest.fixture
def world(tmp_path: Path) -> World:
    """[100, 200) is missing and acknowledged, [0, 100) and [200, 300) are stored, and ``offset.wm`` says so."""
    world = World(tmp_path)
    with_hole(world)
    no_errors(world.once())
    acknowledge(world, 100, 200)
    no_errors(world.once())
    assert stated(world) == (300, [], [(100, 200)])
    return world


def stated(world: World) -> tuple[int, list[tuple[int, int]], list[tuple[int, int]]]:
    """What ``offset.wm`` says: the next offset, the open gaps, the acknowledged ones."""
    _, found = world.watermark()
    gaps, passed = ([(gap.start, gap.end) for gap in some] for some in (found.gaps, found.acknowledged_gaps))
    return found.next_offset, gaps, passed


def consumed(world: World) -> list[tuple[int, int]]:
    """The stretches that a consumer reads, from 0 to the end."""
    part = RemoteTopics(Storage.at(world.store.url, CLUSTER)).partition("orders", 0)
    assert part is not None
    found: list[tuple[int, int]] = []
    at = 0
    while at < part.end(committed=False):
        stretch = part.next_stretch(at, committed=False)
        assert isinstance(stretch, Stretch), stretch
        found.append((stretch.start, stretch.end))
        at = stretch.end
    return found


def append(world: World, base: int, end: int, *, epoch: int = 3) -> None:
    """The active segment at ``base`` gets records up to ``end`` and is rolled."""
    (world.disk.log_dirs[0] / str(T) / f"{base:020d}.log").write_bytes(records(base, end, epoch=epoch))
    world.disk.partition().roll(end)


def test_it_outlives_later_uploads_of_the_same_agent(world: World) -> None:
    for _ in running(world, scan_interval="20ms"):
        for base in (300, 400, 500):
            append(world, base, base + 100)
            world.store.await_put(lambda end=base + 100: stated(world)[0] == end)  # type: ignore[misc]
            assert stated(world) == (base + 100, [], [(100, 200)])
    assert examine(world) == (Severity.GAP, [(Severity.GAP, 100, 200, False)])
    assert consumed(world) == [(0, 100), (200, 300), (300, 400), (400, 500), (500, 600)]


def test_it_outlives_restarts(world: World) -> None:
    for base in (300, 400):
        append(world, base, base + 100)
        no_errors(world.once())
        assert stated(world) == (base + 100, [], [(100, 200)])
        no_errors(world.once())
        assert stated(world) == (base + 100, [], [(100, 200)])
    assert examine(world) == (Severity.GAP, [(Severity.GAP, 100, 200, False)])


def test_it_outlives_a_change_of_leader(world: World) -> None:
    """The new leader's log begins above the gap, and its segments have other boundaries."""
    second = world.another(2, leads={T: Led(4, ID)}, log_start=250)
    partition = second.disk.partition().lineage([(3, 0), (4, 300)])
    partition.segment(250, records(250, 300) + records(300, 350, epoch=4))
    partition.fill(350, end=400, epoch=4)
    no_errors(second.once())
    assert stated(second) == (400, [], [(100, 200)])
    no_errors(second.once())
    assert stated(second) == (400, [], [(100, 200)])
    assert examine(second)[1][0] == (Severity.GAP, 100, 200, False)
    assert consumed(second)[-1][1] == 400


def test_what_was_acknowledged_on_a_branch_that_the_log_left_says_nothing_about_the_next(world: World) -> None:
    """The new branch has these offsets, once they are there; until then they are on the way, and no gap."""
    partition = world.disk.partition()
    remove(partition, 200, 300)
    partition.lineage([(3, 0), (5, 50)])
    partition.fill(50, 150, end=400, epoch=5)
    world.metadata.leads, world.metadata.log_start = {T: Led(5, ID)}, 50
    no_errors(world.once())
    assert stated(world) == (400, [], [])


def test_offsets_that_the_disk_has_again_are_uploaded_and_nothing_goes_back(world: World) -> None:
    world.disk.partition().segment(100, records(100, 200))
    with world.agent() as agent:
        world.store.before = lambda operation, key: _refuse_log(operation, key, world)
        agent.upload_once()
        assert stated(world) == (300, [], [(100, 200)]), "as long as the store has not got them"
        world.store.before = lambda _operation, _key: None
    no_errors(world.once())
    assert stated(world) == (300, [], [])
    assert examine(world) == (Severity.OK, [])
    assert consumed(world) == [(0, 100), (100, 200), (200, 300)]


def _refuse_log(operation: str, key: str, world: World) -> None:
    if operation == "put" and key == world.keys().segment(SegmentName(100), "log"):
        raise OSError(28, "told so")


def test_a_part_is_acknowledged_and_the_rest_holds(tmp_path: Path) -> None:
    world = World(tmp_path)
    with_hole(world)
    no_errors(world.once())
    acknowledge(world, 100, 150)
    no_errors(world.once())
    assert stated(world) == (150, [(150, 200)], [(100, 150)])
    append(world, 300, 400)
    no_errors(world.once())
    assert stated(world) == (150, [(150, 200)], [(100, 150)])
    acknowledge(world, 150, 200)
    no_errors(world.once())
    assert stated(world)[:2] == (400, [])


def test_a_damaged_segment_that_was_acknowledged_stays_so(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.disk.partition().fill(0, 100, end=200).segment(100, b"\xff" + records(100, 200)[1:])
    no_errors(world.once())
    acknowledge(world, 100, 200)
    no_errors(world.once())
    assert stated(world) == (200, [], [(100, 200)])
    for base in (200, 300):
        append(world, base, base + 100)
        no_errors(world.once())
        assert stated(world) == (base + 100, [], [(100, 200)])
    assert all(not wrong for *_, wrong in examine(world)[1])
    assert consumed(world) == [(0, 100), (200, 300), (300, 400)]


def test_a_hole_below_the_watermark_that_only_runs_know_is_passed_once_it_is_acknowledged(tmp_path: Path) -> None:
    """Somebody removed a segment: ``offset.wm`` counts its offsets for good, so readers and verify go by the word."""
    world = World(tmp_path)
    world.disk.partition().fill(0, 100, 200, end=300)
    no_errors(world.once())
    for extension in ("log", "manifest.json"):
        world.store.inner.delete(world.keys().segment(SegmentName(100), extension))
    remove(world.disk.partition(), 0, 100)
    assert (Severity.GAP, 100, 200, True) in examine(world)[1]
    acknowledge(world, 100, 200)
    assert examine(world) == (Severity.GAP, [(Severity.GAP, 100, 200, False)])
    assert consumed(world) == [(0, 100), (200, 300)]
