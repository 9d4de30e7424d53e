"""After a pass no seal holds a masked record, no other record is gone, and what remains is named."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.spark.audit.test_audit import audited
from tests.spark.erasing.masked import erase, killed, take_out
from tests.spark.erasing.test_erased_rows import landed
from tests.spark.run.test_truncation import branch
from tests.spark.test_vacuum import Died
from tests.spark.world import Acting, World, in_process
from tests.tidemark.kafka_log.build import T0, Record, batch, legacy, reseal, simple
from tests.tidemark.remote.live import Packing, Range
from tidemark.decode import decode_batches, scan_headers
from tidemark.decode.rewrite import BatchRewriter
from tidemark.erasure.reports import RawReport
from tidemark.errors import ContinuityError, FormatError
from tidemark.formats.keys import ControlKeys, SegmentName
from tidemark.formats.raw.manifest import SegmentDamage, SegmentManifest
from tidemark.formats.raw.tombstones import Buried
from tidemark.planning import plan_rebuild, write_plan
from tidemark.raw import objects
from tidemark.raw.masks import read_mask
from tidemark.raw.tombstones import read_buried
from tidemark.remote.reader.read_range import read_range
from tidemark.storage import ClusterStore
from tidemark.store.local import LocalStore
from tidemark_spark.erasing import rewriting as worker
from tidemark_spark.erasing import seals
from tidemark_spark.erasing.seals import erase_seals
from tidemark_spark.run.driver import run

Pairs = set[tuple[int, int]]


def step(world: World, attempt: int = 7) -> RawReport:
    """The last step of a pass."""
    return erase_seals(world.table, attempt, in_process)


def stored(world: World) -> dict[str, Pairs]:
    """The (partition, offset) pairs of the records in each log."""
    found: dict[str, Pairs] = {}
    for partition in (0, 1):
        keys = world.raw.keys(partition)
        for info in world.raw.store.list(keys.folder):
            parsed = keys.segment_of(info.key)
            if parsed is not None and parsed[1] == "log":
                data = world.raw.store.get(info.key).body
                headers = scan_headers(data, info.key, parsed[0].base)
                batches = decode_batches(data, headers, name=info.key, partition=partition, incarnation=0)
                offsets = (int(offset) for rows in batches for offset in rows["kafka_offset"].to_numpy())
                found[info.key] = {(partition, offset) for offset in offsets}
    return found


CONTROL = ControlKeys("", "east")


def lists(world: World) -> list[Buried]:
    """The lists of what was deleted."""
    return [
        buried
        for partition in (0, 1)
        for buried in read_buried(ClusterStore(world.raw.store, CONTROL), "orders", partition)
    ]


def records(world: World) -> Pairs:
    return {pair for pairs in stored(world).values() for pair in pairs}


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Three seals in each of two partitions, and a fourth that nothing is erased from."""
    world = World(tmp_path)
    landed(world, 4)
    return world


ERASED = {(0, 0), (0, 1), (0, 7), (0, 9), (1, 6), (1, 7), (1, 8)}


def masked(world: World) -> list[dict[str, Any]]:
    """The rows that are left once the table follows the masks."""
    for partition in (0, 1):
        erase(world, [offset for at, offset in sorted(ERASED) if at == partition], partition)
    take_out(world)
    return world.rows()


def same(world: World, rows: list[dict[str, Any]]) -> None:
    """All readers and proofs agree: the table, a rebuild, another table, the remote tier and the audit."""
    assert audited(world).findings == ()
    write_plan(world.table, plan := plan_rebuild(world.table, None))
    assert run(world.table, plan, in_process).status == "landed"
    world.check()
    assert world.rows() == rows
    for partition in (0, 1):
        read = read_range("orders", partition, storage=world.topics_file)
        wanted = [row["kafka_offset"] for row in rows if row["kafka_partition"] == partition]
        assert read["kafka_offset"].to_pylist() == wanted


def approvals(world: World) -> tuple[str, ...]:
    """The approvals that masks of partition 0 name."""
    store = world.raw.store
    keys = [info.key for info in store.list("_erased/") if "/0/" in info.key and "/buried/" not in info.key]
    found = {approval for key in keys for approval in read_mask(store, key).approvals}
    assert found
    return tuple(sorted(found))


def test_a_pass_leaves_all_other_records_and_none_of_the_masked(world: World) -> None:
    before, rows = records(world), masked(world)
    report = step(world)
    assert (report.searched, report.rewritten, report.deleted, report.records) == (3, 3, 3, len(ERASED))
    assert report.remaining == ()
    assert records(world) == before - ERASED
    assert sorted(key.partition(".")[2] for key in stored(world)) == ["log"] * 5 + ["log-e1"] * 3
    same(world, rows)
    assert step(world, 8) == RawReport()


def test_what_is_deleted_is_recorded_without_a_checksum(world: World) -> None:
    masked(world)
    names = {info.key.rpartition("/")[2]: info for info in world.raw.store.list(world.raw.keys().folder)}
    step(world)
    buried, other = lists(world)
    assert (buried.partition, other.partition) == (0, 1)
    assert buried.gone is not None
    assert [segment.base_offset for segment in buried.segments] == [0, 6]
    for name, gone in (pair for segment in buried.segments for pair in segment.objects.items()):
        assert (gone.size, gone.etag) == (names[name].size, names[name].etag)
        assert not [info for info in world.raw.store.list(world.raw.keys().file(name)) if info.key.endswith(name)]
    body = world.raw.store.get(buried.key(CONTROL)).body
    assert b"crc" not in body


def test_seals_from_which_agents_go_on_wait(world: World) -> None:
    erase(world, [18, 19])
    take_out(world)
    report = step(world)
    [item] = report.remaining
    assert item.key == world.raw.keys().segment(SegmentName(18), "log")
    assert item.approvals == approvals(world)
    assert "agents continue from segment 18" in item.why
    world.raw.segment([simple(24)])
    world.land()
    assert step(world).remaining == ()
    assert not records(world) & {(0, 18), (0, 19)}


@pytest.mark.parametrize("carried_out", [False, True])
def test_a_pass_that_dies_at_any_write_is_completed_by_the_next(
    tmp_path: Path, carried_out: bool, rng: random.Random, full: bool
) -> None:
    died = 0
    for after in range(24) if full else [rng.randrange(22)]:
        world = World(tmp_path / str(after))
        landed(world, 4)
        before, rows = records(world), masked(world)
        try:
            with killed(after, lambda: carried_out):
                step(world)
        except Died:
            died += 1
        assert records(world) >= before - ERASED
        same(world, rows)
        report = step(world, 8)
        assert report.remaining == ()
        assert records(world) == before - ERASED
        assert len(stored(world)) == 8, "each seal once"
        same(world, rows)
    assert died


def back(world: World, old: dict[str, bytes]) -> None:
    """A broker uploads segment 6 again."""
    path = world.raw.keys().manifest(SegmentName(6))
    manifest = SegmentManifest.from_bytes(old[path], path)
    sums = {
        name: total.model_copy(update={"etag": world.raw.store.put(key := world.raw.keys().file(name), old[key])})
        for name, total in manifest.objects.items()
    }
    world.raw.store.put(path, manifest.model_copy(update={"objects": sums}).to_bytes())
    assert records(world) & ERASED


def test_bytes_that_come_back_go_again(world: World) -> None:
    old = {info.key: world.raw.store.get(info.key).body for info in world.raw.store.list(world.raw.keys().folder)}
    rows = masked(world)
    step(world)
    back(world, old)
    same(world, rows)
    assert step(world, 8).deleted == 1
    assert not records(world) & ERASED
    same(world, rows)


def test_a_seal_that_came_back_and_its_rewriting_are_rewritten_under_two_names(world: World) -> None:
    """Both lose the records of a later request, and have the same bytes then."""
    old = {info.key: world.raw.store.get(info.key).body for info in world.raw.store.list(world.raw.keys().folder)}
    before = records(world)
    masked(world)
    step(world)
    back(world, old)
    erase(world, [8])
    take_out(world)
    report = step(world, 8)
    assert (report.rewritten, report.deleted, report.remaining) == (2, 2, ())
    names = {name.rpartition("log")[2] for name in stored(world) if f"{6:020d}" in name and "orders-0" in name}
    assert names == {"-e2", "-e3"}
    assert records(world) == before - ERASED - {(0, 8)}
    same(world, world.rows())


def test_a_second_erasure_rewrites_the_rewritten(world: World) -> None:
    before = records(world)
    masked(world)
    step(world)
    erase(world, [2, 7, 8])
    take_out(world)
    report = step(world, 8)
    assert (report.rewritten, report.records, report.deleted) == (2, 2, 2)
    assert records(world) == before - ERASED - {(0, 2), (0, 8)}
    keys = world.raw.keys()
    second = SegmentManifest.load(world.raw.store, keys.manifest(SegmentName(6, "e2")))
    first_batch = {6: 2, 9: 1}
    assert second.gone == first_batch
    same(world, world.rows())


def test_a_run_that_reads_an_old_seal_is_planned_again(world: World) -> None:
    rows = masked(world)
    write_plan(world.table, plan := plan_rebuild(world.table, None))
    step(world)
    with pytest.raises(ContinuityError, match=r"cannot be made again: .* there is no such object"):
        run(world.table, plan, in_process)
    assert world.rows() == rows
    same(world, rows)


def test_a_plan_finds_a_seal_that_is_rewritten_between_its_listing_and_its_manifest(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = masked(world)
    real = objects.read_segment
    done: list[bool] = []

    def reading(*arguments: Any) -> Any:
        if not done:
            done.append(True)
            step(world)
        return real(*arguments)

    monkeypatch.setattr(objects, "read_segment", reading)
    write_plan(world.table, plan := plan_rebuild(world.table, None))
    monkeypatch.undo()
    assert done
    assert run(world.table, plan, in_process).status == "landed"
    world.check()
    assert world.rows() == rows


def unsound(world: World, monkeypatch: pytest.MonkeyPatch, change: Callable[[bytes, int], tuple[bytes, int]]) -> None:
    real = BatchRewriter.without
    monkeypatch.setattr(BatchRewriter, "without", lambda *arguments: change(*real(*arguments)))
    before = [(info.key, info.etag) for info in world.raw.store.list("")]
    report = step(world)
    assert {item.why for item in report.remaining} == {"would have other records: nothing was written"}
    assert [(info.key, info.etag) for info in world.raw.store.list("")] == before


UNSOUND: dict[str, Callable[[bytes, int], tuple[bytes, int]]] = {
    "a record too many": lambda data, gone: (simple(int.from_bytes(data[:8]), 1, last_offset_delta=2), gone),
    "the wrong count": lambda data, gone: (data, gone + 1),
    "other values": lambda data, gone: (
        batch(int.from_bytes(data[:8]), [Record(2, T0, None, b"x")], last_offset_delta=2),
        gone,
    ),
}


@pytest.mark.parametrize("change", UNSOUND.values(), ids=UNSOUND.keys())
def test_a_rewriting_with_other_records_is_not_stored(
    world: World, monkeypatch: pytest.MonkeyPatch, change: Callable[[bytes, int], tuple[bytes, int]]
) -> None:
    masked(world)
    unsound(world, monkeypatch, change)


def test_bytes_that_the_store_keeps_otherwise_are_noticed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    masked(world)
    before = records(world)
    monkeypatch.setattr(worker, "read_checksum", lambda *_: 0)
    with pytest.raises(FormatError, match="has other bytes than were sent"):
        step(world)
    assert records(world) >= before


@pytest.mark.parametrize("extension", ["log", "index", "manifest.json"])
def test_the_old_seal_stays_while_the_new_one_is_not_whole(world: World, extension: str) -> None:
    masked(world)
    before = stored(world)

    @Acting
    def losing(*arguments: Any) -> list[worker.SealOutcome]:
        outcomes = in_process.on_each(*arguments)
        for outcome in outcomes:
            assert outcome.new is not None
            world.raw.store.delete(outcome.task.keys.segment(outcome.new.name, extension))
        return outcomes

    report = erase_seals(world.table, 7, losing)
    assert report.deleted == 0
    assert before.items() <= stored(world).items()
    assert len([item for item in report.remaining if "which replaces it" in item.why]) == 3


def test_what_is_not_rewritten_is_named(tmp_path: Path) -> None:
    world = World(tmp_path)
    keys = world.raw.keys()
    world.raw.partition().lineage = ((3, 3),)
    world.raw.segment([legacy(1, 0, 3)])
    damaged = batch(3, [Record(0), Record(1), Record(2)])
    world.raw.segment([damaged, simple(6)])
    world.raw.segment([simple(9)])
    world.raw.segment(
        [simple(12), b"?" * 80],
        base=12,
        damage=SegmentDamage(position=len(simple(12)), offset=15, rule="the checksum"),
    )
    world.raw.segment([simple(12), simple(15)], base=12)
    world.raw.segment([simple(18)])
    world.land()
    world.raw.store.put(keys.segment(SegmentName(9, "7"), "log"), simple(9))
    erase(world, [1], epoch=-1)
    erase(world, [4, 10])
    take_out(world)
    spoilt = reseal(damaged[:-4])
    world.raw.replace_log(keys.segment(SegmentName(3), "log"), spoilt + simple(6))
    report = step(world)
    assert {item.key.rpartition("/")[2]: item.why for item in report.remaining}.keys() == {
        f"{0:020d}.log",
        f"{3:020d}.log",
        f"{9:020d}.log-7",
        next(info.key.rpartition("/")[2] for info in world.raw.store.list(keys.folder) if ".corrupt" in info.key),
    }
    whys = "\n".join(item.why for item in report.remaining)
    for why in ("message format v1", "manifest", "is damaged from offset 15", "has no manifest"):
        assert why in whys
    assert (report.rewritten, report.records) == (1, 1)


def test_seals_of_a_dead_branch_are_named_and_lose_what_masks_name_of_them(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.raw.segment([simple(0), simple(3)])
    world.raw.segment([simple(6)])
    world.land()
    branch(world, (3, 0), (5, 4))
    world.raw.segment([simple(4, leader_epoch=5), simple(7, leader_epoch=5)], base=4)
    world.raw.segment([simple(10, leader_epoch=5)])
    world.land()
    erase(world, [1])
    erase(world, [5], epoch=5)
    take_out(world)
    report = step(world)
    assert (report.rewritten, report.records) == (2, 2)
    assert sorted((item.key.rpartition("/")[2], item.why) for item in report.remaining) == [
        (f"{0:020d}.log-e1", "is of a dead branch from offset 4 on, which is not searched"),
        (f"{6:020d}.log", "is of a dead branch from offset 6 on, which is not searched"),
    ]
    assert step(world, 8).remaining == report.remaining
    assert sorted(stored(world)[world.raw.keys().segment(SegmentName(0, "e1"), "log")]) == [
        (0, offset) for offset in (0, 2, 3, 4, 5)
    ]


def test_packs_that_hold_masked_records_are_named(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.raw.segment([simple(0)])
    agent = Packing(world.raw)
    agent.lead()
    key = agent.pack(Range([simple(3), simple(6)]))
    agent.pack(Range([simple(9)]))
    world.raw.segment([simple(3), simple(6)])
    world.raw.segment([simple(9)])
    agent.sealed()
    world.land()
    erase(world, [4])
    take_out(world)
    report = step(world)
    assert report.rewritten == 1
    [item] = report.remaining
    assert (item.key, "retention of packs" in item.why, item.approvals) == (key, True, approvals(world))
    world.raw.store.delete(item.key)
    assert step(world, 8) == RawReport()


def test_what_a_store_does_not_tell_is_named(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    masked(world)
    monkeypatch.setattr(seals, "versioned", lambda _: None)
    for attempt in (7, 8):
        report = step(world, attempt)
        assert [item.key for item in report.remaining] == [record.key(CONTROL) for record in lists(world)]
        assert {"do not tell what they keep" in item.why for item in report.remaining} == {True}
    for record in lists(world):
        world.raw.store.delete(record.key(CONTROL))
    assert step(world, 9) == RawReport()


def test_what_a_dead_pass_has_left_goes_when_it_is_old(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    masked(world)
    with killed(1), pytest.raises(Died):
        step(world)
    [orphan] = [key for key in stored(world) if key.endswith("-e1")]
    erase(world, [2])  # the same seal, and other bytes
    take_out(world)
    report = step(world, 8)
    assert [item.key for item in report.remaining] == [orphan]
    assert "a pass that died left it" in report.remaining[0].why
    real = LocalStore.now
    monkeypatch.setattr(LocalStore, "now", lambda self: real(self) + timedelta(days=3))
    assert step(world, 9).remaining == ()
    assert orphan not in stored(world)
    assert step(world, 10) == RawReport()


def test_of_two_seals_of_the_same_offsets_the_rewritten_one_is_read(world: World) -> None:
    masked(world)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalStore, "delete", lambda *_, **__: (_ for _ in ()).throw(Died))
        with pytest.raises(Died):
            step(world)
    plan = plan_rebuild(world.table, None)
    keys = {part.key.rpartition("/")[2] for task in plan.tasks for part in task.ranges if task.partition == 0}
    assert keys == {f"{0:020d}.log-e1", f"{6:020d}.log-e1", f"{12:020d}.log", f"{18:020d}.log"}
