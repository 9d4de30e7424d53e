"""What the tasks of all DAGs share: how often they try, and for how long."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from airflow.sdk import task

from tidemark_airflow.notifications import notifiers

DEFAULT_ARGS: dict[str, Any] = {
    # The first at once or nearly so, for a hiccup; all over some five minutes, to outlast a short outage.
    "retries": 5,
    "retry_delay": timedelta(seconds=10),
    "retry_exponential_backoff": True,
    "max_retry_delay": timedelta(minutes=5),
    "execution_timeout": timedelta(hours=1),
    "on_failure_callback": notifiers.on_failure,
}
CONVERT_TIMEOUT = timedelta(hours=12)


def task_of_promises(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Airflow's ``@task``, untyped: tasks are called with promises of what they get, which no type can say."""
    decorate: Callable[[Callable[..., Any]], Any] = task(**options)
    return decorate
