"""The wait after failed runs of a DAG that starts itself over and over.

Airflow's own ``max_consecutive_failed_dag_runs`` pauses a DAG until a person unpauses it; a DAG that waits longer each
time continues by itself when the cause is gone.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from tidemark.retry import Backoff

if TYPE_CHECKING:
    from airflow.sdk import Context

BACKOFF = Backoff(30.0, 900.0)
_MOST_RUNS = 6
"""Failed runs in a row after which the wait is the longest: 30 s doubled five times is more than 15 minutes."""


def delay(failures: int) -> timedelta:
    """The wait after this number of failed runs in a row: none, 30 s, 1 min, 2 min ... 15 min."""
    return timedelta(seconds=BACKOFF.after(failures) if failures else 0)


def failed_in_a_row(context: Context) -> int:
    """Number of failed runs of this DAG directly before this run; at most six are counted."""
    ti = context["ti"]
    logical_date = context["dag_run"].logical_date
    failures = 0
    while failures < _MOST_RUNS and logical_date is not None:
        before = ti.get_previous_ti(logical_date=logical_date)
        if before is None or ti.get_dagrun_state(ti.dag_id, before.run_id) != "failed":
            break
        failures += 1
        logical_date = before.logical_date
    return failures


def wait_until(context: Context) -> datetime:
    """Time at which this run may begin, counted from its own start, so that a retry does not wait again."""
    run = context["dag_run"]
    began = run.start_date or run.run_after
    return began + delay(failed_in_a_row(context))
