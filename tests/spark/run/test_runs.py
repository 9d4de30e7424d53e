"""Runs: again, against one another, over changed tables; and dates made again."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.spark.world import Acting, World, in_process, outcomes_of
from tests.tidemark.kafka_log.build import T0, Record, batch, marker, simple, transactional
from tidemark.errors import ConfigError, ContinuityError, PublishError, TableTampered
from tidemark.formats.keys import SegmentName
from tidemark.formats.table.ledger import Ledger
from tidemark.formats.table.plan import RunResult, SegmentTask
from tidemark.planning import plan_ingest, plan_rebuild, write_plan
from tidemark.table.delta_table import live_files, open_delta
from tidemark.table.evidence import evidence_key
from tidemark.timestamps import utc_now
from tidemark_spark.kinds.kind import TableChange
from tidemark_spark.kinds.registry import kind_of
from tidemark_spark.model import Job, Outcome
from tidemark_spark.run.commit import rebased
from tidemark_spark.run.driver import run

DAY = 86_400_000
LOST: dict[str, Any] = {"bytes_read": 0, "bytes_written": None, "seconds": {}, "unknown": None}
"""What a result that is made from evidence again does not know."""


def spread(world: World) -> None:
    """Three dates, two partitions, an aborted transaction, a row for quarantine."""
    for partition in range(2):
        times = [T0 + (i % 3) * DAY for i in range(9)]
        records = [Record(i, time, b"k%d" % i, b"v%d" % partition) for i, time in enumerate(times)]
        world.raw.segment([batch(0, records), transactional(9, 7, 3)], partition)
        later = batch(13, [Record(0, -1), *records[1:]], "zstd")
        world.raw.segment([marker(12, 7, commit=False), later], partition, aborted=[(7, 9, 12)])


def rebuild(world: World, *dates: str) -> RunResult:
    """Make dates again, and check that all is exact."""
    plan = plan_rebuild(world.table, dates)
    write_plan(world.table, plan)
    result = run(world.table, plan, in_process)
    world.check()
    return result


def test_a_copy_of_the_ledger_is_left_and_put_right_by_who_runs_again(world: World) -> None:
    spread(world)
    world.raw.publish()
    plan = world.plan()
    run(world.table, plan, in_process)
    key = world.table.keys.deployment.committed_ledger("orders")
    assert Ledger.from_bytes(world.table.store.get(key).body, key) == world.ledger
    world.table.store.delete(key)
    run(world.table, plan, in_process)
    assert world.table.store.get(key).body == world.ledger.to_bytes()


def test_of_two_runs_over_the_same_offsets_one_lands(world: World) -> None:
    spread(world)
    world.raw.publish()
    plans = [world.plan(), world.plan()]
    results = [run(world.table, plan, in_process).status for plan in plans]
    assert results == ["landed", "stale"]
    world.check()
    assert world.ledger.landed == (plans[0].attempt,)


def test_a_run_that_another_overtakes_while_it_converts_is_stale(world: World) -> None:
    spread(world)
    world.raw.publish()
    first, second = world.plan(), world.plan()

    @Acting
    def overtaken(work: Any, job: Job, tasks: Sequence[SegmentTask]) -> list[Outcome]:
        assert run(world.table, first, in_process).status == "landed"
        return in_process.on_each(work, job, tasks)

    assert run(world.table, second, overtaken).status == "stale"
    world.check()
    assert world.ledger.n == 1


def test_a_table_changed_while_a_run_converts_is_left_alone(world: World) -> None:
    spread(world)
    world.land()
    world.raw.segment([simple(22)])
    world.raw.publish()

    @Acting
    def tampered(work: Any, job: Job, tasks: Sequence[SegmentTask]) -> list[Outcome]:
        DeltaTable(world.table.url).delete("kafka_offset = 3")
        return in_process.on_each(work, job, tasks)

    with pytest.raises(TableTampered):
        run(world.table, world.plan(), tampered)
    assert world.ledger.n == 1


def test_runs_over_other_partitions_both_land(world: World) -> None:
    world.raw.segment([simple(0)], 0)
    world.raw.publish()
    first = world.plan()
    world.raw.segment([simple(0)], 1)
    world.raw.publish()
    both = plan_ingest(world.table)
    second = both.model_copy(update={"partitions": both.partitions[1:], "tasks": both.tasks[1:]})
    write_plan(world.table, second)
    assert [run(world.table, plan, in_process).status for plan in (first, second)] == ["landed", "landed"]
    world.check()
    assert world.ledger.rows == 6


def test_the_same_state_gives_the_same_plan_and_the_same_bytes(tmp_path: Path) -> None:
    bodies = []
    for name in ("one", "other"):
        world = World(tmp_path / name)
        spread(world)
        world.raw.publish()
        plans = [plan_ingest(world.table, attempt=1).model_copy(update={"created_at": utc_now()}) for _ in range(2)]
        assert plans[0].model_copy(update={"created_at": plans[1].created_at}) == plans[1]
        plan = plans[0].model_copy(update={"attempt": 4 if name == "one" else 5})
        write_plan(world.table, plan)
        run(world.table, plan, in_process)
        files = live_files(DeltaTable(world.table.url))
        bodies.append([world.table.store.get(f"{world.table.keys.root}/{one.path}").body for one in files])
        assert all(one.path[:-17].count("_") >= 3 for one in files)
    assert bodies[0] == bodies[1]


def test_a_rebuild_gives_the_rows_of_the_first_landing(world: World) -> None:
    spread(world)
    world.land()
    before, files = world.rows(), {one.path for one in live_files(DeltaTable(world.table.url))}
    result = rebuild(world, "2026-02-03", "2026-02-04")
    assert (result.status, result.dates) == ("landed", ("2026-02-03", "2026-02-04"))
    assert world.rows() == before
    now = {one.path for one in live_files(DeltaTable(world.table.url))}
    assert files & now == {path for path in files if "dt=2026-02-02" in path}
    assert all(path.split("/")[1].startswith("1_") for path in now - files)
    assert world.ledger.generation == 1
    assert rebuild(world, "2026-02-02").status == "landed"
    assert world.rows() == before
    world.raw.segment([simple(22)])
    assert world.land().rows == 3


def test_a_rebuild_finds_an_abort_that_a_later_segment_records(world: World) -> None:
    world.raw.segment([simple(0), transactional(3, 7, 3), simple(6)])
    world.raw.segment([simple(9)])
    world.raw.segment([marker(12, 7, commit=False), batch(13, [Record(0, T0 + DAY)])], aborted=[(7, 3, 12)])
    world.land()
    before = world.rows()
    assert rebuild(world, "2026-02-02").rows == 9
    assert world.rows() == before


def test_a_rebuild_that_ingests_overtake_still_lands(world: World) -> None:
    spread(world)
    world.land()
    plan = plan_rebuild(world.table, ["2026-02-02"])
    write_plan(world.table, plan)
    world.raw.segment([simple(22)])
    world.land()
    assert run(world.table, plan, in_process).status == "landed"
    world.check()
    assert world.ledger.rows == 37


def test_of_two_rebuilds_of_a_date_one_lands(world: World) -> None:
    spread(world)
    world.land()
    plans = [plan_rebuild(world.table, ["2026-02-02"]) for _ in range(2)]
    for plan in plans:
        write_plan(world.table, plan)
    assert [run(world.table, plan, in_process).status for plan in plans] == ["landed", "stale"]
    world.check()


def test_a_rebuild_that_would_lose_rows_is_refused(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.raw.segment([batch(0, [Record(i, T0 + i * DAY // 4) for i in range(8)])])
    world.land()
    before = world.ledger
    moved = World(tmp_path, "time_zone: Asia/Tokyo")  # the same table, whose rows now have other dates
    plan = plan_rebuild(moved.table, ["2026-02-02"])
    with pytest.raises(ContinuityError, match=r"rebuild.py --extend"):
        run(moved.table, plan, in_process)
    assert world.ledger == before
    everything = plan_rebuild(moved.table, [f"2026-02-0{day}" for day in range(1, 7)])
    assert run(moved.table, everything, in_process).rows == 8
    moved.check()
    assert len({row["dt"] for row in moved.rows()}) == 3


def test_a_rebuild_is_refused_when_raw_is_gone(world: World) -> None:
    spread(world)
    world.land()
    world.raw.store.delete(world.raw.keys(1).segment(SegmentName(0), "manifest.json"))
    with pytest.raises(ContinuityError, match="offsets 0 to 7"):
        plan_rebuild(world.table, ["2026-02-02"])


def test_a_rebuild_needs_evidence_and_dates(world: World) -> None:
    spread(world)
    world.land()
    assert plan_rebuild(world.table, ["2031-01-01"]).empty
    with pytest.raises(ConfigError, match="yesterday"):
        plan_rebuild(world.table, ["yesterday"])
    world.table.store.delete(evidence_key(world.table, world.ledger.attempt))
    with pytest.raises(ContinuityError, match="no evidence"):
        plan_rebuild(world.table, ["2026-02-02"])


def test_a_table_changed_by_others_is_left_alone(world: World) -> None:
    spread(world)
    world.land()
    DeltaTable(world.table.url).delete("kafka_offset = 3")
    world.raw.segment([simple(22)])
    world.raw.publish()
    before = open_delta(world.table)
    with pytest.raises(TableTampered, match="live files have no evidence"):
        run(world.table, world.plan(), in_process)
    after = open_delta(world.table)
    assert before is not None and after is not None  # noqa: PT018 - narrows both
    assert before.version() == after.version()


def test_a_restored_table_is_left_alone(world: World) -> None:
    spread(world)
    world.land()
    world.raw.segment([simple(22)])
    world.land()
    DeltaTable(world.table.url).restore(1)
    world.raw.segment([simple(25)])
    world.raw.publish()
    with pytest.raises(TableTampered):
        run(world.table, world.plan(), in_process)


def test_a_run_whose_files_are_gone_does_not_commit(world: World) -> None:
    spread(world)
    world.raw.publish()
    plan = world.plan()

    @Acting
    def write_and_lose(work: Any, job: Job, tasks: Sequence[SegmentTask]) -> list[Outcome]:
        outcomes = in_process.on_each(work, job, tasks)
        world.table.store.delete(f"{world.table.keys.root}/{outcomes[0].files[0].path}")
        return outcomes

    with pytest.raises(PublishError, match="is gone"):
        run(world.table, plan, write_and_lose)
    assert world.ledger.n == 0


def test_offsets_without_a_class_are_never_committed(world: World) -> None:
    spread(world)
    world.raw.publish()
    plan = world.plan()

    @Acting
    def drop_one(work: Any, job: Job, tasks: Sequence[SegmentTask]) -> list[Outcome]:
        return in_process.on_each(work, job, tasks)[1:]

    with pytest.raises(ContinuityError, match="tasks end at offset 0"):
        run(world.table, plan, drop_one)
    assert world.ledger.n == 0


def test_a_late_row_reopens_a_final_date(world: World) -> None:
    spread(world)
    world.land()
    ledger = world.ledger
    final = ledger.dates["2026-02-02"].model_copy(update={"state": "final"})
    ledger = ledger.model_copy(update={"dates": {**ledger.dates, "2026-02-02": final}})
    world.raw.segment([simple(22)])
    world.raw.publish()
    plan = world.plan()
    files = tuple(file for one in outcomes_of(world.table, plan) for file in one.files)
    fresh = rebased(
        kind_of(world.table, plan), ledger, TableChange(files, (), ()), live_files(DeltaTable(world.table.url))
    )
    assert (fresh.dates["2026-02-02"].state, fresh.dates["2026-02-02"].late_rows) == ("reopened", 3)
    assert fresh.dates["2026-02-03"] == ledger.dates["2026-02-03"]
    assert fresh.committed_at - ledger.committed_at < timedelta(minutes=1)
