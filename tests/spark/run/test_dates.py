"""Dates close and are reopened: by the ledger alone, whoever is killed, and ``_SUCCESS`` follows."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.spark.world import World, in_process, never
from tests.tidemark.kafka_log.build import T0, Record, batch, simple
from tidemark.errors import NotFound
from tidemark.formats.table.plan import RunPlan, RunResult
from tidemark.planning import plan_ingest, plan_rebuild, write_plan
from tidemark_spark.run import commit, delta_log, driver, success_markers
from tidemark_spark.run.driver import run

DT = "2026-02-02"
DAY = 86_400_000
AFTER = datetime.fromtimestamp(T0 / 1000, UTC) + timedelta(days=2)


class Died(Exception):
    """Planted where a process is killed."""


def marked(world: World, dt: str = DT) -> bool:
    """Whether the date has its mark."""
    try:
        return world.table.store.get(world.table.keys.success(dt)).body == b""
    except NotFound:
        return False


def close(world: World) -> RunResult:
    """A run with nothing to land, after the brokers have looked again."""
    world.raw.observed_at = AFTER
    world.raw.publish()
    result = run(world.table, world.plan(), never)
    world.check()
    return result


def closed(world: World) -> RunPlan:
    """Land a date and close it; then upload a late row, and plan to land it."""
    world.raw.segment([simple(0)])
    world.land()
    close(world)
    assert (world.ledger.dates[DT].state, marked(world)) == ("final", True)
    world.raw.segment([simple(3)])
    world.raw.publish()
    return world.plan()


def test_a_run_with_nothing_to_land_closes_a_date(world: World) -> None:
    world.raw.segment([batch(0, [Record(0), Record(1, T0 + DAY)])])
    world.land()
    assert plan_ingest(world.table).empty
    world.raw.observed_at = AFTER - timedelta(hours=12)
    world.raw.publish()
    plan = world.plan()
    assert (plan.partitions, list(plan.closes)) == ((), [DT])
    result = run(world.table, plan, never)
    assert (result.status, result.dates, result.rows) == ("landed", (DT,), 0)
    assert (world.ledger.n, world.ledger.dates[DT].state, world.ledger.dates["2026-02-03"].state) == (
        2,
        "final",
        "open",
    )
    assert (marked(world), marked(world, "2026-02-03")) == (True, False)
    assert plan_ingest(world.table).empty
    world.check()


def test_a_run_that_lands_rows_of_other_dates_closes_one_as_well(world: World) -> None:
    world.raw.segment([simple(0)])
    world.land()
    world.raw.observed_at = AFTER
    world.raw.publish()
    closes = plan_ingest(world.table).closes
    world.raw.segment([batch(3, [Record(0, T0 + DAY)])])
    world.raw.publish()
    plan = plan_ingest(world.table).model_copy(update={"closes": closes})
    write_plan(world.table, plan)
    assert run(world.table, plan, in_process).dates == (DT, "2026-02-03")
    assert {dt: one.state for dt, one in world.ledger.dates.items()} == {DT: "final", "2026-02-03": "open"}
    world.check()


def test_a_date_whose_rows_change_in_the_same_commit_does_not_close(world: World) -> None:
    plan = closed(world)
    run(world.table, plan, in_process)
    assert world.ledger.dates[DT].state == "reopened"
    world.raw.publish()
    closes = plan_ingest(world.table).closes
    assert list(closes) == [DT]
    world.raw.segment([simple(6)])
    world.raw.publish()
    plan = plan_ingest(world.table).model_copy(update={"closes": closes})
    write_plan(world.table, plan)
    run(world.table, plan, in_process)
    assert (world.ledger.dates[DT].state, world.ledger.dates[DT].late_rows, marked(world)) == ("reopened", 6, False)


def test_a_plan_to_close_that_rows_overtake_is_stale(world: World) -> None:
    world.raw.segment([simple(0)])
    world.land()
    world.raw.observed_at = AFTER
    world.raw.publish()
    plan = world.plan()
    assert list(plan.closes) == [DT]
    world.raw.segment([simple(3)])
    world.raw.publish()
    ingest = world.plan().model_copy(update={"attempt": 5})
    assert run(world.table, ingest, in_process).status == "landed"
    assert run(world.table, plan, never).status == "stale"
    assert (world.ledger.dates[DT].state, marked(world)) == ("open", False)
    assert close(world).status == "landed"
    assert (world.ledger.dates[DT].state, marked(world)) == ("final", True)


def test_late_rows_are_landed_counted_and_reopen_their_date_until_it_closes_again(world: World) -> None:
    plan = closed(world)
    seen: list[bool] = []

    def watched(*arguments: Any) -> None:
        seen.append(marked(world))
        real(*arguments)

    real = delta_log.commit
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commit, "commit", watched)
        assert run(world.table, plan, in_process).rows == 3
    assert seen == [False]  # gone before the commit
    state = world.ledger.dates[DT]
    assert (state.state, state.rows, state.late_rows, marked(world)) == ("reopened", 6, 3, False)
    assert close(world).dates == (DT,)
    state = world.ledger.dates[DT]
    assert (state.state, state.rows, state.late_rows, marked(world)) == ("final", 6, 3, True)


def test_what_is_overdue_closes_incomplete_and_is_final_when_it_has_landed(world: World) -> None:
    world.raw.segment([simple(0)])
    world.raw.segment([simple(0)], 1)
    world.land()
    world.raw.observed_at = AFTER
    held = world.raw.partition(1)
    held.end = 5  # the broker has two more, which nobody has uploaded
    held.next_offset = 3
    world.raw.publish()
    assert world.plan().empty
    old = world.ledger.dates[DT].model_copy(update={"changed_at": AFTER})
    ledger = world.ledger.model_copy(update={"dates": {DT: old}})
    world.table.store.put(world.table.keys.ledger(ledger.n, ledger.attempt), ledger.to_bytes())
    world.table.log.ledger = None  # the table would not read it again: a ledger is never replaced
    run(world.table, world.plan(), never)
    state = world.ledger.dates[DT]
    assert (state.state, state.unfinished, state.outstanding) == ("final_incomplete", 1, 2)
    assert marked(world)
    held.end, held.next_offset = 3, None
    world.raw.segment([simple(3, 2)], 1)
    world.land()
    state = world.ledger.dates[DT]
    assert (state.state, state.late_rows, state.unfinished, marked(world)) == ("reopened", 2, 0, False)
    close(world)
    assert (world.ledger.dates[DT].state, marked(world)) == ("final", True)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("point", ["_write_evidence", "take_away", "_written", "commit", "update_markers", "_put"])
@pytest.mark.parametrize("again", [True, False], ids=["the same run", "another run"])
def test_a_run_that_dies_while_it_closes_or_reopens_a_date_leaves_what_a_later_one_mends(
    world: World, monkeypatch: pytest.MonkeyPatch, point: str, again: bool
) -> None:
    world.raw.segment([simple(0)])
    world.land()
    world.raw.observed_at = AFTER
    world.raw.publish()
    _killed(world, monkeypatch, world.plan(), point, again)
    _drain(world)
    assert (world.ledger.dates[DT].state, marked(world)) == ("final", True)
    world.raw.segment([simple(3)])
    world.raw.publish()
    _killed(world, monkeypatch, world.plan(), point, again)
    assert not (marked(world) and world.ledger.dates[DT].state == "reopened" and point != "update_markers")
    _drain(world)
    state = world.ledger.dates[DT]
    assert (state.state, state.rows, state.late_rows, marked(world)) == ("final", 6, 3, True)


def test_a_mark_that_is_put_after_the_date_was_reopened_is_taken_away(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = closed(world)
    outdated = world.ledger
    run(world.table, plan, in_process)
    success_markers.update_markers(world.table, outdated, [DT])
    assert (world.ledger.dates[DT].state, marked(world)) == ("reopened", False)
    world.table.store.put(world.table.keys.success(DT), b"")  # as one who died in the midst of that would leave it
    success_markers.update_markers(world.table, world.ledger, ())
    assert not marked(world)


def test_a_rebuild_takes_the_mark_away_and_puts_it_again(world: World) -> None:
    closed(world)
    plan = plan_rebuild(world.table, [DT])
    write_plan(world.table, plan)
    taken: list[bool] = []
    real = delta_log.commit

    def watched(*arguments: Any) -> None:
        taken.append(not marked(world))
        real(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commit, "commit", watched)
        assert run(world.table, plan, in_process).status == "landed"
    assert taken == [True]
    assert (world.ledger.dates[DT].state, world.ledger.dates[DT].late_rows, marked(world)) == ("final", 0, True)
    world.check()


def _killed(world: World, monkeypatch: pytest.MonkeyPatch, plan: RunPlan, point: str, again: bool) -> None:
    """Run ``plan``, which dies right after ``point`` if it gets there; then perhaps run it again."""
    where = {"_write_evidence": driver, "update_markers": driver, "_put": success_markers}.get(point, commit)
    real = getattr(where, point)

    def dying(*arguments: Any, **options: Any) -> None:
        if point != "update_markers":  # there it dies right before
            real(*arguments, **options)
        raise Died(point)

    with monkeypatch.context() as patch:
        patch.setattr(where, point, dying)
        with suppress(Died):
            run(world.table, plan, in_process)
    if again:
        run(world.table, plan, in_process)


def _drain(world: World) -> None:
    """Run until there is nothing left to do, and once more, as the next day's rows would."""
    for _ in range(3):
        run(world.table, world.plan(), in_process)
        world.check()
    success_markers.update_markers(world.table, world.ledger, ())
