"""Packs go when seals are proved to hold all of them, and not before the runs that may read them are over."""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest

from tests.spark.world import World, in_process
from tests.support.erased import erase, rewrite_seal
from tests.support.live_end import Packed, Packer
from tests.support.raw_builder import EPOCH
from tests.tidemark.kafka_log.build import simple
from tidemark.formats.keys import SegmentName
from tidemark.formats.raw.manifest import PackedPart
from tidemark.formats.table.plan import RUN_LIMIT
from tidemark.intervals import Intervals
from tidemark.planning.maintenance.pack_proof import SETTLED
from tidemark.raw import tombstones
from tidemark.store import LocalStore
from tidemark_spark.jobs.running import run_job
from tidemark_spark.retention import packs
from tidemark_spark.retention.packs import PacksReport, retain_packs
from tidemark_spark.run.driver import run

HOUR = timedelta(hours=1)
WEEK = timedelta(days=7)
OLD = SETTLED + HOUR


class _Killed(BaseException):
    """The process ends."""


@pytest.fixture
def packer(world: World) -> Packer:
    """Broker 1's."""
    return Packer(world.raw)


def age(world: World, by: timedelta, *keys: str) -> None:
    """All packs and manifests, or ``keys``, were stored that much earlier; a log's ETag would change with its time."""
    root = Path(world.raw.store.url.removeprefix("file://"))
    for path in [root / key for key in keys] or [*root.rglob("*.pack"), *root.rglob("*.manifest.json")]:
        status = path.stat()
        at = status.st_mtime - by.total_seconds()
        os.utime(path, (at, at))


def reported(world: World, *, dry_run: bool = False) -> PacksReport:
    """What a run did, of the only place that there is."""
    [report] = retain_packs(world.table.deployment, "east", dry_run=dry_run)
    return report


def left(world: World) -> set[str]:
    """The packs that are there."""
    return {info.key for info in world.raw.store.list("_tails/")}


def packed_twice(world: World, packer: Packer) -> list[Packed]:
    """Two packs, of which nothing is sealed."""
    found = [packer.pack([simple(0)]), packer.pack([simple(3)])]
    world.raw.publish()
    return found


def test_packs_go_when_seals_list_all_their_ranges(world: World, packer: Packer) -> None:
    one, two = packed_twice(world, packer)
    world.raw.segment([simple(0)], parts=[one.part])
    world.raw.publish()
    age(world, OLD)
    dry = reported(world, dry_run=True)
    assert (dry.packs, dry.removed, dry.needed, left(world)) == (2, 1, 1, {one.key, two.key})
    report = reported(world)
    assert (report.packs, report.young, report.removed, report.needed) == (2, 0, 1, 1)
    assert report.removed_bytes > 0
    assert [(why.key, why.why) for why in report.examples] == [(two.key, "orders-0 from 3 to 6: no seal lists it")]
    assert left(world) == {two.key}
    world.raw.segment([simple(3)], parts=[two.part])
    age(world, OLD)
    world.raw.publish()
    assert reported(world).removed == 1
    assert left(world) == set()


def test_a_pack_stays_while_offset_wm_ends_below_it(world: World, packer: Packer) -> None:
    """It is sealed above a hole, and only its line leads to the pack before it."""
    one, two = packed_twice(world, packer)
    world.raw.segment([simple(3)], base=3, parts=[two.part])
    world.raw.partition().end = 0
    world.raw.publish()
    age(world, 4 * WEEK)
    assert "orders-0 from 3 to 6: offset.wm ends at 0" in {why.why[:41] for why in reported(world).examples}
    assert left(world) == {one.key, two.key}
    world.raw.segment([simple(0)], base=0, parts=[one.part])
    world.raw.partition().end = 6
    world.raw.publish()
    age(world, 4 * WEEK)
    assert reported(world).removed == 2


def test_what_no_seal_holds_stays_however_old_it_is(world: World, packer: Packer) -> None:
    """The watermark is above it: its seal is of another branch, and this may be the last copy."""
    one, two = packed_twice(world, packer)
    known = world.raw.partition()
    known.lineage, known.leader_epoch = ((EPOCH, 0), (5, 3)), 5
    world.raw.segment([simple(0), simple(3, leader_epoch=5), simple(6, leader_epoch=5)], base=0, parts=[one.part])
    world.raw.publish()
    age(world, 4 * WEEK)
    report = reported(world)
    assert report.removed == 1
    assert [why.why for why in report.examples] == ["orders-0 from 3 to 6: no seal holds the batch at offset 3"]
    assert left(world) == {two.key}


def test_a_seal_of_a_dead_branch_is_a_proof(world: World, packer: Packer) -> None:
    _, two = packed_twice(world, packer)
    world.raw.segment([simple(0)])
    world.raw.segment([simple(3)], parts=[two.part])
    known = world.raw.partition()
    known.lineage, known.leader_epoch = ((EPOCH, 0), (5, 3)), 5
    world.raw.segment([simple(3, leader_epoch=5)], base=3)
    world.raw.publish()
    age(world, OLD)
    reported(world)
    assert two.key not in left(world)


@pytest.mark.parametrize(
    "part",
    [
        {"first": 1},
        {"next": 4},
        {"crc32c": "00000000"},
    ],
)
def test_a_part_proves_only_the_very_same_range(world: World, packer: Packer, part: dict[str, object]) -> None:
    packed = packer.pack([simple(0, 9)])
    other = PackedPart.model_validate({**packed.part.model_dump(), **part})
    world.raw.segment([simple(0, 9)], parts=[other])
    world.raw.publish()
    age(world, OLD)
    assert reported(world).removed == 0


def test_runs_that_may_read_a_pack_are_over_when_it_goes(world: World, packer: Packer) -> None:
    packed = packer.pack([simple(0)])
    world.raw.publish()
    age(world, WEEK - HOUR)
    plan = world.plan()
    world.raw.segment([simple(0)], parts=[packed.part])
    world.raw.publish()
    report = reported(world)
    assert (report.removed, report.needed) == (0, 1)
    assert "was sealed less than" in report.examples[0].why
    assert run(world.table, plan, in_process).rows == 3
    assert SETTLED > RUN_LIMIT
    young = packer.pack([simple(3)])
    world.raw.segment([simple(3)], parts=[young.part])
    age(world, SETTLED - HOUR, young.key)
    assert reported(world).young == 1


def test_bytes_prove_what_no_part_does_after_a_week(world: World, packer: Packer) -> None:
    one = packer.pack([simple(0), simple(3), simple(6)])
    world.raw.segment([simple(0)])
    world.raw.segment([simple(3), simple(6), simple(9)])
    world.raw.publish()
    age(world, WEEK - HOUR)
    assert [why.why for why in reported(world).examples] == ["orders-0 from 0 to 9: no seal lists it"]
    age(world, 2 * HOUR)
    assert reported(world).removed == 1
    assert one.key not in left(world)


@pytest.mark.parametrize("other", [simple(3, codec="gzip"), simple(3, leader_epoch=4), simple(3, producer_id=5)])
def test_a_batch_with_other_bytes_is_another(world: World, packer: Packer, other: bytes) -> None:
    packer.pack([simple(0), simple(3)])
    world.raw.segment([simple(0), other])
    world.raw.publish()
    age(world, 2 * WEEK)
    assert [why.why for why in reported(world).examples] == [lacks(3)]


def lacks(offset: int, first: int = 0, end: int = 6) -> str:
    """What is said of a range of which the seal at 0 claims the offsets, and lacks a batch."""
    seal = "00000000000000000000.log has that offset"
    cure = "`tidemark-agent reupload orders 0 --from-packs` adds what it lacks"
    return f"orders-0 from {first} to {end}: no seal holds the batch at offset {offset}, although {seal}: {cure}"


@pytest.mark.parametrize(
    "left_over", [[], [simple(0)], [simple(0), simple(6)]], ids=["nothing", "the start", "both ends"]
)
def test_a_seal_that_lacks_what_a_pack_has_never_lets_the_pack_go(
    world: World, packer: Packer, left_over: list[bytes]
) -> None:
    """Compaction had emptied the log before it was sealed: the seal claims offsets of which the pack has the rows."""
    packed = packer.pack([simple(0), simple(3), simple(6)], compacted=True)
    world.raw.segment(left_over, next_offset=9, compacted=True)
    world.raw.segment([simple(9)])
    world.raw.publish()
    for _ in range(5):
        age(world, WEEK)
        report = reported(world)
        assert (report.removed, left(world)) == (0, {packed.key})
        assert [why.why for why in report.examples] == [lacks(3 if left_over else 0, 0, 9)]


def test_a_seal_whose_log_is_not_the_one_that_it_describes_proves_nothing(world: World, packer: Packer) -> None:
    packed = packer.pack([simple(0)])
    key = world.raw.segment([simple(0)], parts=[packed.part])
    world.raw.publish()
    world.raw.store.put(key, simple(0))
    age(world, OLD)
    assert reported(world).removed == 0
    world.raw.store.delete(key)
    assert reported(world).removed == 0


def test_a_pack_stays_for_one_range_and_tells_which(world: World, packer: Packer) -> None:
    ranges = [([simple(0)], number, None, (), False, None, None) for number in range(3)]
    packed = packer.pack_all(ranges)
    for number in (0, 2):
        world.raw.segment([simple(0)], number, parts=[packed[number].part])
    age(world, OLD)
    world.raw.publish()
    assert [why.why for why in reported(world).examples] == ["orders-1 from 0 to 3: no seal lists it"]
    world.raw.segment([simple(0)], 1, parts=[packed[1].part])
    age(world, OLD)
    world.raw.publish()
    assert reported(world).removed == 1


def test_what_is_damaged_stays_and_is_named(world: World, packer: Packer) -> None:
    one, two = packed_twice(world, packer)
    world.raw.store.put(one.key, world.raw.store.get(one.key).body[:-1])
    world.raw.segment([simple(0)])
    world.raw.segment([simple(3)], parts=[two.part])
    world.raw.store.put(world.raw.keys().manifest(SegmentName(3)), b"{}")
    world.raw.publish()
    age(world, OLD)
    whys = {why.key: why.why for why in reported(world).examples}
    assert whys[one.key].startswith(f"{one.key}: ")
    assert "3.manifest.json" in whys[two.key]


def test_a_topic_that_nobody_knows_keeps_its_packs(world: World, packer: Packer) -> None:
    packer.pack([simple(0)])
    age(world, 2 * WEEK)
    assert "no agent knows the topic id" in reported(world).examples[0].why


def test_what_retention_of_raw_has_removed_needs_no_pack(
    world: World, packer: Packer, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed_twice(world, packer)
    world.raw.partition().end = 3
    world.raw.publish()
    age(world, OLD)
    monkeypatch.setattr(tombstones, "removed", lambda *_: Intervals([(0, 3)]))
    assert reported(world).removed == 1


def test_a_run_that_is_killed_is_finished_by_the_next(
    world: World, packer: Packer, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = [packer.pack([simple(3 * number)]) for number in range(5)]
    for number, one in enumerate(packed):
        world.raw.segment([simple(3 * number)], parts=[one.part])
    world.raw.publish()
    age(world, OLD)
    monkeypatch.setattr(packs, "CHUNK", 2)
    real = LocalStore.delete
    deaths = iter((True, False, True, False, False, True))

    def dies(store: LocalStore, key: str, **of: object) -> None:
        if next(deaths, False):
            raise _Killed
        real(store, key)

    monkeypatch.setattr(LocalStore, "delete", dies)
    there = []
    for _ in range(4):
        with suppress(_Killed):
            reported(world)
        there.append(len(left(world)))
    assert there == [5, 4, 2, 0]


def test_the_job_reports_each_place(world: World, packer: Packer, capsys: pytest.CaptureFixture[str]) -> None:
    packed = packer.pack([simple(0)])
    world.raw.segment([simple(0)], parts=[packed.part])
    world.raw.publish()
    age(world, OLD)
    assert run_job("retain_packs", ["--topics", str(world.topics_file), "--dry-run"]) == 0
    assert "east: 1 packs in file://" in capsys.readouterr().out
    assert run_job("retain_packs", ["--topics", str(world.topics_file), "--json"]) == 0
    told = PacksReport.from_bytes(capsys.readouterr().out.encode(), "the report")
    assert (told.removed, left(world)) == (1, set())


@pytest.mark.parametrize("listed", [True, False])
def test_packs_with_erased_records_go_like_others(world: World, packer: Packer, listed: bool) -> None:
    """By the part that the seal has lost records of, or batch by batch, with the counts of the manifest."""
    packed = packer.pack([simple(0), simple(3)])
    key = world.raw.segment([simple(0), simple(3)], parts=[packed.part] if listed else [])
    world.raw.publish()
    erase(world.raw, [1, 3, 4, 5])
    new = rewrite_seal(world.raw, key)
    path = world.raw.keys().manifest(new.name)
    age(world, 2 * WEEK)
    age(world, 2 * WEEK, path)
    if not listed:
        assert new.erased is not None
        for batches in ([(0, 1), (3, 2)], [(0, 1)], [(0, 2), (3, 3)]):
            other = new.erased.model_copy(update={"batches": tuple(batches)})
            world.raw.store.put(path, new.model_copy(update={"erased": other}).to_bytes())
            age(world, 2 * WEEK, path)
            assert reported(world).needed == 1, "another record is missing"
        world.raw.store.put(path, new.to_bytes())
        age(world, 2 * WEEK, path)
    assert reported(world).removed == 1
