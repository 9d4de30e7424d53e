"""The pass over masks that are written by hand."""

from __future__ import annotations

from tests.spark.world import World, in_process
from tidemark.formats.table.plan import RunResult
from tidemark.planning import write_plan
from tidemark.planning.maintenance.erasure import plan_erasure
from tidemark_spark.run.driver import run


def take_out(world: World) -> RunResult:
    """Plan the erasure, carry it out, and check that all is exact."""
    plan = plan_erasure(world.table)
    assert plan is not None
    write_plan(world.table, plan)
    result = run(world.table, plan, in_process)
    world.check()
    return result
