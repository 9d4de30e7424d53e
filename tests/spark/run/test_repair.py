"""What people do to a table with delta-rs: each writer refuses it, and a repair makes the table right from raw."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.spark.audit.test_audit import audited
from tests.spark.compaction.test_compaction import merge, piecemeal
from tests.spark.convert.test_parsers import function_parser
from tests.spark.retention.test_table import OPTED_IN, PAST, drop, made
from tests.spark.run.test_runs import DAY, spread
from tests.spark.run.test_truncation import OPEN_AT_5, branch, epochs, held_by_another
from tests.spark.world import World, in_process
from tests.support.jars import class_path
from tests.support.paths import ROOT
from tests.support.raw_builder import EPOCH
from tests.support.spark import delta_conf, spark_submit
from tests.tidemark.kafka_log.build import T0, Record, batch, marker, reseal, simple
from tidemark.errors import ContinuityError, PublishError, TableTampered
from tidemark.formats.keys import SegmentName
from tidemark.formats.table.plan import RunResult
from tidemark.planning import plan_compaction, plan_ingest, plan_rebuild, plan_repair, plan_replay, write_plan
from tidemark.planning.maintenance.retention import plan_retain
from tidemark.table.delta_table import LiveFiles, live_files
from tidemark.table.tampering import check_untampered
from tidemark_spark.jobs.running import run_job
from tidemark_spark.retention.raw import retain_raw
from tidemark_spark.run.driver import run
from tidemark_spark.run.vacuum import vacuum

DT = "2026-02-02"


def table_of(world: World) -> DeltaTable:
    return DeltaTable(world.table.url)


def delete(world: World) -> None:
    table_of(world).delete(f"dt = '{DT}'")


def delete_rows(world: World) -> None:
    table_of(world).delete("kafka_offset = 3")


def delete_all(world: World) -> None:
    table_of(world).delete()


def update(world: World) -> None:
    table_of(world).update(updates={"kafka_value": "X'00'"}, predicate="kafka_offset = 0")


def optimize(world: World) -> None:
    table_of(world).optimize.compact()


def z_order(world: World) -> None:
    table_of(world).optimize.z_order(["kafka_offset"])


def overwrite(world: World) -> None:
    rows = pa.table(table_of(world).to_pyarrow_table())
    write_deltalake(world.table.url, rows, mode="overwrite", partition_by=["dt"])


def overwrite_a_date(world: World) -> None:
    rows = table_of(world).to_pyarrow_table(filters=pc.field("dt") == date.fromisoformat(DT))
    write_deltalake(world.table.url, rows, mode="overwrite", predicate=f"dt = '{DT}'")


def append(world: World) -> None:
    write_deltalake(world.table.url, table_of(world).to_pyarrow_table(), mode="append")


def restore(world: World) -> None:
    table_of(world).restore(2)


def remove_a_file(world: World) -> None:
    world.table.store.delete(f"{world.table.keys.root}/{live_files(table_of(world))[0].path}")


CHANGES: dict[str, Callable[[World], None]] = {
    "DELETE of a date": delete,
    "DELETE of rows": delete_rows,
    "DELETE of all": delete_all,
    "UPDATE": update,
    "OPTIMIZE": optimize,
    "Z-ORDER": z_order,
    "overwrite": overwrite,
    "overwrite of a date": overwrite_a_date,
    "append": append,
    "RESTORE": restore,
}


def vacuum_by_hand(world: World) -> None:
    table_of(world).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)


@pytest.fixture
def world(tmp_path: Path) -> World:
    """See :func:`deployed`."""
    return deployed(tmp_path)


def deployed(root: Path) -> World:
    """Three dates, two partitions, aborted and refused records, in several commits."""
    world = World(root)
    spread(world)
    world.land()
    for _ in range(2):
        for partition in range(2):
            base = world.raw.partition(partition).end
            world.raw.segment([simple(base), simple(base + 3)], partition)
        world.land()
    return world


def repair(world: World) -> RunResult:
    plan = plan_repair(world.table)
    write_plan(world.table, plan)
    result = run(world.table, plan, in_process)
    world.check()
    return result


def sound(world: World) -> bool:
    """Whether an audit against raw finds nothing."""
    return not audited(world).findings


@pytest.mark.parametrize("name", CHANGES)
def test_what_a_person_changed_is_refused_and_made_right_from_raw(world: World, name: str) -> None:
    check_made_right(world, CHANGES[name])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CHANGES)
def test_what_a_person_changed_and_vacuumed_is_made_right_too(world: World, name: str) -> None:
    def change(world: World) -> None:
        CHANGES[name](world)
        vacuum_by_hand(world)

    check_made_right(world, change)


def check_made_right(world: World, change: Callable[[World], None]) -> None:
    """Runs refuse what ``change`` leaves; a repair makes the table as it was, and runs go on."""
    before, ledger = world.rows(), world.ledger
    change(world)
    world.raw.segment([simple(world.raw.partition(0).end)])
    world.raw.publish()
    version = table_of(world).version()
    with pytest.raises(TableTampered, match=r"changed the table: .*`repair.py`"):
        plan_ingest(world.table)
    assert table_of(world).version() == version
    assert repair(world).status == "landed"
    assert world.rows() == before
    after = world.ledger
    assert (after.rows, after.dates, after.partitions) == (ledger.rows, ledger.dates, ledger.partitions)
    assert sound(world)
    assert plan_repair(world.table).empty
    assert world.land().rows == 3
    assert sound(world)


def test_a_file_that_is_gone_is_made_again(world: World) -> None:
    before = world.rows()
    remove_a_file(world)
    assert repair(world).status == "landed"
    assert world.rows() == before
    assert sound(world)


def test_only_what_is_wrong_is_made_again(tmp_path: Path) -> None:
    """Files that share no range of bytes with those that are gone are not written again."""
    world = World(tmp_path)
    for day in range(3):
        world.raw.segment([batch(3 * day, [Record(i, T0 + day * DAY) for i in range(3)])])
        world.land()
    kept = {one.path for one in live_files(table_of(world)) if one.dt != DT}
    delete(world)
    assert plan_repair(world.table).removes == ()
    repair(world)
    there = live_files(table_of(world))
    assert kept < {one.path for one in there}
    assert len(there) == 3


@pytest.fixture(scope="module", params=["OPTIMIZE", "DELETE of a date"])
def changed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, World]:
    """A table that somebody has changed, for writers that leave it as it is; and what was done."""
    world = deployed(tmp_path_factory.mktemp("changed"))
    CHANGES[request.param](world)
    return request.param, world


@pytest.mark.parametrize(
    "write",
    [
        lambda world: plan_ingest(world.table),
        lambda world: plan_rebuild(world.table, [DT]),
        lambda world: plan_rebuild(world.table, None),
        lambda world: plan_replay(world.table),
        lambda world: plan_compaction(world.table),
        lambda world: plan_retain(world.table, datetime.now(UTC)),
        lambda world: retain_raw(world.table, datetime.now(UTC), "test", dry_run=True),
        lambda world: vacuum(world.table),
    ],
    ids=["ingest", "rebuild", "rebuild of all", "replay", "compaction", "retention", "retention of raw", "vacuum"],
)
def test_every_writer_refuses(changed: tuple[str, World], write: Callable[[World], object]) -> None:
    name, world = changed
    version = table_of(world).version()
    with pytest.raises(TableTampered) as told:
        write(world)
    assert table_of(world).version() == version
    what = "live files have no evidence: dt=" if name == "OPTIMIZE" else f"dt={DT} has 0 rows, and ledger 3 says"
    assert what in str(told.value)
    assert "docs/tables.md" in str(told.value)


def test_a_run_under_way_is_refused_as_well(world: World) -> None:
    world.raw.segment([simple(world.raw.partition(0).end)])
    world.raw.publish()
    plan = world.plan()
    optimize(world)
    with pytest.raises(TableTampered, match="have no evidence"):
        run(world.table, plan, in_process)


def test_what_leaves_the_live_files_as_they_are_is_allowed(world: World) -> None:
    """Properties, a VACUUM, an OPTIMIZE with nothing to do, a DELETE that its RESTORE undoes."""
    delta = table_of(world)
    delta.alter.set_table_properties({"delta.checkpointInterval": "50"})
    vacuum_by_hand(world)
    version = table_of(world).version()
    delete(world)
    table_of(world).restore(version)
    if optimized(world):
        table_of(world).restore(version)
    check_untampered(world.table, world.ledger, live_files(table_of(world)))
    world.raw.segment([simple(world.raw.partition(0).end)])
    assert world.land().rows == 3
    assert plan_repair(world.table).empty


def optimized(world: World) -> bool:
    before = table_of(world).version()
    optimize(world)
    return table_of(world).version() != before


def test_optimize_and_an_unclean_election_leave_no_duplicates(tmp_path: Path) -> None:
    world = World(tmp_path)
    for base in (0, 3, 6):
        world.raw.segment([simple(base)])
        world.land()
    optimize(world)
    branch(world, (EPOCH, 0), (5, 4))
    world.raw.segment([batch(4, [Record(i, 1_770_000_000_000) for i in range(4)], leader_epoch=5)], base=4)
    world.raw.publish()
    with pytest.raises(TableTampered, match="1 live files have no evidence"):
        plan_ingest(world.table)
    assert repair(world).status == "landed"
    world.land()
    assert world.offsets() == list(range(8))
    assert epochs(world)[4:] == [5] * 4
    assert sound(world)


def test_a_repair_goes_back_to_before_what_a_lost_marker_decided(tmp_path: Path) -> None:
    """The election cut it off above all that has landed."""
    world = World(tmp_path)
    held_by_another(world)
    branch(world, (EPOCH, 0), (5, 7))
    world.raw.partition().open_transactions = (OPEN_AT_5,)
    ending = reseal(marker(7, 7, commit=False), leader_epoch=5)
    world.raw.segment([ending, simple(8, leader_epoch=5)], base=7, aborted=[(7, 3, 7)])
    world.raw.publish()
    overwrite(world)
    assert repair(world).status == "landed"
    assert world.offsets() == [0, 1, 2]
    world.land()
    assert (world.next_offset(), world.offsets()) == (5, [0, 1, 2])
    assert sound(world)


def test_restore_to_before_a_branch_was_left_brings_its_rows_not_back(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.raw.segment([simple(0), simple(3)])
    world.land()
    version = table_of(world).version()
    branch(world, (EPOCH, 0), (5, 3))
    world.raw.segment([batch(3, [Record(i, 1_770_000_000_000) for i in range(3)], leader_epoch=5)], base=3)
    world.land()
    before = world.rows()
    table_of(world).restore(version)
    repair(world)
    assert world.rows() == before
    assert sound(world)


def test_restore_to_before_a_compaction_costs_no_conversion(tmp_path: Path) -> None:
    world = World(tmp_path)
    piecemeal(world)
    version, before = table_of(world).version(), world.rows()
    merge(world, files=2)
    table_of(world).restore(version)
    with pytest.raises(TableTampered, match="files that were replaced are live again"):
        plan_ingest(world.table)
    assert plan_repair(world.table).tasks == ()
    repair(world)
    assert world.rows() == before


def test_the_command_shows_it_and_does_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Spark is started only where there is something to convert."""
    world = World(tmp_path)
    piecemeal(world)
    version = table_of(world).version()
    merge(world, files=2)
    table_of(world).restore(version)
    command = ["--topics", str(world.topics_file), "--topic", "orders"]
    assert run_job("repair", [*command, "--dry-run"]) == 0
    assert "all of them are there" in capsys.readouterr().out
    for status in ("landed", "empty"):
        assert run_job("repair", command) == 0
        assert json.loads(capsys.readouterr().out.splitlines()[-1])["status"] == status
    world.check()


def test_a_compacted_table_is_made_right_as_well(tmp_path: Path) -> None:
    world = World(tmp_path)
    piecemeal(world)
    merge(world, files=2)
    before = world.rows()
    optimize(world)
    update(world)
    repair(world)
    assert world.rows() == before
    assert sound(world)


def test_refused_and_filtered_rows_have_one_class_thereafter(tmp_path: Path) -> None:
    world = made(tmp_path, "retention: {table: 30d}", function_parser("sizes"))
    before, classes, refused = world.rows(), world.classes(), world.quarantine()
    update(world)
    repair(world)
    assert (world.rows(), world.classes(), world.quarantine()) == (before, classes, refused)
    assert sound(world)


def test_restore_to_before_retention_brings_no_date_back(tmp_path: Path) -> None:
    world = made(tmp_path, OPTED_IN, function_parser("sizes"))
    version = table_of(world).version()
    drop(world)
    before = world.rows()
    table_of(world).restore(version)
    repair(world)
    assert world.rows() == before
    assert world.ledger.dates[PAST].state == "expired"


def test_dates_that_raw_has_no_more_are_named_with_the_version_to_restore(world: World) -> None:
    right = table_of(world).version()
    delete(world)
    for name in ("log", "manifest.json"):
        world.raw.store.delete(world.raw.keys().segment(SegmentName(0), name))
    with pytest.raises(ContinuityError) as told:
        plan_repair(world.table)
    assert f"these dates cannot all be made again from raw: {DT}" in str(told.value)
    assert f"Version {right} of the table is the last that was right" in str(told.value)
    table_of(world).restore(right)
    assert plan_repair(world.table).empty
    assert sound(world)


def test_of_two_repairs_one_lands(world: World) -> None:
    delete(world)
    first, second = plan_repair(world.table), plan_repair(world.table)
    for plan in (first, second):
        write_plan(world.table, plan)
    assert run(world.table, first, in_process).status == "landed"
    assert run(world.table, second, in_process).status == "stale"
    world.check()


def test_a_table_that_is_changed_again_meanwhile_needs_another_repair(world: World) -> None:
    delete(world)
    plan = plan_repair(world.table)
    write_plan(world.table, plan)
    optimize(world)
    assert run(world.table, plan, in_process).status == "stale"
    repair(world)
    assert sound(world)


def test_each_commit_has_the_digest_of_its_files(world: World) -> None:
    assert world.ledger.files == LiveFiles.of(live_files(table_of(world))).digest
    assert LiveFiles.of([]).digest == "0" * 32


def test_an_append_only_table_is_told_at_once(world: World) -> None:
    table_of(world).alter.set_table_properties({"delta.appendOnly": "true"})
    plan = plan_rebuild(world.table, [DT])
    write_plan(world.table, plan)
    with pytest.raises(PublishError, match=r"delta\.appendOnly = true.*UNSET TBLPROPERTIES"):
        run(world.table, plan, in_process)
    world.raw.segment([simple(world.raw.partition(0).end)])
    assert world.land().rows == 3, "what only adds files goes on"


IN_SPARK = {
    "DELETE": "DELETE FROM {table} WHERE kafka_partition = 1",
    "UPDATE and OPTIMIZE": "UPDATE {table} SET kafka_value = X'00' WHERE kafka_offset < 3;OPTIMIZE {table}",
    "Z-ORDER": "OPTIMIZE {table} ZORDER BY (kafka_offset)",
    "overwrite and VACUUM": "INSERT OVERWRITE {table} SELECT * FROM {table} WHERE kafka_offset > 3;"
    "VACUUM {table} RETAIN 0 HOURS",
    "RESTORE": "RESTORE TABLE {table} TO VERSION AS OF 2",
}


@pytest.mark.full
def test_what_spark_changed_is_made_right_too(starts_spark: None, world: World, tmp_path: Path) -> None:
    """Each statement on a copy of the table, which then takes the table's place."""
    before, root = world.rows(), Path(world.table.url.removeprefix("file://"))
    jars = class_path("delta-spark")
    conf = {**delta_conf(), "spark.driver.extraClassPath": jars, "spark.executor.extraClassPath": jars}
    script, copies = ROOT / "tests" / "spark" / "change_delta.py", tmp_path / "copies"
    spark_submit(script, str(root), str(copies), *IN_SPARK.values(), conf=conf, timeout=900)
    right = tmp_path / "right"
    shutil.copytree(tmp_path / "lake", right)
    for number, name in enumerate(IN_SPARK):
        shutil.rmtree(tmp_path / "lake")
        shutil.copytree(right, tmp_path / "lake")
        shutil.rmtree(root)
        shutil.copytree(tmp_path / "copies" / str(number), root)
        with pytest.raises(TableTampered):
            plan_ingest(world.table)
        assert repair(world).status == "landed", name
        assert world.rows() == before, name
        assert sound(world), name


@pytest.mark.parametrize("repaired", [False, True])
def test_a_log_that_was_cut_off_below_the_start_of_the_store_lands_from_there(tmp_path: Path, repaired: bool) -> None:
    """The new leader's disk was replaced: it was behind the offset at which the store began."""
    world = World(tmp_path)
    known = world.raw.partition()
    known.start_offset = known.end = 6
    world.raw.segment([simple(6), simple(9)])
    world.land()
    assert world.classes() == {"deleted_before_upload": 6, "landed": 6}
    if repaired:
        delete(world)
    branch(world, (5, 2))
    known.start_offset = 2
    world.raw.segment([simple(2, 5, leader_epoch=5)], base=2)
    world.raw.publish()
    if repaired:
        assert repair(world).status == "landed"
        assert world.rows() == []
    assert world.land().rows == 5
    assert (world.offsets(), epochs(world)) == ([2, 3, 4, 5, 6], [5] * 5)
    assert world.classes() == {"deleted_before_upload": 2, "landed": 5}
    state = world.ledger.by_partition[0, 0]
    assert (state.start_offset, state.next_offset, state.gaps) == (2, 7, ())
    assert plan_ingest(world.table).empty
    assert sound(world)
