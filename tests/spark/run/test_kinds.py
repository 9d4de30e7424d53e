"""What holds for runs of each kind: a retry lands once, an overtaken or old plan is stale, a kill costs nothing.

A new kind has a plan in ``PLANNED``, and nothing else here.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, get_args

import pytest
from deltalake import DeltaTable

from tests.spark.compaction.test_compaction import FEW, piecemeal
from tests.spark.convert.test_parsers import replayable
from tests.spark.erasing.masked import erase
from tests.spark.run.test_runs import LOST, spread
from tests.spark.world import World, in_process, never
from tidemark.formats.table.ledger import new_attempt
from tidemark.formats.table.plan import (
    RUN_LIMIT,
    QuarantineTask,
    RunKind,
    RunPlan,
    SegmentTask,
    TableFileTask,
)
from tidemark.planning import plan_compaction, plan_rebuild, plan_repair, plan_replay, write_plan
from tidemark.planning.common import following
from tidemark.planning.maintenance.erasure import plan_erasure
from tidemark.planning.maintenance.retention import plan_retain
from tidemark_spark.kinds.registry import KINDS, kind_of
from tidemark_spark.model import Job
from tidemark_spark.run import driver
from tidemark_spark.run.driver import run

Planned = tuple[World, RunPlan]


def ingest(folder: Path) -> Planned:
    world = World(folder)
    spread(world)
    world.raw.publish()
    return world, world.plan()


def landed(folder: Path, *settings: str) -> World:
    world = World(folder, *settings)
    spread(world)
    world.land()
    return world


def rebuild(folder: Path) -> Planned:
    world = landed(folder)
    return world, plan_rebuild(world.table, ["2026-02-02"])


def replay(folder: Path) -> Planned:
    _, mended = replayable(folder)
    return mended, plan_replay(mended.table)


def compact(folder: Path) -> Planned:
    world = World(folder)
    piecemeal(world)
    return world, plan_compaction(world.table, files=FEW)


def retain(folder: Path) -> Planned:
    world = landed(folder, "retention: {table: 30d, apply: true}")
    plan, past = plan_retain(world.table, world.table.store.now() + timedelta(days=3650))
    assert past
    return world, plan


def fold(folder: Path) -> Planned:
    world = World(folder)
    piecemeal(world)
    return world, RunPlan(**following(world.table, world.ledger), kind="fold", folds=world.ledger.landed[:2])


def repair(folder: Path) -> Planned:
    world = landed(folder)
    DeltaTable(world.table.url).delete("kafka_offset = 3")
    return world, plan_repair(world.table)


def schema(folder: Path) -> Planned:
    world = landed(folder)
    return world, RunPlan(**following(world.table, world.ledger), kind="schema")


def erasure(folder: Path) -> Planned:
    world = landed(folder)
    erase(world, [1, 4])
    plan = plan_erasure(world.table)
    assert plan is not None
    return world, plan


PLANNED: Final[dict[RunKind, Callable[[Path], Planned]]] = {
    "ingest": ingest,
    "rebuild": rebuild,
    "replay": replay,
    "compact": compact,
    "retain": retain,
    "fold": fold,
    "repair": repair,
    "schema": schema,
    "erase": erasure,
}
READS: Final[dict[str, set[type]]] = {
    "replay": {QuarantineTask},
    "compact": {TableFileTask},
    "erase": {TableFileTask, QuarantineTask},
}


@pytest.fixture(params=PLANNED)
def planned(request: pytest.FixtureRequest, tmp_path: Path) -> Planned:
    world, plan = PLANNED[request.param](tmp_path)
    if request.param != "ingest":
        write_plan(world.table, plan)
    return world, plan


def die(*_: object) -> Any:
    raise KeyboardInterrupt


def test_each_kind_has_a_class() -> None:
    assert set(KINDS) == set(PLANNED) == set(get_args(RunKind))


def test_its_tasks_tell_what_they_read_and_are_stored_as_ever(planned: Planned) -> None:
    _, plan = planned
    kinds = {type(task) for task in plan.tasks}
    assert kinds <= READS.get(plan.kind, {SegmentTask})
    assert bool(kinds) == (plan.kind not in {"retain", "fold", "schema"})
    again = RunPlan.from_bytes(plan.to_bytes(), "plan")
    assert (again, again.to_bytes()) == (plan, plan.to_bytes())


def test_a_retry_lands_once(planned: Planned) -> None:
    world, plan = planned
    first = run(world.table, plan, in_process)
    assert first.status == "landed"
    after = world.ledger
    assert after.kind == plan.kind
    assert run(world.table, plan, never) == first
    world.table.store.delete(world.table.keys.result(plan.attempt))
    assert run(world.table, plan, never) == first.model_copy(update=LOST), "its evidence tells of it"
    assert world.ledger == after
    world.check()


def test_kills_between_any_steps_cost_nothing(planned: Planned, monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other, of the same attempt: each dies a step later than the one before."""
    world, plan = planned
    n = world.ledger.n
    for step, commits in (("_write_evidence", 0), ("publish", 0), ("update_markers", 1), ("_report", 1)):
        with monkeypatch.context() as patch:
            patch.setattr(driver, step, die)
            with pytest.raises(KeyboardInterrupt):
                run(world.table, plan, in_process)
        assert world.ledger.n == n + commits, step
    result = run(world.table, plan, never)
    assert (result.status, result.ledger_n, world.ledger.n) == ("landed", n + 1, n + 1)
    world.check()


def test_too_old_a_plan_is_a_stale_result(planned: Planned) -> None:
    world, plan = planned
    n = world.ledger.n
    old = plan.model_copy(update={"created_at": plan.created_at - 2 * RUN_LIMIT})
    assert run(world.table, old, never).status == "stale"
    assert world.ledger.n == n


def test_of_two_attempts_at_the_same_one_lands(planned: Planned) -> None:
    """Columns alone may be added by both."""
    world, plan = planned
    other = plan.model_copy(update={"attempt": new_attempt()})
    write_plan(world.table, other)
    assert run(world.table, plan, in_process).status == "landed"
    after = world.ledger
    assert run(world.table, other, in_process).status == ("landed" if plan.kind == "schema" else "stale")
    assert plan.kind == "schema" or world.ledger == after
    world.check()


def test_a_run_without_tasks_refuses_some(tmp_path: Path) -> None:
    world, plan = ingest(tmp_path)
    wrong = plan.model_copy(update={"kind": "schema"})
    with pytest.raises(Exception, match="has tasks, and a run of its kind has none"):
        kind_of(world.table, wrong).work(Job.of(world.table, wrong), wrong.tasks[0])
