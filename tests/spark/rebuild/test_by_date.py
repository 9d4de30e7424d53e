"""Rebuilds by date: a commit for each date, or for those that exchange rows; killed, overtaken, and gone on with."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.spark.erasing.masked import killed
from tests.spark.inline import Inline
from tests.spark.rebuild.rebuilds import DAYS, EVENT, PLAIN, changed, dates_of, events
from tests.spark.run.test_runs import spread
from tests.spark.test_vacuum import Died, as_of
from tests.spark.world import World, in_process
from tidemark.backfill.preview import Preview
from tidemark.backfill.report import outcome_of
from tidemark.errors import ConfigError, ContinuityError, PublishError
from tidemark.formats.table.plan import RUN_LIMIT, RunPlan, RunResult
from tidemark.formats.table.steps import DatewiseRebuild
from tidemark.planning import landed_parts, plan_rebuild, write_plan
from tidemark.planning.maintenance.vacuum import REPORTS_KEPT
from tidemark.table.delta_table import TopicTable
from tidemark_spark.jobs.running import run_job
from tidemark_spark.rebuild.by_date import TRIES, carry_out_by_date, rebuild_by_date
from tidemark_spark.rebuild.preview import preview
from tidemark_spark.run.driver import run
from tidemark_spark.run.vacuum import vacuum

HOUR = timedelta(hours=1)
SPREAD = ("2026-02-02", "2026-02-03", "2026-02-04")


def carry_out(table: TopicTable, plan: RunPlan) -> RunResult:
    return run(table, plan, in_process)


def by_date(world: World, dates: Sequence[str] = SPREAD, *, extend: bool = False) -> list[RunResult]:
    """The results of the parts, of which each leaves all exact."""
    results: list[RunResult] = []
    for result in rebuild_by_date(world.table, dates, in_process, carry_out, extend=extend):
        world.check()
        results.append(result)
    return results


def requests(world: World) -> list[str]:
    return [info.key for info in world.table.store.list(world.table.keys.datewise_rebuilds)]


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Three dates, in the same segments."""
    world = World(tmp_path)
    spread(world)
    world.land()
    return world


def test_each_date_has_a_commit_of_its_own_in_order(world: World) -> None:
    before, n = world.rows(), world.ledger.n
    results = by_date(world, [*SPREAD, "2026-02-10"])
    assert [result.dates for result in results] == [("2026-02-02",), ("2026-02-03",), ("2026-02-04",), ()]
    assert [result.status for result in results] == ["landed", "landed", "landed", "empty"]
    assert world.ledger.n == n + 3
    assert world.rows() == before
    assert requests(world) == []
    assert len(by_date(world)) == 3, "a finished one begins anew"
    assert by_date(world, []) == []


def test_dates_that_exchange_rows_have_one_commit_together(tmp_path: Path) -> None:
    plain = World(tmp_path, PLAIN)
    events(plain, [0, 1], [0, 1, 0], [0, 0], [0])
    plain.land()
    event = changed(plain, EVENT)
    with pytest.raises(ConfigError, match="these dates and 2026-02-03 exchange rows"):
        by_date(event, [DAYS[1]])
    assert requests(event) == []
    results = by_date(event, DAYS[1:])
    assert [result.dates for result in results] == [DAYS[1:4], DAYS[4:]]
    moved = dates_of(event)
    assert (moved[1], moved[3]) == (DAYS[2], DAYS[3])
    assert [result.dates for result in by_date(event, DAYS[1:])] == [(dt,) for dt in DAYS[1:]], "now none moves"


def test_extended_dates_are_in_the_parts(tmp_path: Path) -> None:
    plain = World(tmp_path, PLAIN)
    events(plain, [0, 1], [0, 0], [0], [0])
    plain.land()
    event = changed(plain, EVENT)
    assert [result.dates for result in by_date(event, [DAYS[1]], extend=True)] == [DAYS[1:3]]


@pytest.mark.parametrize("number", range(4))
def test_a_job_that_is_killed_anywhere_is_gone_on_with(world: World, rng: random.Random, number: int) -> None:
    before, n, kills = world.rows(), world.ledger.n, 0
    results: list[RunResult] = []
    while True:
        try:
            with killed(rng.randrange(25), lambda: rng.random() < 0.5):
                for result in rebuild_by_date(world.table, SPREAD, in_process, carry_out, extend=False):
                    results.append(result)  # noqa: PERF402 - kept if the next one dies
            break
        except Died:
            kills += 1
            world.check()
            if rng.random() < 0.3:
                vacuum(world.table)
            if not requests(world) and world.ledger.n == n + 3:
                break  # it died after all was done
    assert world.ledger.n == n + 3, f"after {kills} kills no date was made twice"
    assert {dt for result in results for dt in result.dates} <= {*SPREAD}
    assert world.rows() == before
    assert requests(world) == []


def test_a_part_that_others_overtake_is_planned_again(world: World) -> None:
    left = [TRIES - 1]

    def overtaken(table: TopicTable, plan: RunPlan) -> RunResult:
        if left[0] and plan.dates == ("2026-02-03",):
            left[0] -= 1
            other = plan_rebuild(table, ["2026-02-03"])
            write_plan(table, other)
            assert run(table, other, in_process).status == "landed"
        return run(table, plan, in_process)

    n = world.ledger.n
    results = list(rebuild_by_date(world.table, SPREAD, in_process, overtaken, extend=False))
    assert [result.status for result in results] == ["landed"] * 3
    assert world.ledger.n == n + 3 + TRIES - 1
    left[0] = TRIES
    n = world.ledger.n
    with pytest.raises(PublishError, match=rf"replaced files of 2026-02-03 {TRIES} times; run it again"):
        list(rebuild_by_date(world.table, SPREAD, in_process, overtaken, extend=False))
    assert world.ledger.n == n + 1 + TRIES
    assert [result.dates for result in by_date(world)] == [("2026-02-03",), ("2026-02-04",)]
    world.check()


def test_two_jobs_of_one_request_share_its_parts(world: World) -> None:
    n, other = world.ledger.n, list[RunResult]()

    def beside(table: TopicTable, plan: RunPlan) -> RunResult:
        if plan.dates == ("2026-02-03",) and not other:
            other.append(run(table, plan, in_process))
            other.extend(by_date(world))
        return run(table, plan, in_process)

    list(rebuild_by_date(world.table, SPREAD, in_process, beside, extend=False))
    assert world.ledger.n == n + 3
    assert requests(world) == []
    world.check()


def test_a_request_that_nobody_touched_for_two_days_begins_anew(world: World) -> None:
    def dies(_table: TopicTable, plan: RunPlan) -> RunResult:
        if plan.dates == ("2026-02-03",):
            raise Died
        return run(world.table, plan, in_process)

    def died() -> None:
        with pytest.raises(Died):
            list(rebuild_by_date(world.table, SPREAD, in_process, dies, extend=False))

    died()
    [key] = requests(world)
    rebuild = DatewiseRebuild.load(world.table.store, key)
    assert (rebuild.done, [part.dates for part in rebuild.left]) == (1, [("2026-02-03",), ("2026-02-04",)])
    with as_of(world, RUN_LIMIT + HOUR):
        died()
        assert DatewiseRebuild.load(world.table.store, key).done == 1, "it has made the first date again"
        assert world.ledger.n == 3
    with as_of(world, RUN_LIMIT - HOUR):
        assert [result.dates for result in by_date(world)] == [("2026-02-03",), ("2026-02-04",)]
    died()
    for age, there in ((REPORTS_KEPT - HOUR, True), (REPORTS_KEPT + HOUR, False)):
        with as_of(world, age):
            vacuum(world.table)
            assert bool(requests(world)) is there


def test_other_code_that_moves_rows_is_refused_and_the_dates_before_stay(world: World) -> None:
    def other(table: TopicTable, plan: RunPlan) -> RunResult:
        if plan.dates == ("2026-02-03",):
            plan = plan.model_copy(update={"dates": ("2026-02-03", "2026-02-04")})
        return run(table, plan, in_process)

    n = world.ledger.n
    with pytest.raises(ContinuityError, match=r"hold .* rows, and made again"):
        list(rebuild_by_date(world.table, SPREAD, in_process, other, extend=False))
    assert world.ledger.n == n + 1
    world.check()


def test_the_command(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    def said(*options: str) -> tuple[int, list[str], str]:
        code = run_job("rebuild", ["--topics", str(world.topics_file), "--topic", "orders", *options], Inline())
        printed = capsys.readouterr()
        return code, printed.out.splitlines(), printed.err

    days = ["--from", SPREAD[0], "--to", SPREAD[-1]]
    code, lines, _ = said(*days, "--exchange", "by-date")
    assert (code, [json.loads(line)["dates"] for line in lines]) == (0, [[dt] for dt in SPREAD])
    code, lines, _ = said(*days, "--exchange", "together")
    assert (code, [json.loads(line)["dates"] for line in lines]) == (0, [[*SPREAD]])
    for refused in (["--all"], [*days, "--report", "0" * 16]):
        code, _, error = said(*refused, "--exchange", "by-date")
        assert (code, "--exchange: by-date needs --from and --to" in error) == (2, True)
    n = world.ledger.n
    assert said(*days, "--exchange", "by-date", "--dry-run")[0] == 0
    assert said(*days, "--exchange", "by-date", "--compare")[0] == 0
    assert world.ledger.n == n
    world.check()


def test_a_stored_plan_by_date(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    def said(*options: str) -> tuple[int, list[dict[str, Any]], str]:
        words = ["--topics", str(world.topics_file), "--topic", "orders", *options]
        code = run_job("run_plan", words, Inline())
        printed = capsys.readouterr()
        return code, [json.loads(line) for line in printed.out.splitlines()], printed.err

    plan, preview = previewed(world)
    key, n, before = world.table.keys.attempt(plan.attempt), world.ledger.n, world.rows()
    by = ["--plan", key, "--exchange", "by-date"]
    code, lines, _ = said(*by)
    assert (code, [line["dates"] for line in lines]) == (0, [*([dt] for dt in SPREAD), [*SPREAD]])
    assert (lines[-1]["attempt"], lines[-1]["status"], lines[-1]["ledger_n"]) == (plan.attempt, "landed", n + 3)
    assert lines[-1]["rows"] == sum(line["rows"] for line in lines[:-1]) == len(before)
    assert world.rows() == before
    assert said(*by)[:2] == (0, lines[-1:]), "it is not carried out twice"
    assert world.ledger.n == n + 3
    outcome = outcome_of(world.table, preview, landed_parts(world.table, plan))
    assert [(change.dt, change.before == change.after) for change in outcome.dates] == [(dt, True) for dt in SPREAD]
    assert (outcome.status, outcome.rows) == ("landed", len(before))
    for refused, why in (
        (["--plan", key, "--exchange", "by-date", "--compare"], "is no option of --compare"),
        (["--plan", world.table.keys.attempt(world.ledger.landed[0]), "--exchange", "by-date"], "that makes dates"),
    ):
        code, _, error = said(*refused)
        assert (code, why in error) == (2, True), error


def test_a_stored_plan_by_date_is_gone_on_with_after_a_kill(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(_table: TopicTable, part: RunPlan) -> RunResult:
        if part.dates == (SPREAD[1],):
            raise Died
        return run(world.table, part, in_process)

    plan, preview = previewed(world)
    with pytest.raises(Died):
        carry_out_by_date(world.table, plan, in_process, dies)
    n = world.ledger.n
    failed = outcome_of(world.table, preview, landed_parts(world.table, plan))
    assert (failed.status, [change.dt for change in failed.dates]) == ("failed", [SPREAD[0]])
    with monkeypatch.context() as patched:
        patched.setattr("tidemark_spark.rebuild.by_date.code_digest", lambda: "other")
        with pytest.raises(PublishError, match="or the code have changed since the plan"):
            carry_out_by_date(world.table, plan, in_process, carry_out)
    result = carry_out_by_date(world.table, plan, in_process, carry_out)
    assert (result.status, result.dates, world.ledger.n) == ("landed", SPREAD, n + 2)
    assert result.rows == len(world.rows()), "with those of the part that the killed job has landed"
    world.check()


def previewed(world: World) -> tuple[RunPlan, Preview]:
    """A stored plan of all dates, and its preview."""
    plan = plan_rebuild(world.table, SPREAD)
    found = preview(world.table, plan, None, {})
    return plan, found.model_copy(update={"attempt": plan.attempt, "plan": write_plan(world.table, plan)})
