"""The tasks that the DAGs share. Each reads what it needs from the store, so each may be killed and run again."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypedDict

from airflow.sdk import Asset, TriggerRule, get_current_context, task
from airflow.sdk.exceptions import AirflowSkipException

from tidemark.topics import Deployment, TopicSettings
from tidemark_airflow import alerts, settings
from tidemark_airflow.pending import Event

if TYPE_CHECKING:
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

log = logging.getLogger(__name__)


class Planned(TypedDict):
    """A plan as other tasks see it. ``attempt`` is a string, for the browser rounds numbers above 2^53."""

    empty: bool
    attempt: str
    plan: str


class PublishedTo(TypedDict):
    """The ledger up to which events were sent."""

    n: int
    attempt: str


def task_of_promises(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Airflow's ``@task``, untyped: tasks are called with promises of what they get, which no type can say."""
    decorate: Callable[[Callable[..., Any]], Any] = task(**options)
    return decorate


def asset_of(deployment: Deployment, topic: TopicSettings) -> Asset:
    """The topic's table, as other DAGs schedule on it; its events carry a partition key per date."""
    root = deployment.table_keys(topic).root
    return Asset(name=topic.table, uri=f"{deployment.lake_store}/{root}", group="tidemark")


@task_of_promises(multiple_outputs=False)
def plan(cluster: str, topic: str) -> Planned:
    """Decide what to land: from the ledger's offsets to the watermarks, as far as nothing holds a partition back."""
    from tidemark.ledger import new_attempt
    from tidemark.planning import plan_ingest, write_plan

    lake = settings.lake_of(cluster, topic)
    made = plan_ingest(lake, attempt=new_attempt())
    if made.empty:
        log.info("nothing to land after ledger %d", made.ledger_n)
        return {"empty": True, "attempt": str(made.attempt), "plan": ""}
    size = sum(one.size for one in made.tasks)
    log.info("after ledger %d: %d tasks, %d bytes", made.ledger_n, len(made.tasks), size)
    return {"empty": False, "attempt": str(made.attempt), "plan": write_plan(lake, made)}


def log_result(lake: Lake, planned: Planned) -> None:
    """Show what the job said of itself."""
    from tidemark.runs import RunResult

    if planned["empty"]:
        return
    key = lake.keys.result(int(planned["attempt"]))
    result = RunResult.from_bytes(lake.store.get(key).body, key)
    log.info("attempt %d: %s", result.attempt, result.model_dump_json(exclude={"format", "cluster", "topic", "table"}))


@task_of_promises(trigger_rule=TriggerRule.NONE_FAILED, multiple_outputs=False)
def publish(cluster: str, topic: str, planned: Planned) -> PublishedTo:
    """Send an asset event for each date that changed since the outbox pointer; at least once.

    Raises:
        AirflowSkipException: nothing was committed since then.
    """
    from tidemark.table import committed_ledger
    from tidemark_airflow.outbox import unpublished

    context = get_current_context()
    lake = settings.lake_of(cluster, topic)
    log_result(lake, planned)
    news = unpublished(lake, committed_ledger(lake))
    if news is None:
        raise AirflowSkipException("nothing was committed since the last event")
    asset = asset_of(lake.deployment, lake.topic)
    # Airflow sends the events of the outlets that a task has when it succeeds. A commit that changed no date is no
    # event, and which table a backfill is about is known only now.
    context["ti"].task.outlets = [asset] if news.dates else []
    event = context["outlet_events"][asset]
    event.add_partitions(list(news.dates))
    event.extra = {"cluster": cluster, "topic": topic, "ledger": news.n, "rows": news.rows}
    log.info("ledger %d: %d rows in all; dates changed: %s", news.n, news.rows, ", ".join(news.dates) or "none")
    return {"n": news.n, "attempt": str(news.attempt)}


@task_of_promises(trigger_rule=TriggerRule.NONE_FAILED)
def continuity(
    cluster: str, topic: str, planned: Planned, published: PublishedTo | None, event: dict[str, Any] | None = None
) -> None:
    """Move the outbox pointer past what was published; then tell a person of each new gap, and turn red."""
    from tidemark.table import committed_ledger
    from tidemark_airflow.continuity import settle, tell

    context = get_current_context()
    lake = settings.lake_of(cluster, topic)
    seen = Event.model_validate(event) if event else Event(status="advanced")
    settle(
        lake,
        n=published["n"] if published else None,
        attempt=int(published["attempt"]) if published else 0,
        settled=seen.settles if planned["empty"] else "",
    )
    run = f"{context['ti'].dag_id} {context['ti'].run_id}"
    tell(lake, committed_ledger(lake), seen.gaps, run, lambda subject, text: alerts.deliver(context, subject, text))
