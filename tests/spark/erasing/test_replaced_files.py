"""Files and sums that an erasure has replaced go after a grace, and until then the vacuum names them."""

from __future__ import annotations

import random
from datetime import timedelta
from pathlib import Path

import pytest

from tests.spark.audit.test_audit import audited
from tests.spark.convert.test_parsers import function_parser
from tests.spark.erasing.masked import erase, killed, take_out
from tests.spark.rebuild.rebuilds import changed
from tests.spark.retention.test_table import KEPT, LATER, drop, made, records
from tests.spark.test_vacuum import OLD, OLDER, Died, age_all, as_of, die, files
from tests.spark.world import World, in_process
from tests.tidemark.kafka_log.build import T0, Record, batch, simple
from tidemark.errors import NotFound
from tidemark.formats.table.statuses import MirrorState, MirrorStatus
from tidemark.planning import plan_compaction, plan_rebuild, write_plan
from tidemark.planning.maintenance.vacuum import RUN_OVER
from tidemark.table.delta_table import open_topic_table
from tidemark.table.evidence import parse_evidence, read_evidence
from tidemark.topics import load_topics
from tidemark_spark.erasing.seals import erase_seals
from tidemark_spark.rebuild.affected_dates import moves
from tidemark_spark.run.driver import run
from tidemark_spark.run.vacuum import vacuum

DAY = timedelta(days=1)
AT_ONCE = "retention: {erased: 0s}"
PAST_GOES = "retention: {erased: 0s, table: 30d, apply: true}"


def landed(world: World) -> None:
    """Three runs of four offsets on two dates; the third offset of each is refused."""
    for number in range(3):
        records = [Record(0, T0, b"a"), Record(1, T0 + 86_400_000, b"b"), Record(2, -1, b"c"), Record(3, T0, b"d")]
        world.raw.segment([batch(4 * number, records)])
        world.land()


def telling(world: World, offsets: list[int]) -> list[tuple[str, int, str]]:
    """Rows in any object of evidence with a sum around one of ``offsets`` that do not hold: (key, first, class)."""
    held = {(row["first"], row["file"]) for row in world.holding() if row["class"] != "expired"}
    return [
        (info.key, row["first"], row["class"])
        for info in world.table.store.list(world.table.keys.evidence)
        for row in parse_evidence(world.table.store.get(info.key).body, info.key).to_pylist()
        if row["hash128"] is not None
        and any(row["first"] <= offset < row["next"] for offset in offsets)
        and (row["class"] == "superseded" or (row["first"], row["file"]) not in held)
    ]


def settled(world: World, gone: set[str], offsets: list[int]) -> None:
    """Nothing of the erased rows is left, and all else is as it was."""
    assert not files(world) & gone
    assert telling(world, offsets) == []
    world.check()
    assert audited(world).findings == ()
    assert vacuum(world.table).remaining == ()


def test_replaced_files_go_after_the_grace_and_are_named_until_then(tmp_path: Path) -> None:
    world = World(tmp_path)
    landed(world)
    before = files(world)
    erase(world, [1, 2])
    take_out(world)
    replaced = {key for key in before if any(name in key for name in ("_0_3_", "_1_1_", "_2_2_"))}
    assert len(replaced) == 3
    with as_of(world, DAY - timedelta(minutes=5)):
        report = vacuum(world.table)
    assert (report.removed, {item.key for item in report.remaining}) == ((), replaced)
    for item in report.remaining:
        assert item.until is not None
        assert DAY - timedelta(minutes=5) < item.until - world.table.store.now() <= DAY
    assert telling(world, [1]), "while a file is stored, a program may restore it"
    with as_of(world, DAY):
        report = vacuum(world.table)
        assert {unused.key for unused in report.removed} == replaced
        assert telling(world, [1, 2]), "for runs that began before"
        assert {item.key for item in report.remaining} >= {key for key, *_ in telling(world, [1, 2])}
    assert files(world) >= before - replaced
    with as_of(world, 2 * DAY + timedelta(minutes=1)):
        vacuum(world.table)
        settled(world, replaced, [1, 2])


def test_files_that_others_replaced_go_as_well_and_those_without_erased_rows_stay(tmp_path: Path) -> None:
    world = World(tmp_path, AT_ONCE)
    landed(world)
    first = files(world)
    write_plan(world.table, plan := plan_compaction(world.table, files=2))
    assert run(world.table, plan, in_process).status == "landed"
    erase(world, [4])
    take_out(world)
    merged = files(world) - first
    with_row = {key for key in files(world) if "_4_7_" in key} | {key for key in merged if "_0_11_" in key}
    with_row -= {f"{world.table.keys.root}/{file.path}" for file in world.seen()._live}
    report = vacuum(world.table)
    assert {unused.key for unused in report.removed} == with_row
    assert len(with_row) == 2
    settled(world, with_row, [4])
    write_plan(world.table, plan := plan_rebuild(world.table, None))
    assert run(world.table, plan, in_process).status == "landed"
    report = vacuum(world.table)
    assert (report.removed, report.remaining) == ((), ()), "what the rebuild replaced was clean"


def test_what_a_dead_run_left_is_named_until_it_goes(tmp_path: Path) -> None:
    world = World(tmp_path, AT_ONCE)
    landed(world)
    before = files(world)
    write_plan(world.table, plan := plan_rebuild(world.table, None))
    die(world, plan)
    left = files(world) - before
    erase(world, [0])
    take_out(world)
    remaining = vacuum(world.table).remaining
    assert {(item.key, item.until) for item in remaining} == {(key, plan.created_at + RUN_OVER) for key in left}
    age_all(world, OLD)
    assert left <= {unused.key for unused in vacuum(world.table).removed}
    settled(world, left, [0])


def test_a_file_that_nobody_tells_of_is_named(tmp_path: Path) -> None:
    world = World(tmp_path, AT_ONCE)
    landed(world)
    erase(world, [0])
    take_out(world)
    stray = f"{world.table.keys.root}/dt=2026-02-02/0_0_0_2_0123456789ab.parquet"
    world.table.store.put(stray, b"x")
    [item] = vacuum(world.table).remaining
    assert (item.key, item.until) == (stray, None)


@pytest.fixture
def listed(tmp_path: Path) -> World:
    """A table in a catalog, of which an offset was just erased."""
    world = World(tmp_path, AT_ONCE)
    catalog = "catalogs: [{name: ice, kind: sql, uri: 'sqlite://', namespace: db}]\n"
    world.topics_file.write_text(catalog + world.topics_file.read_text())
    world.table = open_topic_table(deployment := load_topics(world.topics_file), deployment.topic("orders"))
    landed(world)
    erase(world, [0])
    take_out(world)
    return world


def tell(world: World, **state: object) -> None:
    """The last run of the mirror wrote this ``state``."""
    told = MirrorState.model_validate({"topic": "orders", "catalog": "ice", "identifier": "db.orders", **state})
    status = MirrorStatus(cluster="east", at=world.table.store.now(), tables=(told,))
    world.table.store.put(world.table.keys.deployment.mirrors, status.to_bytes())


def test_no_file_goes_early_that_a_catalog_may_list(listed: World) -> None:
    n = listed.ledger.n
    states: list[tuple[dict[str, object] | None, str]] = [
        (None, "may list it"),
        ({}, "may list it"),
        ({"oldest_ledger": 0}, "until mirror.py has expired them"),
        ({"oldest_ledger": n - 1}, "until mirror.py has expired them"),
        ({"oldest_ledger": n - 1, "refs": {"branch mine": n, "tag audit": n - 1}}, "tag audit of db.orders"),
    ]
    for state, why in states:
        if state is not None:
            tell(listed, **state)
        report = vacuum(listed.table)
        [item] = report.remaining
        assert why in item.why
        assert report.removed == ()
    tell(listed, oldest_ledger=n, refs={"branch mine": n})
    report = vacuum(listed.table)
    assert len(report.removed) == 1
    assert report.remaining == ()


def test_a_catalog_keeps_no_file_longer_than_the_ordinary_time(listed: World) -> None:
    age_all(listed, OLDER)
    assert [unused.why for unused in vacuum(listed.table).removed] == ["replaced"]


@pytest.mark.parametrize("also", [False, True], ids=["before", "after"])
def test_a_vacuum_that_dies_at_any_write_is_completed_by_the_next(
    tmp_path: Path, also: bool, rng: random.Random, full: bool
) -> None:
    for writes in range(40) if full else sorted(rng.sample(range(12), 3)):
        world = World(tmp_path / str(writes), AT_ONCE)
        landed(world)
        rows = world.rows()
        before = files(world)
        erase(world, [0, 2])
        take_out(world)
        replaced = {key for key in before if "_0_3_" in key or "_2_2_" in key}
        try:
            with killed(writes, lambda: also):
                vacuum(world.table)
        except Died:
            world.check()
            vacuum(world.table)
            settled(world, replaced, [0, 2])
            assert world.rows() == [row for row in rows if row["kafka_offset"] != 0]
        else:
            assert writes > 5
            return
    assert not full, "the vacuum never ends"


def test_an_attempt_that_is_run_again_has_landed_although_its_result_and_evidence_are_gone(tmp_path: Path) -> None:
    world = World(tmp_path, AT_ONCE)
    landed(world)
    world.raw.segment([simple(12)])
    world.raw.publish()
    plan = world.plan()
    before = run(world.table, plan, in_process)
    erase(world, [12])
    take_out(world)
    vacuum(world.table)
    vacuum(world.table)
    with pytest.raises(NotFound):
        read_evidence(world.table, plan.attempt)
    world.table.store.delete(world.table.keys.result(plan.attempt))
    again = run(world.table, plan, in_process)
    assert (again.status, again.rows, again.ledger_n) == ("landed", before.rows, before.ledger_n)
    world.check()


def test_rows_that_retention_removed_before_are_erased_as_well(tmp_path: Path) -> None:
    world = made(tmp_path, PAST_GOES, function_parser("sizes"))
    world.raw.segment([simple(6)])
    world.land()
    drop(world)
    assert world.classes() == {"landed": 2, "expired": 7}
    erase(world, [0, 4, 5])
    erase(world, [3], epoch=2)
    take_out(world)
    assert erase_seals(world.table, 1, in_process).records == 3
    remaining = vacuum(world.table).remaining
    assert {item.why for item in remaining} == {"has rows of a past date or a dead branch, which are not searched"}
    assert {item.key for item in remaining} == {key for key in files(world) if "_6_8_" in key or "_1_1_2_" in key}
    assert world.classes() == {"landed": 2, "expired": 4, "erased": 3}
    erased = [row for row in world.holding() if row["class"] == "erased"]
    assert sorted((row["first"], row["next"], row["dt"], row["hash128"]) for row in erased) == [
        (0, 1, None, None),
        (4, 5, None, None),
        (5, 6, None, None),
    ]
    assert telling(world, [0, 4, 5]) == []
    world.check()
    assert audited(world).findings == ()
    ledger = world.ledger
    vacuum(world.table)
    assert world.ledger == ledger, "nothing is left to forget"
    age_all(world, OLDER)
    assert vacuum(world.table).remaining == ()


def test_a_past_row_that_may_be_of_either_date_keeps_its_class_and_both_lose_their_sums(tmp_path: Path) -> None:
    world = World(tmp_path, PAST_GOES)
    world.raw.segment([batch(0, records(0, 3, 0, 3))])
    world.land()
    drop(world, LATER)
    erase(world, [2])
    take_out(world)
    assert len(telling(world, [2])) > 1
    vacuum(world.table)
    assert telling(world, [2]) == []
    assert world.classes() == {"expired": 4}
    assert audited(world).findings == ()


def test_a_rebuild_does_not_extend_to_a_past_date_whose_sum_is_not_known(tmp_path: Path) -> None:
    world = World(tmp_path, PAST_GOES)
    world.raw.segment([batch(0, [*records(0, 0), Record(2, T0 + 81 * 43_200_000)])])
    world.raw.segment([simple(3)])
    world.land()
    drop(world)
    erase(world, [0])
    take_out(world)
    erase_seals(world.table, 1, in_process)
    vacuum(world.table)
    assert world.classes() == {"landed": 1, "expired": 4, "erased": 1}
    other = changed(world, PAST_GOES, "time_zone: Pacific/Kiritimati")
    assert moves(other.table, [KEPT], in_process, extend=True).dates == (KEPT, "2026-03-15")
