"""Retention takes segments before the store has them: what is held goes up all the same, and only what was so."""

from __future__ import annotations

import errno
import os
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.tuned_agent import tuned
from tests.uploader_agent.fakes import ID, OTHER_ID, FakePartition, T, World, records
from tests.uploader_agent.test_agent import no_errors, remove
from tests.uploader_agent.tested_agent import TestedAgent
from tidemark.errors import ConfigError
from tidemark.formats.keys import TopicPartition
from tidemark.formats.raw.watermark_index import WatermarkIndex
from tidemark.intervals import Intervals
from uploader_agent.disk.log_dirs import find_segments
from uploader_agent.disk.segment_files import PartitionFiles, SegmentChanged
from uploader_agent.hold import Hold, held_segments
from uploader_agent.hold.held_segments import HEADROOM, MOST, NOTE, budget, read_back
from uploader_agent.hold.hold import Cost, Owned, ends_at, rotated_segments, to_evict
from uploader_agent.observability.metrics import Metrics
from uploader_agent.runtime import Runtime

BOUNDLESS = {"max": 1.0}


@contextmanager
def watching(world: World, *, min_free: float = 0.0, **hold: Any) -> Iterator[TestedAgent]:
    """An agent that has looked once, while the store was down."""
    with world.agent(hold={**BOUNDLESS, **hold}, hold_min_free=min_free) as agent:
        look(agent)
        try:
            yield agent
        finally:
            agent.hold.close()


def look(agent: TestedAgent) -> None:
    agent.refresh()
    for partition in agent.leadership.partitions.values():
        partition.look()


def with_links(world: World) -> dict[str, Any]:
    return {"links": [str(world.root / "links")]}


def lose(partition: FakePartition, *bases: int) -> None:
    partition.retire(*bases)
    partition.unlink_deleted()


def held(agent: TestedAgent) -> list[tuple[int, int | None]]:
    return [(one.base_offset, one.next_offset) for one in agent.hold.segments(T, ID)]


def metric(agent: TestedAgent, name: str) -> float:
    found = agent.metrics.registry.get_sample_value(f"tidemark_agent_{name}")
    assert found is not None
    return found


def gaps(world: World) -> list[tuple[int, int, str]]:
    return [(gap.start, gap.end, gap.reason) for gap in world.watermark()[1].gaps]


@pytest.mark.parametrize("linked", [False, True])
def test_what_retention_takes_goes_up_all_the_same(world: World, linked: bool) -> None:
    partition = world.disk.partition().fill(0, 100, 200, end=300)
    before = {path.name: path.read_bytes() for path in partition.folder.iterdir()}
    with watching(world, **with_links(world) if linked else {}) as agent:
        assert held(agent) == [(0, 100), (100, 200), (200, 300)]
        lose(partition, 0, 100)
        partition.roll(350)
        partition.segment(300, records(300, 350))
        agent.upload_once()
        no_errors(agent)
        assert held(agent) == []
        assert not linked or list((world.root / "links").iterdir()) == [], "released as soon as it is uploaded"
    _, watermark = world.watermark()
    assert (watermark.start_offset, watermark.next_offset, watermark.gaps) == (0, 350, ())
    for base in (0, 100, 200):
        manifest = world.manifest(base)
        assert manifest.state == "whole"
        assert {name.partition(".")[2] for name in manifest.objects} == {"log", "index", "timeindex"}
        assert world.stored(base) == before[f"{base:020d}.log"]


@pytest.mark.parametrize("enabled", [True, False])
def test_an_upload_under_way_survives_that_its_files_are_taken(world: World, enabled: bool) -> None:
    """Without holding too: the file is open."""
    partition = world.disk.partition().fill(0, end=100)
    before = partition.log(0).read_bytes()

    def take_away(operation: str, key: str) -> None:
        if operation == "put" and key.endswith(".log"):
            lose(partition, 0)

    world.store.before = take_away
    no_errors(world.once(hold={**BOUNDLESS, "enabled": enabled}))
    assert {name.partition(".")[2] for name in world.manifest(0).objects} == {"log", "index", "timeindex"}
    assert world.stored(0) == before


def test_segments_taken_while_they_are_looked_at_are_held_or_left(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between listing and opening, and between opening and proving where a segment ends."""
    partition = world.disk.partition().fill(0, 100, 200, end=300)
    real = PartitionFiles.names

    def take_away(files: PartitionFiles) -> list[str]:
        partition.retire(0, 100)
        return real(files)

    monkeypatch.setattr(PartitionFiles, "names", take_away)
    with watching(world) as agent:
        assert held(agent) == [(0, 100), (100, 200), (200, 300)]
        lose(partition)
        monkeypatch.undo()
        agent.upload_once()
        no_errors(agent)
    assert world.watermark()[1].next_offset == 300


def test_a_segment_that_a_listing_missed_is_not_swallowed(world: World) -> None:
    partition = world.disk.partition().fill(0, 100, 200, end=300)
    names = [path.name for path in partition.folder.iterdir()]
    assert ends_at(names, 0, 100)
    assert not ends_at(names, 0, 200), "100 lies between"
    partition.retire(0, 100)
    names = [path.name for path in partition.folder.iterdir()]
    assert ends_at(names, 0, 100)
    assert not ends_at(names, 0, 200), "also when both were given up meanwhile"


def test_links_outlive_the_agent(world: World) -> None:
    partition = world.disk.partition().fill(0, 100, end=200)
    with watching(world, **with_links(world)) as agent:
        assert len(list((world.root / "links").iterdir())) == 2
        del agent
    lose(partition, 0, 100)
    partition.lineage([(5, 200)])  # the broker forgets the epochs below its log start
    world.metadata.leads[T] = world.metadata.leads[T]._replace(leader_epoch=5)
    agent = world.once(hold={**BOUNDLESS, **with_links(world)})
    no_errors(agent)
    _, watermark = world.watermark()
    assert (watermark.next_offset, watermark.gaps, watermark.lineage) == (200, (), ((3, 0), (5, 200)))
    assert [world.manifest(base).lineage for base in (0, 100)] == [((3, 0),)] * 2
    world.once(hold={**BOUNDLESS, **with_links(world)})
    assert list((world.root / "links").iterdir()) == [], "what is uploaded is released"


def test_without_holding_the_gap_is_exact(world: World) -> None:
    partition = world.disk.partition().fill(0, end=100)
    world.once()
    partition.fill(100, 200, 300, end=400)
    with watching(world, enabled=False) as agent:
        lose(partition, 0, 100, 200)
        world.metadata.log_start = 300
        agent.upload_once()
    assert gaps(world) == [(100, 300, "deleted_before_upload")]
    assert world.watermark()[1].ranges_above == ((300, 400),)


def test_epochs_that_the_broker_forgot_stay_in_the_lineage(world: World) -> None:
    partition = world.disk.partition().segment(0, records(0, 100, epoch=1))
    partition.segment(100, records(100, 150, epoch=1) + records(150, 200, epoch=2))
    partition.segment(200, records(200, 300, epoch=3))
    for end in (100, 200, 300):
        partition.roll(end) if end == 300 else partition.snapshot(end)
    partition.lineage([(1, 0), (2, 150), (3, 200)])
    with watching(world) as agent:
        lose(partition, 0, 100)
        partition.lineage([(3, 200)])
        agent.upload_once()
        no_errors(agent)
    assert world.watermark()[1].lineage == ((1, 0), (2, 150), (3, 200))
    assert world.manifest(100).lineage == ((1, 0), (2, 150))


# -- what counts ------------------------------------------------------------------------------------------------------


def spoil_in_place(partition: FakePartition, path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:-100])
    partition.roll(95)


def spoil_and_restore_size(partition: FakePartition, path: Path) -> None:
    path.write_bytes(records(0, 100, value="another"))


def spoil_lineage(partition: FakePartition, _: Path) -> None:
    partition.lineage([(2, 0), (4, 50)])


@pytest.mark.parametrize("spoil", [spoil_in_place, spoil_and_restore_size, spoil_lineage])
def test_held_bytes_that_changed_do_not_count(world: World, spoil: Any) -> None:
    partition = world.disk.partition().fill(0, 100, end=200)
    with watching(world) as agent:
        path = partition.log(0)
        partition.retire(0)
        spoil(partition, Path(f"{path}.deleted"))
        partition.unlink_deleted()
        world.metadata.leads[T] = world.metadata.leads[T]._replace(leader_epoch=4)
        look(agent)
        assert (0, 100) not in held(agent)


def test_what_changes_between_a_look_and_the_upload_does_not_count(world: World) -> None:
    partition = world.disk.partition().fill(0, end=100)
    with watching(world) as agent:
        partition.retire(0)
        Path(f"{partition.log(0)}.deleted").write_bytes(records(0, 100, value="another"))
        with (
            agent.hold.files(T, ID, partition.folder) as files,
            pytest.raises(SegmentChanged, match="the log was truncated"),
        ):
            files.open(f"{0:020d}.log")
        assert held(agent) == []


def test_held_indexes_serve_no_other_log(world: World) -> None:
    partition = world.disk.partition().fill(0, end=100)
    with watching(world) as agent, agent.hold.files(T, ID, partition.folder) as files:
        index = partition.log(0).with_suffix(".index")
        index.unlink()
        assert files.open(index.name) is not None
        partition.log(0).unlink()
        partition.log(0).write_bytes(records(0, 90))
        assert files.open(index.name) is None


def test_what_is_held_is_no_hole(world: World) -> None:
    """Neither before it may go up, nor between two holes."""
    partition = world.disk.partition().fill(0, end=100)
    world.once()
    partition.fill(100, 200, 300, 400, end=500)
    with watching(world) as agent:
        lose(partition, 0, 100, 200, 300)
        agent.hold._shelf.drop(((T, ID), 100))
        agent.hold._shelf.drop(((T, ID), 300))
        world.metadata.default_high, world.metadata.log_start = 150, 400
        agent.upload_once()
        assert gaps(world) == [(100, 200, "deleted_before_upload"), (300, 400, "deleted_before_upload")]


def test_a_segment_that_changed_since_it_was_listed_is_not_held(world: World) -> None:
    partition = world.disk.partition().fill(0, 100, end=200)
    first, second, _ = find_segments(partition.folder)
    stale = replace(first, size=first.size + 1)
    with PartitionFiles(partition.folder, ID) as files:
        found = list(rotated_segments(files, Owned(T, ID, 3), files.lineage(), [stale, second]))
        assert [one.note.base_offset for one in found] == [100]
        for one in found:
            held_segments.close_all(one.files)
    assert open_below(partition.folder) == []


def test_batches_that_contradict_what_was_written_down_are_kept_as_corrupt(world: World) -> None:
    """The broker knows nothing of these epochs any more: the held lineage is what tells."""
    partition = world.disk.partition().segment(0, records(0, 100, epoch=2)).roll(100)
    partition.lineage([(2, 0), (3, 50)])
    with watching(world) as agent:
        lose(partition, 0)
        partition.lineage([(3, 100)])
        agent.upload_once()
        assert held(agent) == []
    damage = world.manifest(0, suffix=world.damaged(0)).damage
    assert damage is not None
    assert damage.offset == 50
    assert "leader epoch 2 is not 3" in damage.rule


def test_a_log_truncated_while_it_is_held_is_held_anew(world: World) -> None:
    partition = world.disk.partition().fill(0, 100, end=200)
    with watching(world) as agent:
        partition.segment(100, records(100, 150))
        for path in partition.folder.glob(f"{200:020d}.*"):
            path.unlink()
        partition.roll(150)
        look(agent)
        assert held(agent) == [(0, 100), (100, 150)]
    assert open_below(partition.folder) == []


@pytest.mark.parametrize("linked", [False, True])
def test_a_move_between_disks_is_no_truncation(
    tmp_path: Path, linked: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """The broker copies the files, renames the copy to the partition's name, and deletes the former directory."""
    world = World(tmp_path, log_dirs=2)
    partition = world.disk.partition().fill(0, 100, end=200)
    with watching(world, **with_links(world) if linked else {}) as agent:
        assert held(agent) == [(0, 100), (100, 200)]
        future = world.disk.log_dirs[1] / f"{T}.abc-future"
        shutil.copytree(partition.folder, future, copy_function=shutil.copyfile)
        for path in future.glob("*.log"):
            os.utime(path, (1e9, 1e9))
        partition.folder.rename(partition.folder.with_name(f"{T}.abc-delete"))
        moved = FakePartition(future.rename(world.disk.log_dirs[1] / str(T)))
        look(agent)
        said = capsys.readouterr().out
        assert said.count("held_segment_copied") == 2
        assert "held_segment_dropped" not in said
        assert "truncated" not in said
        assert held(agent) == [(0, 100), (100, 200)]
        lose(moved, 0)
        agent.upload_once()
        no_errors(agent)
    assert world.watermark()[1].next_offset == 200
    assert world.watermark()[1].gaps == ()


def test_a_topic_made_again_shares_nothing(world: World) -> None:
    partition = world.disk.partition().fill(0, end=100)
    with watching(world) as agent:
        shutil.rmtree(partition.folder)
        again = world.disk.partition(topic_id=OTHER_ID).segment(100, b"")
        world.metadata.leads[T] = world.metadata.leads[T]._replace(topic_id=OTHER_ID)
        look(agent)
        assert [one.base_offset for one in agent.leadership.partitions[T].segments] == [100]
        assert held(agent) == [(0, 100)], "they stay, of the former incarnation"
        with agent.hold.files(T, ID, again.folder) as files:
            log = files.open(f"{0:020d}.log")
            assert log is not None
            assert log.read() == records(0, 100)
        with agent.hold.files(T, OTHER_ID, again.folder) as files:
            assert files.open(f"{0:020d}.log") is None


def test_for_who_does_not_lead(world: World) -> None:
    """What the filler of gaps asks for."""
    partition = world.disk.partition().fill(0, 100, end=200)
    with watching(world) as agent:
        shutil.rmtree(partition.folder)
        with agent.hold.files(T, ID, None) as files:
            assert (files.next_base(0), files.next_base(100)) == (100, 200)
            assert files.lineage().entries == ((3, 0),)
            assert files.open(f"{200:020d}.log") is None
            log = files.open(f"{100:020d}.log")
            agent.hold.release(T, ID, 150)
            assert held(agent) == [(100, 200)]
            agent.hold.release(T, ID, 200)
            assert held(agent) == []
            assert log is not None
            assert log.read() == records(100, 200), "what is open stays so"
        with pytest.raises(SegmentChanged, match="is not on a disk of this broker"):
            agent.hold.files(T, ID, None)


# -- .deleted ---------------------------------------------------------------------------------------------------------


def test_deleted_files_count_after_a_restart(world: World) -> None:
    partition = world.disk.partition().fill(0, 100, 200, end=300)
    partition.retire(0, 100)
    no_errors(world.once())
    _, watermark = world.watermark()
    assert (watermark.start_offset, watermark.next_offset) == (0, 300)
    assert [world.manifest(base).state for base in (0, 100, 200)] == ["whole"] * 3


@pytest.mark.parametrize("index", [True, False])
def test_deleted_files_with_several_epochs(world: World, index: bool) -> None:
    partition = world.disk.partition().segment(0, records(0, 50, epoch=1) + records(50, 100, epoch=2))
    partition.segment(100, records(100, 200))
    partition.snapshot(100)
    if not index:
        partition.log(0).with_suffix(".index").unlink()
    partition.roll(200)
    partition.lineage([(3, 100)])
    partition.retire(0)
    no_errors(world.once())
    assert world.manifest(0).lineage == ((1, 0), (2, 50))
    assert world.watermark()[1].lineage == ((1, 0), (2, 50), (3, 100))


def dead_branch(partition: FakePartition) -> None:
    partition.segment(0, records(0, 150))  # ends above the first live base


def two_claims(partition: FakePartition) -> None:
    partition.segment(0, records(0, 60))
    partition.segment(50, records(50, 100))
    partition.retire(50)


def other_epochs(partition: FakePartition) -> None:
    partition.segment(0, records(0, 100, epoch=2))
    partition.lineage([(3, 0)])


def half_a_batch(partition: FakePartition) -> None:
    partition.segment(0, records(0, 100)[:-10])


def no_batch(partition: FakePartition) -> None:
    partition.segment(0, b"")


def epochs_go_back(partition: FakePartition) -> None:
    partition.segment(0, records(0, 50, epoch=2) + records(50, 100, epoch=1))
    partition.lineage([(3, 100)])


@pytest.mark.parametrize("left", [dead_branch, two_claims, other_epochs, half_a_batch, no_batch, epochs_go_back])
def test_other_deleted_files_do_not_count(world: World, left: Any) -> None:
    partition = world.disk.partition().fill(100, end=200)
    left(partition)
    partition.retire(0)
    no_errors(world.once())
    _, watermark = world.watermark()
    assert (watermark.start_offset, watermark.next_offset, watermark.gaps) == (100, 200, ())


def test_deleted_files_that_reach_into_the_active_segment_do_not_count(world: World) -> None:
    partition = world.disk.partition().segment(0, records(0, 150))
    partition.retire(0)
    partition.segment(100, records(100, 120))
    with watching(world) as agent:
        assert held(agent) == []
    partition.segment(0, records(0, 100))
    partition.retire(0)
    with watching(world) as agent:
        assert held(agent) == [(0, 100)]


def test_what_a_truncation_deleted_does_not_count_where_retention_took_what_came_in_its_place(world: World) -> None:
    """The live log remembers neither of them. One was held as it was before the truncation."""
    partition = world.disk.partition().fill(0, end=100).segment(100, records(100, 110))
    with watching(world) as agent:
        assert held(agent) == [(0, 100)]
        partition.retire(100)
        partition.segment(0, records(0, 50) + records(50, 200, epoch=4))
        partition.snapshot(200)
        partition.segment(200, b"")
        partition.retire(0)
        partition.lineage([(4, 200)])
        look(agent)
        assert held(agent) == [(0, 200)]


def test_deleted_files_must_agree_with_the_watermark(world: World) -> None:
    """Their own lineage is not part of the live one, and starts within what was uploaded from another branch."""
    partition = world.disk.partition().fill(0, end=50)
    world.once()
    remove(partition, 0, 50)
    partition.segment(40, records(40, 100, epoch=2))
    partition.retire(40)
    partition.fill(100, end=200)
    partition.lineage([(3, 100)])
    no_errors(world.once())
    assert not [name for name in world.names() if name.startswith(f"{40:020d}")]
    assert [(gap.start, gap.end) for gap in world.watermark()[1].gaps] == [(50, 100)]


def test_deleted_files_that_the_store_has_are_left_alone(world: World) -> None:
    partition = world.disk.partition().fill(0, 100, end=200)
    world.once()
    puts = len(world.store.puts)
    partition.retire(0)
    with world.agent() as agent:
        agent.upload_once()
        look(agent)
        assert held(agent) == []
    assert len(world.store.puts) == puts + 1, "the index"


# -- links ------------------------------------------------------------------------------------------------------------


def fail_link(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_descriptor: int, _path: Path) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(held_segments, "link", fail)


@pytest.mark.parametrize(
    "number", [errno.EXDEV, errno.EPERM, errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EMLINK, errno.EDQUOT]
)
def test_descriptors_serve_where_links_cannot_be_made(
    world: World, number: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    partition = world.disk.partition().fill(0, 100, end=200)
    fail_link(number, monkeypatch)
    with watching(world, **with_links(world)) as agent:
        assert held(agent) == [(0, 100), (100, 200)]
        assert capsys.readouterr().out.count("links_impossible") == 1, "said once"
        assert list((world.root / "links").iterdir()) == []
        lose(partition, 0, 100)
        agent.upload_once()
    assert world.watermark()[1].next_offset == 200


def test_links_directory_that_cannot_be_made(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.disk.partition().fill(0, end=100)
    (world.root / "links").write_text("a file")
    with watching(world, **with_links(world)) as agent:
        assert held(agent) == [(0, 100)]
    assert capsys.readouterr().out.count("links_unusable") == 1


def test_a_disk_that_is_full_while_linking_leaves_nothing_half(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.disk.partition().fill(0, end=100)
    made: list[Path] = []

    def full(descriptor: int, path: Path) -> None:
        if made:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        made.append(path)
        real(descriptor, path)

    real = held_segments.link
    monkeypatch.setattr(held_segments, "link", full)
    with watching(world, **with_links(world)) as agent:
        assert held(agent) == [(0, 100)]
        assert list((world.root / "links").iterdir()) == []


def test_links_lie_on_the_file_system_of_the_log_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    places = [Path(name) for name in ("/dev/shm", "/var/tmp")]  # noqa: S108 - a directory of our own is made in one
    others = [one for one in places if one.is_dir() and one.stat().st_dev != tmp_path.stat().st_dev]
    if not others:
        pytest.skip("there is no second file system at /dev/shm or /var/tmp")
    folder = others[0] / f"tidemark-{os.getpid()}"
    world = World(tmp_path)
    world.disk.partition().fill(0, 100, end=200)
    try:
        with watching(world, links=[str(folder), str(tmp_path / "links")]):
            assert len(list(folder.iterdir())) == 0
            assert len(list((tmp_path / "links").iterdir())) == 2
        assert "links_impossible" not in capsys.readouterr().out
        with watching(world, links=[str(folder)]):
            assert len(list(folder.iterdir())) == 0
        said = capsys.readouterr().out
        assert said.count("links_impossible") == 1, "said once"
        assert "no directory of hold.links is on the file system of orders-0" in said
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_links_in_a_log_directory_are_refused(world: World) -> None:
    inside = world.disk.log_dirs[0] / "held"
    with (
        pytest.raises(ConfigError, match="Kafka does not start with foreign files"),
        world.agent(hold={"links": [inside]}),
    ):
        pass
    assert not inside.exists()


def break_note(folder: Path) -> None:
    (folder / held_segments.NOTE).write_text("{")


def lose_index(folder: Path) -> None:
    next(folder.glob("*.index")).unlink()


def lose_note(folder: Path) -> None:
    (folder / held_segments.NOTE).unlink()


def cut_log(folder: Path) -> None:
    os.truncate(next(folder.glob("*.log")), 100)


def unfinished(folder: Path) -> None:
    folder.rename(folder.with_name(f".{folder.name}"))


@pytest.mark.parametrize("damage", [break_note, lose_index, lose_note, cut_log, unfinished])
def test_incomplete_sets_are_removed_at_the_start(world: World, damage: Any) -> None:
    world.disk.partition().fill(0, 100, end=200)
    with watching(world, **with_links(world)):
        pass
    links = world.root / "links"
    damage(next(links.glob(f"{0:020d}-*")))
    shutil.rmtree(world.disk.log_dirs[0] / str(T))
    with watching(world, **with_links(world)) as agent:
        assert held(agent) == [(100, 200)]
        assert len(list(links.iterdir())) == 1


# -- bounds -----------------------------------------------------------------------------------------------------------


def cost(name: str, size: int, modified: float, age: float = 0.0) -> Cost:
    return Cost(((T, name), 0), size, modified, age)


@pytest.mark.parametrize(
    ("share", "min_free", "free", "ages", "gone"),
    [
        (0.30, 0.0, 500, (0, 0, 0), []),
        (0.29, 0.0, 500, (0, 0, 0), ["old"]),
        (0.10, 0.0, 500, (0, 0, 0), ["old", "middle"]),
        (0.0, 0.0, 500, (0, 0, 0), ["old", "middle", "new"]),
        (1.0, 0.5, 500, (0, 0, 0), []),
        (1.0, 0.5, 499, (0, 0, 0), ["old"]),
        (1.0, 0.5, 399, (0, 0, 0), ["old", "middle"]),
        (1.0, 0.5, 0, (0, 0, 0), ["old", "middle", "new"]),
        (1.0, 0.0, 500, (0, 61, 0), ["middle"]),
        (0.2, 0.0, 500, (0, 0, 61), ["old", "new"]),
    ],
)
def test_the_oldest_go_until_all_bounds_hold(
    share: float, min_free: float, free: int, ages: tuple[float, ...], gone: list[str]
) -> None:
    costs = [cost("new", 100, 3.0, ages[2]), cost("old", 100, 1.0, ages[0]), cost("middle", 100, 2.0, ages[1])]
    evicted = to_evict(costs, (1000, free), share=share, min_free=min_free, max_age=timedelta(minutes=1))
    assert [topic_id for (_, topic_id), _ in evicted] == gone
    assert to_evict(costs, None, share=0, min_free=1, max_age=timedelta(minutes=2)) == []


def test_what_is_evicted_is_a_gap_with_its_reason(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    (world.root / "state").mkdir()
    partition = world.disk.partition().fill(0, end=100)
    world.once()
    partition.fill(100, 200, 300, 400, end=500)
    size = partition.log(100).stat().st_size
    monkeypatch.setattr("uploader_agent.hold.hold.os.statvfs", lambda _: FakeFileSystem(size * 10))
    with watching(world, max=0.25) as agent:
        agent.hold.enforce()
        assert (metric(agent, "held_segments"), metric(agent, "held_bytes")) == (5, 0), "the broker has them yet"
        partition.retire(0, 100, 200, 300)
        agent.hold.enforce()
        assert metric(agent, "held_bytes") == 0, ".deleted files cost the broker, not us"
        partition.unlink_deleted()
        agent.hold.release(T, ID, 100)
        agent.hold.enforce()
        assert held(agent) == [(200, 300), (300, 400), (400, 500)]
        assert metric(agent, "yielded_segments_total") == 1
        assert 2 * size < metric(agent, "held_bytes") <= 2.5 * size
        assert agent.hold.evicted(T, ID) == Intervals([(100, 200)])
    # After a restart what was held by descriptors alone is gone as well: that has another reason.
    world.metadata.log_start = 400
    agent = world.once(hold=BOUNDLESS)
    no_errors(agent)
    assert gaps(world) == [(100, 200, "staging_full"), (200, 400, "deleted_before_upload")]
    assert not agent.hold.evicted(T, ID), "the watermark says so now"
    world.once(hold=BOUNDLESS)
    assert gaps(world) == [(100, 200, "staging_full"), (200, 400, "deleted_before_upload")]


def test_what_is_evicted_before_the_first_upload_is_a_gap_too(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    (world.root / "state").mkdir()
    partition = world.disk.partition().fill(0, 100, 200, end=300)
    size = partition.log(0).stat().st_size
    monkeypatch.setattr("uploader_agent.hold.hold.os.statvfs", lambda _: FakeFileSystem(size * 10))
    with watching(world, max=0.15) as agent:
        lose(partition, 0, 100)
        agent.hold.enforce()
        assert held(agent) == [(100, 200), (200, 300)]
        agent.upload_once()
    index = WatermarkIndex.from_bytes(world.store.get(world.control.index(1)).body, "index")
    [gap] = index.entries[0].gaps
    assert (gap.start, gap.end, gap.reason, index.entries[0].uploaded_end) == (0, 100, "staging_full", 300)


def test_bounds_change_while_the_agent_runs(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    partition = world.disk.partition().fill(0, 100, 200, end=300)
    size = partition.log(0).stat().st_size
    monkeypatch.setattr("uploader_agent.hold.hold.os.statvfs", lambda _: FakeFileSystem(size * 10))
    (world.root / "state").mkdir()
    with watching(world) as agent:
        lose(partition, 0, 100)
        agent.hold.enforce()
        assert held(agent) == [(0, 100), (100, 200), (200, 300)]
        agent.reconfigure(world.settings(hold={**BOUNDLESS, "max": 0.15}), "agent.yaml")
        agent.hold.enforce()
        assert held(agent) == [(100, 200), (200, 300)]


def test_age_counts_from_when_the_broker_gave_it_up_by_a_clock_that_cannot_jump(world: World) -> None:
    partition = world.disk.partition().fill(0, 100, end=200)
    now = 1000.0

    class Told(Runtime):
        def monotonic(self) -> float:
            return now

    settings, tuning = world.settings(hold=BOUNDLESS).hold, tuned({"hold_min_free": 0.0, "hold_max_age": "1m"})
    hold = Hold(settings, world.disk.log_dirs, world.root, Metrics(), runtime=Told(), tuning=tuning)
    os.utime(partition.log(0), (1, 1))

    def enforce() -> list[int]:
        hold.look(T, ID, 3, partition.folder, Intervals(), None)
        hold.enforce()
        return [one.base_offset for one in hold.segments(T, ID)]

    assert enforce() == [0, 100]
    now += 1000
    assert enforce() == [0, 100], "the broker has them yet"
    lose(partition, 0)
    assert enforce() == [0, 100]
    now += 60
    assert enforce() == [0, 100]
    now += 1
    assert enforce() == [100]
    hold.close()


def test_lack_of_descriptors_leaves_the_newest_unheld(world: World) -> None:
    partition, other = world.disk.partition(), world.disk.partition(TopicPartition("orders", 1))
    for number, one in enumerate((partition, other)):
        one.fill(0, 100, 200, end=300)
        for base in (0, 100, 200):
            os.utime(one.log(base), (1000 + base - number, 1000 + base - number))
    metrics = Metrics()
    hold = Hold(world.settings().hold, world.disk.log_dirs, world.root, metrics, descriptors=16)
    for at, one in 2 * ((T, partition), (TopicPartition("orders", 1), other)):
        hold.look(at, ID, 3, one.folder, Intervals(), None)
    assert [one.base_offset for one in hold.segments(T, ID)] == [0, 100]
    assert [one.base_offset for one in hold.segments(TopicPartition("orders", 1), ID)] == [0, 100]
    hold.enforce()
    assert metrics.registry.get_sample_value("tidemark_agent_unheld_segments") == 2
    hold.close()


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EACCES, errno.EIO])
def test_files_that_cannot_be_opened_are_counted_and_said(
    world: World, number: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    world.disk.partition().fill(0, 100, 200, end=300)
    real = PartitionFiles.descriptor

    def fail(files: PartitionFiles, name: str) -> int | None:
        if name == f"{100:020d}.timeindex":
            raise OSError(number, os.strerror(number))
        return real(files, name)

    monkeypatch.setattr(PartitionFiles, "descriptor", fail)
    hold = Hold(world.settings().hold, world.disk.log_dirs, world.root, metrics := Metrics())
    folder = world.disk.log_dirs[0] / str(T)
    for _ in range(2):
        assert len(hold.look(T, ID, 3, folder, Intervals(), None)[1]) == 4
    hold.enforce()
    assert metrics.registry.get_sample_value("tidemark_agent_unheld_segments") == 1
    assert [one.base_offset for one in hold.segments(T, ID)] == [0, 200], "the others are held"
    assert capsys.readouterr().out.count("cannot_hold") == 1
    hold.close()
    assert open_below(folder) == [], "no descriptor is left behind"


def open_below(folder: Path) -> list[str]:
    """Names of this process's open files in ``folder``."""
    targets = [str(path.resolve()) for path in Path("/proc/self/fd").iterdir()]
    return [target for target in targets if target.startswith(str(folder))]


class FakeFileSystem:
    """``statvfs`` of a file system of ``size`` bytes that is half empty."""

    f_frsize = 1

    def __init__(self, size: int) -> None:
        self.f_blocks = size
        self.f_bavail = size // 2


def test_descriptors_to_keep() -> None:
    assert [budget(limit) for limit in (64, 1024, 10_000, resource.RLIM_INFINITY, 1 << 20)] == [
        32,
        512,
        10_000 - HEADROOM,
        MOST,
        MOST,
    ]


def test_a_worker_sees_no_hole_while_the_loop_looks(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look at the directory and that at what is held, the log is what was seen before."""
    partition = world.disk.partition().fill(0, 100, end=200)
    world.metadata.default_high = 0
    with watching(world) as agent:
        led = agent.leadership.partitions[T]
        led.uploader.learn()
        lose(partition, 0)
        real, seen = Hold.look, []

        def looked(self: Hold, *arguments: Any) -> Any:
            seen.append(led.uploader.holes())
            return real(self, *arguments)

        monkeypatch.setattr(Hold, "look", looked)
        assert led.look()
        assert [one.base_offset for one in led.segments] == [0, 100, 200]
    assert seen == [Intervals()]


def test_a_set_that_a_later_agent_has_described_stays(tmp_path: Path) -> None:
    """After a return to the former version; a damaged one counts as not finished."""
    for name, body in (("later", b'{"format":2,"needs":"1.4"}'), ("damaged", b"{}")):
        (tmp_path / name).mkdir()
        (tmp_path / name / NOTE).write_bytes(body)
    assert list(read_back(tmp_path)) == []
    assert [path.name for path in tmp_path.iterdir()] == ["later"]
