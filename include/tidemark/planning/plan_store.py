"""A plan as an object in the store: written before anything else of its run, and never changed."""

from __future__ import annotations

from tidemark.errors import NotFound
from tidemark.formats.table.plan import RunPlan
from tidemark.store import put_once
from tidemark.table.delta_table import TopicTable


def write_plan(table: TopicTable, plan: RunPlan) -> str:
    """Write ``plan`` under its attempt and return the key.

    Raises:
        PreconditionFailed: the attempt has another plan already; read that one.
    """
    key = table.keys.attempt(plan.attempt)
    put_once(table.store, key, plan.to_bytes())
    return key


def read_plan(table: TopicTable, key: str) -> RunPlan:
    """The plan under ``key``. Raises NotFound, or FormatError for an object that is not a plan."""
    return RunPlan.load(table.store, key)


def find_plan(table: TopicTable, attempt: int) -> RunPlan | None:
    """The plan of ``attempt``, or None."""
    try:
        return read_plan(table, table.keys.attempt(attempt))
    except NotFound:
        return None
