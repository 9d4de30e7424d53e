"""What follows a compaction holds as before, and what runs beside one costs at most a plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.spark.audit.test_audit import audited
from tests.spark.compaction.test_compaction import DAYS, FEW, delta_rows, merge, paths, piecemeal
from tests.spark.convert.test_parsers import function_parser, records
from tests.spark.run.test_truncation import branch
from tests.spark.test_vacuum import OLD, OLDER, age_all, aged, die, dying_after, few, files, truth, why
from tests.spark.world import Acting, World, in_process
from tests.support.raw_builder import EPOCH
from tests.tidemark.kafka_log.build import T0, batch, simple
from tidemark.cli.continuity import continuity_of
from tidemark.formats.table.plan import RunPlan, RunResult, SegmentTask
from tidemark.planning import plan_compaction, plan_ingest, plan_rebuild, plan_replay, write_plan
from tidemark_spark.model import Job, Outcome
from tidemark_spark.run import commit
from tidemark_spark.run.driver import run
from tidemark_spark.run.vacuum import vacuum

__all__ = ["few"]


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A topic whose open dates are compacted from three files on, with rows of three runs."""
    world = World(tmp_path)
    piecemeal(world)
    return world


def carried_out(world: World, plan: RunPlan, execute: Any = in_process) -> RunResult:
    """Write ``plan``, run it, and check that all is exact."""
    write_plan(world.table, plan)
    result = run(world.table, plan, execute)
    world.check()
    return result


# What follows


def test_continuity_and_audit_find_what_they_found_before(world: World) -> None:
    before = continuity_of(world.table, DAYS)
    merge(world)
    after = continuity_of(world.table, DAYS)
    assert after["sound"]
    assert [after[name] for name in ("rows", "partitions", "dates")] == [
        before[name] for name in ("rows", "partitions", "dates")
    ]
    report = audited(world)
    assert report.passed, report.text()
    assert sum(one.by_raw for one in report.partitions) == 36
    assert audited(world, DAYS[1]).passed
    for found in [one for one in world.raw.store.list("") if one.key.endswith(".log")]:
        world.raw.store.delete(found.key)
    report = audited(world)
    assert report.passed, report.text()
    assert [one.by_raw for one in report.partitions] == [0, 0]


def test_an_audit_still_sees_a_row_that_is_gone(world: World) -> None:
    merge(world)
    path = paths(world)[0]
    key = f"{world.table.keys.root}/{path}"
    body = bytearray(world.table.store.get(key).body)
    body[40] ^= 0x5A
    world.table.store.put(key, bytes(body))
    assert {one.files for one in audited(world).findings} == {(path,)}


def test_dates_are_rebuilt_from_raw_after_a_compaction(world: World) -> None:
    rows = delta_rows(world)
    merge(world)
    assert carried_out(world, plan_rebuild(world.table, [DAYS[0]])).status == "landed"
    assert delta_rows(world) == rows
    assert carried_out(world, plan_rebuild(world.table, DAYS)).status == "landed"
    assert delta_rows(world) == rows


def test_replaced_files_stay_for_readers_and_then_go(world: World) -> None:
    before = {f"{world.table.keys.root}/{path}" for path in paths(world)}
    plan = plan_compaction(world.table, files=FEW)
    assert carried_out(world, plan).status == "landed"
    assert before < files(world)
    aged(world, plan, OLDER - timedelta(hours=1))
    assert why(world) == {}
    age_all(world, OLDER)
    assert why(world) == dict.fromkeys(before, "replaced")
    world.check()
    assert audited(world).passed


@pytest.mark.usefixtures("few")
def test_a_compaction_is_folded_with_the_others(world: World) -> None:
    merge(world)
    age_all(world, OLD)
    before = truth(world)
    assert vacuum(world.table).folded == 4
    assert truth(world) == before
    age_all(world, OLDER)
    assert {one.why for one in vacuum(world.table).removed} == {"replaced"}
    assert truth(world) == before
    assert audited(world).passed
    assert carried_out(world, plan_rebuild(world.table, DAYS)).status == "landed"


def test_a_cut_within_a_merged_file_writes_it_again_without_what_is_cut_off(tmp_path: Path) -> None:
    world = World(tmp_path)
    for number in range(4):
        world.raw.segment([simple(3 * number)])
        world.raw.segment([simple(3 * number)], 1)
        world.land()
    merge(world)
    other = [path for path in paths(world) if "/0_1_" in path]
    branch(world, (EPOCH, 0), (5, 7))
    world.raw.segment([simple(7, 2, leader_epoch=5)], base=7)
    assert world.land().rows == 9
    assert world.offsets() == list(range(9))
    assert [row["kafka_leader_epoch"] for row in world.rows()[:9]] == [EPOCH] * 7 + [5] * 2
    assert [path for path in paths(world) if "/0_1_" in path] == other
    assert continuity_of(world.table)["sound"]
    assert audited(world).passed


def test_refused_rows_are_replayed_after_a_compaction(tmp_path: Path) -> None:
    world = World(tmp_path, function_parser("sizes"))
    for number in range(3):
        world.raw.segment([batch(3 * number, records(b"abcd", b"abc", b""))])
        world.land()
    merge(world)
    world.check()
    mended = World(tmp_path, function_parser("all_sizes"))
    mended.raw = world.raw
    assert carried_out(mended, plan_replay(mended.table)).rows == 3
    assert mended.classes() == {"landed": 6, "filtered": 3}
    assert audited(mended).passed


def test_a_closed_date_stays_closed_and_marked_all_the_while(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.raw.observed_at = datetime.fromtimestamp(T0 / 1000, UTC) + timedelta(days=3)
    world.land()
    marks = {world.table.keys.success(dt) for dt in DAYS}
    assert marks < files(world)
    states = world.ledger.dates
    assert {one.state for one in states.values()} == {"final"}
    real: Callable[..., None] = type(world.table.store).delete
    gone: list[str] = []

    def delete(self: object, key: str, **options: Any) -> None:
        gone.append(key)
        real(self, key, **options)

    with monkeypatch.context() as patch:
        patch.setattr(type(world.table.store), "delete", delete)
        assert merge(world).status == "landed"
    assert not marks.intersection(gone)
    assert marks < files(world)
    assert world.ledger.dates == states
    assert plan_ingest(world.table).empty
    world.raw.segment([simple(18)])  # late rows reopen it as ever
    world.land()
    assert world.ledger.dates[DAYS[0]].state == "reopened"


# What runs beside it


def test_an_ingest_that_lands_meanwhile_only_rebases_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    real = commit._written
    overtaken: list[RunResult] = []

    def written(*arguments: Any) -> Any:
        if not overtaken:
            overtaken.append(RunResult.model_construct())
            world.raw.segment([simple(18)])
            overtaken[0] = world.land()
        return real(*arguments)

    monkeypatch.setattr(commit, "_written", written)
    result = carried_out(world, plan_compaction(world.table, files=FEW))
    assert (overtaken[0].status, overtaken[0].ledger_n) == ("landed", 4)
    assert (result.status, result.ledger_n, world.ledger.rows) == ("landed", 5, 33)
    assert len(paths(world)) == 5


@pytest.mark.parametrize("meanwhile", [False, True])
def test_a_rebuild_of_the_date_makes_it_stale(world: World, meanwhile: bool) -> None:
    plan = plan_compaction(world.table, files=FEW)
    rows = delta_rows(world)

    @Acting
    def overtaken(work: Any, job: Job, tasks: Sequence[SegmentTask]) -> list[Outcome]:
        outcomes = in_process.on_each(work, job, tasks)
        assert carried_out(world, plan_rebuild(world.table, [DAYS[0]])).status == "landed"
        return outcomes

    if not meanwhile:
        assert carried_out(world, plan_rebuild(world.table, [DAYS[0]])).status == "landed"
    assert carried_out(world, plan, overtaken if meanwhile else in_process).status == "stale"
    assert (delta_rows(world), world.ledger.n) == (rows, 4)
    assert merge(world, DAYS[1]).status == "landed"


def test_a_rebuild_that_it_overtakes_is_stale(world: World) -> None:
    plan = plan_rebuild(world.table, [DAYS[0]])
    assert merge(world).status == "landed"
    assert carried_out(world, plan).status == "stale"


def test_what_a_dead_compaction_wrote_is_cleaned_up(world: World) -> None:
    before = files(world)
    plan = plan_compaction(world.table, files=FEW)
    write_plan(world.table, plan)
    die(world, plan)
    left = files(world) - before
    assert len(left) == 4
    aged(world, plan, OLD)
    assert why(world) == dict.fromkeys(left, "dead")
    assert files(world) == before
    world.check()
    assert merge(world).status == "landed"


@pytest.mark.parametrize("point", ["_write_evidence", "_written", "commit", "update_markers"])
def test_a_compaction_that_dies_is_carried_out_again(world: World, point: str) -> None:
    rows = delta_rows(world)
    plan = plan_compaction(world.table, files=FEW)
    write_plan(world.table, plan)
    with dying_after(point):
        run(world.table, plan, in_process)
    assert delta_rows(world) == rows
    world.check()
    other = plan_compaction(world.table, files=FEW)
    assert other.empty is (point in {"commit", "update_markers"})
    if not other.empty:
        assert carried_out(world, other).status == "landed"
        assert carried_out(world, plan).status == "stale"
    else:
        assert carried_out(world, plan).status == "landed"
    assert (delta_rows(world), world.ledger.n, len(paths(world))) == (rows, 4, 4)
