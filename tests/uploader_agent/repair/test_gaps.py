"""Holes on the leader's side: what they are called, what closes them, and what is left of them in the store."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.support.txn_index import txn_entries
from tests.tidemark.kafka_log.build import marker, transactional
from tests.uploader_agent.fakes import ID, FakePartition, T, World, records
from tests.uploader_agent.test_agent import flipped, no_errors, remove
from tidemark.errors import UnknownOutcome
from tidemark.formats.keys import SegmentName
from tidemark.formats.raw.watermark_index import WatermarkIndex
from tidemark.intervals import Intervals
from tidemark.kafka_log import parse_offset_index, parse_time_index
from uploader_agent.broker.admin import Led
from uploader_agent.disk.watcher import Watcher


def die_before(world: World, key: str) -> None:
    """One pass of an agent that goes no further than the PUT of ``key``: it never gets beyond that."""
    world.store.before = lambda operation, name: _refuse(operation, name, key)
    world.once(upload={"concurrency": 1}, retry_initial="1ms", retry_cap="1ms")
    world.store.before = lambda _operation, _key: None


def _refuse(operation: str, name: str, key: str) -> None:
    if operation == "put" and name == key:
        raise UnknownOutcome(name, "told so")


def gap_reasons(world: World) -> list[tuple[int, int, str]]:
    return [(gap.start, gap.end, gap.reason) for gap in world.watermark()[1].gaps]


def with_hole(world: World, log_start: int = 200) -> FakePartition:
    """[0, 100) is stored, [100, 200) is on no disk of the leader, [200, 300) is."""
    partition = world.disk.partition().fill(0, end=100)
    world.once()
    remove(partition, 0, 100)
    partition.fill(200, end=300)
    world.metadata.log_start = log_start
    return partition


def test_what_retention_took_and_what_a_disk_lost_have_their_names(world: World) -> None:
    with_hole(world)
    no_errors(world.once())
    assert gap_reasons(world) == [(100, 200, "deleted_before_upload")]
    lost = World(world.root / "lost")
    with_hole(lost, log_start=0)
    no_errors(lost.once())
    assert gap_reasons(lost) == [(100, 200, "failed_disk")]


def test_what_holding_gave_up_has_its_name(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Told by what was held, with the exact offsets; the rest of the hole by the broker's log start."""
    with_hole(world)
    with world.agent() as agent:
        monkeypatch.setattr(agent.hold, "evicted", lambda _at, _id: Intervals([(150, 180)]))
        agent.upload_once()
    assert gap_reasons(world) == [
        (100, 150, "deleted_before_upload"),
        (150, 180, "staging_full"),
        (180, 200, "deleted_before_upload"),
    ]


def test_what_an_unclean_election_cut_off_has_its_name(world: World) -> None:
    partition = world.disk.partition().fill(0, 100, end=200)
    world.once()
    remove(partition, 0, 100, 200)
    partition.lineage([(3, 0), (5, 100)])
    partition.fill(150, end=250, epoch=5)
    world.metadata.leads, world.metadata.log_start = {T: Led(5, ID)}, 150
    no_errors(world.once())
    assert gap_reasons(world) == [(100, 150, "unclean_election")]
    assert world.watermark()[1].lineage == ((3, 0), (5, 100))
    assert world.watermark()[0] == 0, "line 1 went back with the cut"


def test_a_cut_below_line_1_takes_line_1_back(world: World) -> None:
    partition = world.disk.partition().fill(0, 50, 100, 150, end=200)
    world.once()
    assert world.watermark()[0] == 150
    remove(partition, 50, 100, 150, 200)
    partition.segment(50, records(50, 70))
    partition.lineage([(3, 0), (5, 70)])
    world.metadata.leads, world.metadata.default_high = {T: Led(5, ID)}, 70
    no_errors(world.once())
    base, watermark = world.watermark()
    assert (base, watermark.next_offset) == (50, 70)


def test_damage_at_the_very_start_is_a_gap(world: World) -> None:
    world.disk.partition().fill(0, end=100).segment(0, b"\xff" + records(0, 100)[1:])
    agent = world.once()
    name = SegmentName(0, world.damaged(0))
    assert world.names() == [name.file("corrupt"), name.file("manifest.json"), "offset.wm"]
    assert world.watermark()[1].next_offset == 0
    [gap] = agent.leadership.partitions[T].remote.log.gaps
    assert (gap.start, gap.end, gap.reason) == (0, 100, "corrupt")
    key = world.control.index(1)
    [entry] = WatermarkIndex.from_bytes(world.store.get(key).body, key).entries
    assert entry.gaps == (gap,)


def test_what_another_replica_brought_under_other_boundaries_closes_the_gap(world: World) -> None:
    """Another agent has sealed the gap in two parts; offset.wm moves on and line 1 names its last segment."""
    with_hole(world)
    world.once()
    assert gap_reasons(world) == [(100, 200, "deleted_before_upload")]
    other = world.another(2, leads={T: Led(3, ID)})
    other.disk.partition().fill(100, 130, end=200)
    theirs = World(other.root / "apart")
    theirs.broker, theirs.disk, theirs.metadata = other.broker, other.disk, other.metadata
    theirs.once()
    for name in theirs.names():
        if name != "offset.wm":
            world.store.inner.put(world.keys().file(name), theirs.store.get(theirs.keys().file(name)).body)
    mend_etags(world, 100, 130)
    no_errors(world.once())
    base, watermark = world.watermark()
    assert (base, watermark.next_offset, watermark.gaps, watermark.ranges_above) == (200, 300, (), ())


def mend_etags(world: World, *bases: int) -> None:
    """Give manifests that were copied from another store the ETags of this one."""
    for base in bases:
        manifest = world.manifest(base)
        objects = {
            name: total.model_copy(update={"etag": world.store.head(world.keys().file(name)).etag})
            for name, total in manifest.objects.items()
        }
        key = world.keys().segment(SegmentName(base), "manifest.json")
        world.store.inner.put(key, manifest.model_copy(update={"objects": objects}).to_bytes())


def test_a_running_leader_searches_again_and_rests_in_between(world: World) -> None:
    with_hole(world)
    searches: list[str] = []
    acks = world.control.acknowledgements("orders", 0)

    def note(operation: str, key: str) -> None:
        if operation == "list" and key == acks:
            searches.append(key)

    world.store.before = note
    with world.agent(Watcher(), scan_interval="1d", metadata_interval="10ms") as agent, agent.running():
        world.store.await_put(lambda: world.control.index(1) in world.store.puts)
        turns = world.metadata
        seen = turns.asked
        while turns.asked < seen + 20:
            threading.Event().wait(0.01)
    assert 1 <= len(searches) <= 2, "not at every turn of the loop"


def test_bytes_without_their_manifest_are_given_one(world: World) -> None:
    """The .log is stored, its agent died before the manifest, and retention has taken the file."""
    partition = world.disk.partition().fill(0, end=100)
    world.once()
    content = records(100, 200)
    partition.fill(100, 200, end=300)
    die_before(world, world.keys().segment(SegmentName(100), "manifest.json"))
    assert world.stored(100) == content
    remove(partition, 0, 100)
    world.metadata.log_start = 200
    no_errors(world.once())
    found = world.manifest(100)
    assert (found.next_offset, found.state, found.batch_count, found.lineage) == (200, "whole", 10, ((3, 0),))
    log = found.objects[f"{100:020d}.log"]
    assert log.etag == world.store.head(world.keys().segment(SegmentName(100), "log")).etag
    assert parse_offset_index(world.stored(100, "index"), 100, len(content), "index") == []
    assert parse_time_index(world.stored(100, "timeindex"), 100, 200, "timeindex")
    base, watermark = world.watermark()
    assert (base, watermark.next_offset, watermark.gaps) == (200, 300, ())


def test_bytes_that_are_damaged_or_of_a_dead_branch_get_no_manifest(world: World, tmp_path: Path) -> None:
    for number, content in enumerate([flipped(records(100, 200)), records(100, 200, epoch=9)]):
        one = World(tmp_path / str(number))
        with_hole(one)
        one.store.inner.put(one.keys().segment(SegmentName(100), "log"), content)
        no_errors(one.once())
        assert f"{100:020d}.manifest.json" not in one.names()
        assert gap_reasons(one) == [(100, 200, "deleted_before_upload")]
        assert one.stored(100) == content


def test_aborted_transactions_are_found_again_in_the_bytes(world: World) -> None:
    with_hole(world)
    content = transactional(100, 7, 10) + transactional(110, 8, 10) + marker(120, 7, commit=False)
    content += marker(121, 8, commit=True) + transactional(122, 9, 78)
    world.store.inner.put(world.keys().segment(SegmentName(100), "log"), content)
    partition = FakePartition(world.disk.log_dirs[0] / "orders-0")
    partition.lineage([(3, 0)])
    no_errors(world.once())
    found = world.manifest(100)
    assert [(one.producer_id, one.first_offset) for one in found.open_transactions] == [(9, 122)]
    [aborted] = txn_entries(world.stored(100, "txnindex"))
    assert aborted == (7, 100, 120, 110)
    assert world.watermark()[1].next_offset == 300
