"""Masks written by hand, and the pass that takes their rows out of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.spark.world import World, in_process
from tests.support.raw_builder import EPOCH
from tidemark.formats.keys import ControlKeys
from tidemark.formats.raw.masks import Mask, MaskIndex, read_index
from tidemark.formats.table.plan import RunResult
from tidemark.planning import write_plan
from tidemark.planning.maintenance.erasure import plan_erasure
from tidemark.store import put_over
from tidemark_spark.run.driver import run

APPROVAL = "a" * 64


def write_masks(world: World, *offsets: int, partition: int = 0, epoch: int = EPOCH, incarnation: int = 0) -> MaskIndex:
    """Erase ``offsets`` of a partition in raw; returns the index afterwards."""
    return mask_all(world, {epoch: offsets}, partition=partition, incarnation=incarnation)


def mask_all(
    world: World, offsets: Mapping[int, Sequence[int]], *, partition: int = 0, incarnation: int = 0
) -> MaskIndex:
    """Erase ``offsets``, by leader epoch, of a partition in raw."""
    keys, store = world.raw.keys(partition, incarnation), world.raw.store
    control: ControlKeys = keys.control
    mask = Mask.of(keys.cluster, keys.place, partition, offsets, [APPROVAL])
    put_over(store, mask.key(control), mask.to_bytes())
    version = read_index(store, control, keys.place)
    index = version.value if version else MaskIndex(cluster=keys.cluster, place=keys.place)
    index = index.also([mask])
    put_over(store, control.mask_index(keys.place), index.to_bytes())
    return index


def take_out(world: World) -> RunResult:
    """Plan the erasure, carry it out, and check that all is exact."""
    plan = plan_erasure(world.table)
    assert plan is not None
    write_plan(world.table, plan)
    result = run(world.table, plan, in_process)
    world.check()
    return result
