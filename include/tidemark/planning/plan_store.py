"""A plan as an object in the store: written before anything else of its run, and never changed."""

from __future__ import annotations

from tidemark.errors import NotFound
from tidemark.formats.plan import RunPlan
from tidemark.store import put_once
from tidemark.table.delta_table import Lake


def write_plan(lake: Lake, plan: RunPlan) -> str:
    """Write ``plan`` under its attempt and return the key.

    Raises:
        PreconditionFailed: the attempt has another plan already; read that one.
    """
    key = lake.keys.attempt(plan.attempt)
    put_once(lake.store, key, plan.to_bytes())
    return key


def read_plan(lake: Lake, key: str) -> RunPlan:
    """The plan under ``key``. Raises NotFound, or FormatError for an object that is no plan."""
    return RunPlan.load(lake.store, key)


def find_plan(lake: Lake, attempt: int) -> RunPlan | None:
    """The plan that was written for ``attempt``, if one was."""
    try:
        return read_plan(lake, lake.keys.attempt(attempt))
    except NotFound:
        return None
