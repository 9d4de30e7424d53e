"""A plan in the form that one task passes to the next: a small mapping, which Airflow stores as XCom."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from tidemark.formats.table.plan import RunPlan
    from tidemark.table.delta_table import TopicTable


class Planned(TypedDict):
    """A plan as other tasks see it. ``attempt`` is a string, since browsers round numbers above 2^53.

    ``plan`` is its key below the lake's store, or empty if there is nothing to carry out, and then ``empty`` is true.
    ``tasks`` counts Spark's tasks, ``bytes`` the bytes of raw that they read.
    """

    empty: bool
    attempt: str
    plan: str
    tasks: int
    bytes: int


def write_planned(table: TopicTable, made: RunPlan) -> Planned:
    """Write the plan ``made`` where the job will look for it, unless it is empty."""
    from tidemark.planning import write_plan

    return {
        "empty": made.empty,
        "attempt": str(made.attempt),
        "plan": "" if made.empty else write_plan(table, made),
        "tasks": len(made.tasks),
        "bytes": sum(task.size for task in made.tasks),
    }
