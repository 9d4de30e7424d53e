"""A state without the records that an erasure, a cut or a rebuild took from the table, and with those that expired."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.spark.erasing.masked import erase, take_out
from tests.spark.run.test_truncation import branch
from tests.spark.state.replay import MOMENTS, Moment, advance, check, expire, state_rows
from tests.spark.state.test_state import put, values
from tests.spark.world import Acting, World, in_process
from tests.support.raw_builder import EPOCH
from tests.tidemark.kafka_log.build import T0, Record, batch
from tidemark.errors import ContinuityError, NotFound, StaleRun
from tidemark.planning import plan_rebuild, write_plan
from tidemark.table.delta_table import live_paths, open_delta
from tidemark.table.state_table import StateTable
from tidemark_spark.erasing.lake import state_files
from tidemark_spark.run.driver import run
from tidemark_spark.state.audit import audit_state
from tidemark_spark.state.model import StateJob

DAY = 86_400_000
PAST_T0 = datetime(2026, 3, 6, 12, tzinfo=UTC)
"""When the date of T0 is past, and a later one is not."""

STATE = "state: {}"
RETENTION = "retention: {table: 30d, apply: true}"
SIZES = "parser: {kind: function, function: 'tests.spark.convert.parsing:%s', columns: [{name: size, type: int32}]}"


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Two hundred keys in several leaves."""
    world = World(tmp_path, STATE, RETENTION)
    world.raw.segment([batch(0, [Record(number, T0, b"key-%d" % number, b"v" * 64) for number in range(200)])])
    world.land()
    advance(world)
    return world


def elect(world: World, at: int, records: list[Record]) -> None:
    """An unclean election that cuts partition 0 at ``at``, and ``records`` of the new leader."""
    branch(world, (EPOCH, 0), (EPOCH + 2, at))
    world.raw.segment([batch(at, records, leader_epoch=EPOCH + 2)], base=at)
    world.land()


def leaves(world: World) -> set[str]:
    ledger = StateTable.open(world.table).committed()
    assert ledger is not None
    return {leaf.path for leaf in ledger.leaves}


def test_an_erasure_makes_only_the_leaves_of_its_keys_again(world: World) -> None:
    put(world, b"key-7", b"newer")
    advance(world)
    before = leaves(world)
    erase(world, [200, 9])
    take_out(world)
    put(world, b"fresh", b"landed since")
    result = advance(world)
    assert (result.kind, result.lost_keys) == ("merge", 0)
    check(world)
    assert values(world)[b"key-7"] == b"v" * 64, "its older record counts again"
    assert b"key-9" not in values(world)
    assert 0 < len(before - leaves(world)) <= 3 < len(before)


@pytest.mark.parametrize("after", MOMENTS)
def test_a_run_that_began_before_an_erasure_brings_no_row_back(world: World, after: Moment) -> None:
    """The last moment is too late for it to be stale; then the files are named until the next run."""
    put(world, b"key-9", b"newest")
    erase(world, [200, 7])
    committed = advance(world, after=after, meanwhile=lambda: take_out(world)).status == "committed"
    assert committed is (after == "check")
    named = {item.key for item in state_files(world.table, world.table.store.now())}
    table = StateTable.open(world.table)
    ledger = table.committed()
    assert ledger is not None
    assert named >= {*table.files(ledger)}
    advance(world)
    check(world)
    assert values(world)[b"key-9"] == b"v" * 64
    assert b"key-7" not in values(world)


def delete_files(world: World, *, replaced: bool) -> None:
    """Delete the table's files: the ``replaced`` ones, as a vacuum does, or those that it has."""
    delta = open_delta(world.table)
    assert delta is not None
    live = {f"{world.table.keys.root}/{path}" for path in live_paths(delta)}
    for info in [*world.table.store.list(f"{world.table.keys.root}/dt=")]:
        if (info.key in live) is not replaced:
            world.table.store.delete(info.key)


def test_a_run_whose_files_were_deleted_meanwhile_is_stale(world: World) -> None:
    put(world, b"key-9", b"newest")
    erase(world, [200])

    def meanwhile() -> None:
        take_out(world)
        delete_files(world, replaced=True)

    assert advance(world, meanwhile=meanwhile, after="plan").status == "stale"
    assert not [info for info in world.table.store.list(world.table.keys.state_folder) if "/runs/" in info.key]
    assert advance(world).status == "committed"
    check(world)
    erase(world, [7])

    @Acting
    def late(work: Any, job: StateJob, tasks: Sequence[Any]) -> list[Any]:
        meanwhile()
        return in_process.on_each(work, job, tasks)

    with pytest.raises(StaleRun, match="was deleted meanwhile"):
        audit_state(StateTable.open(world.table), 0, late)


def test_a_file_that_the_table_still_has_must_be_there(world: World) -> None:
    put(world, b"key-9", b"newest")
    delete_files(world, replaced=False)
    with pytest.raises(NotFound, match="audit its date, and rebuild it"):
        advance(world)


@pytest.mark.parametrize("after", MOMENTS)
def test_a_run_that_began_before_a_retention_has_the_rows_that_it_read(world: World, after: Moment) -> None:
    """Its commit equals that of the table at which it began, and a state outlives rows."""
    put(world, b"key-9", b"newest")
    assert advance(world, after=after, meanwhile=lambda: expire(world, PAST_T0)).status == "committed"
    assert world.rows() == []
    ledger = StateTable.open(world.table).committed()
    assert ledger is not None
    assert ledger.of.n == world.ledger.n - 1
    assert (values(world)[b"key-9"], len(values(world))) == (b"newest", 200)
    assert advance(world).status == "empty"


def test_an_erased_deletion_leaves_the_reserve(world: World) -> None:
    put(world, b"key-7", None, time=10)
    put(world, b"key-7", b"outranked", time=5, partition=1)
    advance(world)
    assert b"key-7" not in values(world)
    erase(world, [200])
    take_out(world)
    advance(world)
    assert values(world)[b"key-7"] == b"outranked"
    check(world)


def test_a_cut_gives_keys_their_older_records(world: World) -> None:
    world.raw.segment([batch(200, [Record(0, T0, b"key-1", b"cut"), Record(1, T0, b"key-2", None)])])
    world.land()
    advance(world)
    assert values(world)[b"key-1"] == b"cut"
    elect(world, 200, [Record(0, T0, b"key-3", b"new branch")])
    result = advance(world)
    assert (result.kind, result.lost_keys) == ("merge", 0)
    now = values(world)
    assert (now[b"key-1"], now[b"key-2"], now[b"key-3"]) == (b"v" * 64, b"v" * 64, b"new branch")
    check(world)


def test_a_rebuild_keeps_no_record_of_a_dead_branch_although_its_offset_has_expired(world: World) -> None:
    world.raw.segment([batch(200, [Record(0, T0, b"dead", b"cut")])])
    world.land()
    advance(world)
    elect(world, 200, [Record(0, T0, b"new", b"of the same offset")])
    expire(world, PAST_T0)
    assert advance(world, rebuild=True).kind == "rebuild"
    now = values(world)
    assert b"dead" not in now
    assert (now[b"key-1"], len(now)) == (b"v" * 64, 200), "nobody has seen what expired before it"


def test_an_erased_key_goes_although_its_date_has_expired(world: World) -> None:
    put(world, b"recent", b"there", time=40 * DAY)
    advance(world)
    expire(world, PAST_T0)
    assert [row["kafka_key"] for row in world.rows()] == [b"recent"]
    assert advance(world).status == "empty"
    erase(world, [7])
    take_out(world)
    put(world, b"key-8", b"again", time=40 * DAY)
    result = advance(world)
    assert (result.kind, result.lost_keys) == ("merge", 1)
    now = values(world)
    assert b"key-7" not in now
    assert len(now) == 200
    assert (now[b"key-8"], now[b"key-9"], now[b"recent"]) == (b"again", b"v" * 64, b"there")


def test_a_cut_leaves_records_of_expired_dates_and_counts_keys_that_it_may_have_lost(world: World) -> None:
    world.raw.segment(
        [batch(200, [Record(0, T0 + 40 * DAY, b"key-1", b"cut"), Record(1, T0 + 40 * DAY, b"x", b"cut")])]
    )
    world.land()
    advance(world)
    expire(world, PAST_T0)
    elect(world, 200, [Record(0, T0 + 40 * DAY, b"y", b"new branch")])
    result = advance(world)
    assert (result.kind, result.lost_keys) == ("merge", 2), "key-1 had an expired record, and x may have had"
    now = values(world)
    assert {b"key-1", b"x"} & {*now} == set()
    assert (now[b"key-2"], now[b"y"], len(now)) == (b"v" * 64, b"new branch", 200)


def test_a_rebuild_keeps_what_has_expired_and_reads_the_rest_anew(tmp_path: Path) -> None:
    world = World(tmp_path, "state: {}", RETENTION, SIZES % "sizes")
    put(world, b"past", b"four")
    put(world, b"gone", b"four")
    put(world, b"gone", None, time=1)
    put(world, b"kept", b"four", time=40 * DAY)
    put(world, b"bad", b"four", time=40 * DAY)
    advance(world)
    expire(world, PAST_T0)
    put(world, b"late", b"late", time=2)
    advance(world)
    state = StateTable.open(world.table).committed()
    assert state is not None
    assert world.ledger.dates["2026-02-02"].state == "reopened", "which hides that its older rows have expired"
    for change in (None, "rebuilt"):
        if change:
            write_plan(world.table, plan := plan_rebuild(world.table, None))
            assert run(world.table, plan, in_process).status == "landed"
        assert advance(world, rebuild=not change).kind == "rebuild"
        wanted = {b"past": 4, b"kept": 4, b"bad": 4, b"late": 4}
        assert {row["kafka_key"]: row["size"] for row in state_rows(world)} == wanted
    put(world, b"gone", b"back", time=0)
    advance(world)
    assert values_of(world, "size")[b"gone"] == 4


def values_of(world: World, name: str) -> dict[bytes, object]:
    return {row["kafka_key"]: row[name] for row in state_rows(world)}


def test_an_erased_record_of_an_expired_date_does_not_survive_a_rebuild(world: World) -> None:
    put(world, b"recent", b"there", time=40 * DAY)
    advance(world)
    expire(world, PAST_T0)
    erase(world, [7])
    take_out(world)
    assert advance(world, rebuild=True).kind == "rebuild"
    now = values(world)
    assert b"key-7" not in now
    assert (now[b"key-8"], len(now)) == (b"v" * 64, 200)


def test_other_settings_of_keys_need_the_rows_that_retention_removed(world: World, tmp_path: Path) -> None:
    before = state_rows(world)
    expire(world, PAST_T0)
    other = World(
        tmp_path,
        "state: {envelope: debezium}",
        RETENTION,
        SIZES.replace("size, type: int32", "op, type: string") % "sizes",
    )
    with pytest.raises(
        ContinuityError, match=r"retention has removed rows.*begin another state by another state\.table"
    ):
        advance(other)
    assert state_rows(world) == before
    fresh = World(tmp_path, "state: {table: from_now_on}", RETENTION)
    fresh.raw = world.raw
    put(fresh, b"new", b"1", time=40 * DAY)
    advance(fresh)
    assert values(fresh) == {b"new": b"1"}


@pytest.mark.parametrize("setting", ["state: {table: renamed}", "time_zone: UTC"])
def test_an_erasure_names_a_former_state_table_until_it_is_deleted(tmp_path: Path, setting: str) -> None:
    """Also after a run has told of the table that has its place."""
    before = World(tmp_path, "state: {}")
    put(before, b"key", b"value")
    advance(before)
    world, folder = World(tmp_path, setting), f"{StateTable.open(before.table).root}/"

    def named() -> list[str]:
        return [item.key for item in state_files(world.table, world.table.store.now()) if item.key.endswith("/")]

    assert named() == [folder]
    if world.table.topic.state:
        advance(world)
        assert named() == [folder]
    for info in list(world.table.store.list(folder)):
        world.table.store.delete(info.key)
    assert named() == []
