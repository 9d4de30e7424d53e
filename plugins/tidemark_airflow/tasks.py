"""What the tasks of all DAGs share: how often they try, and what a plan is called between them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypedDict

from airflow.sdk import task

from tidemark_airflow import alerts

if TYPE_CHECKING:
    from tidemark.runs import RunPlan
    from tidemark.table import Lake

DEFAULT_ARGS: dict[str, Any] = {
    # The first at once or nearly so, for a hiccup; all over some five minutes, to outlast a short outage.
    "retries": 5,
    "retry_delay": timedelta(seconds=10),
    "retry_exponential_backoff": True,
    "max_retry_delay": timedelta(minutes=5),
    "execution_timeout": timedelta(hours=1),
    "on_failure_callback": alerts.on_failure,
}
CONVERT_TIMEOUT = timedelta(hours=12)


class Planned(TypedDict):
    """A plan as other tasks see it. ``attempt`` is a string, for the browser rounds numbers above 2^53.

    ``plan`` is its key below the lake's store; "" if there is nothing to carry out, and then ``empty`` is true.
    ``tasks`` are Spark's, ``bytes`` those of raw that they read.
    """

    empty: bool
    attempt: str
    plan: str
    tasks: int
    bytes: int


def write_planned(lake: Lake, made: RunPlan) -> Planned:
    """Write ``made`` where the job will look for it, unless it is empty."""
    from tidemark.planning import write_plan

    return {
        "empty": made.empty,
        "attempt": str(made.attempt),
        "plan": "" if made.empty else write_plan(lake, made),
        "tasks": len(made.tasks),
        "bytes": sum(one.size for one in made.tasks),
    }


def task_of_promises(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Airflow's ``@task``, untyped: tasks are called with promises of what they get, which no type can say."""
    decorate: Callable[[Callable[..., Any]], Any] = task(**options)
    return decorate
