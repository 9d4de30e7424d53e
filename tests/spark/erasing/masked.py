"""The pass over masks that are written by hand."""

from __future__ import annotations

from itertools import count
from typing import Any, Final

from tests.spark.world import World, in_process
from tests.support import erased
from tests.tidemark.erasure.asked import approve, asked
from tidemark.formats.table.plan import RunResult
from tidemark.planning import write_plan
from tidemark.planning.maintenance.erasure import plan_erasure
from tidemark_spark.run.driver import run

_NUMBERS: Final = count(1)


def erase(world: World, offsets: list[int], partition: int = 0, **more: Any) -> None:
    """Mask ``offsets`` for an approved request."""
    approval = approve(world.raw.store, asked([b"a"], number=next(_NUMBERS)))
    erased.erase(world.raw, offsets, partition, approval=approval, **more)


def take_out(world: World) -> RunResult:
    """Plan the erasure, carry it out, and check that all is exact."""
    plan = plan_erasure(world.table)
    assert plan is not None
    write_plan(world.table, plan)
    result = run(world.table, plan, in_process)
    world.check()
    return result
