"""Common settings of all DAGs: their start, the length of their ids, and the retries and timeouts of their tasks."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import task

from tidemark_airflow.notifications import notifiers

DEFAULT_ARGS: dict[str, Any] = {
    # The first retry comes soon, for a hiccup; all together take some five minutes, to outlast a short outage.
    "retries": 5,
    "retry_delay": timedelta(seconds=10),
    "retry_exponential_backoff": True,
    "max_retry_delay": timedelta(minutes=5),
    "execution_timeout": timedelta(hours=1),
    "on_failure_callback": notifiers.on_failure,
}
CONVERT_TIMEOUT = timedelta(hours=12)

START = datetime(2024, 1, 1, tzinfo=UTC)
"""Any time in the past: without a start date, Airflow never starts a run."""

CONTINUOUS: dict[str, Any] = {
    "start_date": START,
    "max_active_runs": 1,
    "catchup": False,
    # Otherwise Airflow would pause the DAG for good; here the first task waits longer after each failed run.
    "max_consecutive_failed_dag_runs": 0,
}
"""Arguments of a continuous DAG: one run at a time, which waits in its first task while there is nothing to do."""

LONGEST_DAG_ID = 250


def digest_id(prefix: str, name: str) -> str:
    """The id of a DAG with a too long or ambiguous ``name``: 128 bits of its digest behind ``prefix``."""
    return f"{prefix}-{hashlib.sha256(name.encode()).hexdigest()[:32]}"


def task_of_promises(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Airflow's ``@task``, untyped: tasks are called with promises of their arguments, which types cannot express."""
    decorate: Callable[[Callable[..., Any]], Any] = task(**options)
    return decorate
