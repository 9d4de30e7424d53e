"""The DAG that makes dates of a table again from raw segments: a form, a dry run by default, then the same job.

Airflow checks each field of the form by its schema; what concerns several fields, or the store, the first tasks
check. Nothing of the form ever becomes part of a command but as a checked date or a topic of the topics file.
"""

from __future__ import annotations

import logging
from datetime import date, timedelta
from typing import Any, TypedDict

from airflow.sdk import DAG, Param, get_current_context
from airflow.sdk.exceptions import AirflowFailException

from tidemark.errors import FormatError
from tidemark.topics import Deployment
from tidemark_airflow import settings, tasks
from tidemark_airflow.spark import ConvertOperator
from tidemark_airflow.tasks import Planned, task_of_promises

DAG_ID = "tidemark_backfill"
MOST_DAYS = 366

log = logging.getLogger(__name__)


class Request(TypedDict):
    """The form, checked."""

    cluster: str
    topic: str
    dates: list[str]
    dry_run: bool
    limit: int


class Preview(Planned):
    """A plan, and what it would do: files that are replaced, for the dates that have rows."""

    dates: list[str]
    files_replaced: int


def check_request(deployment: Deployment, form: dict[str, Any]) -> Request:
    """The form as a request.

    Raises:
        ValueError: naming the field and the rule that it breaks.
    """
    cluster, _, name = str(form["topic"]).partition("/")
    try:
        topic = deployment.topic(name, cluster)
    except FormatError as error:
        raise ValueError(f"topic: {error}") from error
    first, last = _date("from_date", form["from_date"]), _date("to_date", form["to_date"])
    if last < first:
        raise ValueError(f"to_date: {last} is before from_date, {first}")
    days = (last - first).days + 1
    if days > MOST_DAYS:
        raise ValueError(f"to_date: {days} days are more than {MOST_DAYS}; make them in several runs")
    return {
        "cluster": topic.cluster,
        "topic": topic.topic,
        "dates": [str(first + timedelta(days=n)) for n in range(days)],
        "dry_run": form["dry_run"] is not False,
        "limit": int(form["max_gib"]) << 30,
    }


def _date(field: str, value: object) -> date:
    try:
        return date.fromisoformat(str(value))
    except ValueError as error:
        raise ValueError(f"{field}: {value!r} is no date such as 2026-01-31") from error


@task_of_promises(multiple_outputs=True)
def validate() -> Request:
    """Check the form as a whole."""
    try:
        return check_request(settings.deployment(), dict(get_current_context()["params"]))
    except ValueError as error:
        raise AirflowFailException(str(error)) from error


@task_of_promises(multiple_outputs=False)
def plan(request: Request) -> Preview:
    """Work out what the rebuild would read and replace. A dry run ends here; what comes after is skipped."""
    from tidemark.ledger import new_attempt
    from tidemark.planning import plan_rebuild, write_plan

    lake = settings.lake_of(request["cluster"], request["topic"])
    made = plan_rebuild(lake, request["dates"], attempt=new_attempt())
    size = sum(one.size for one in made.tasks)
    log.info("%s: %d dates, %d tasks, %d bytes to read", lake.url, len(made.dates), len(made.tasks), size)
    for name in made.removes:
        log.info("would replace %s", name)
    if size > request["limit"] and not request["dry_run"]:
        raise AirflowFailException(f"max_gib: {size} bytes are to be read, more than the {request['limit']} approved")
    skip = made.empty or request["dry_run"]
    return {
        "empty": skip,
        "attempt": str(made.attempt),
        "plan": "" if skip else write_plan(lake, made),
        "dates": list(made.dates),
        "tasks": len(made.tasks),
        "bytes": size,
        "files_replaced": len(made.removes),
    }


def backfill_dag(deployment: Deployment) -> DAG:
    """The DAG; it starts by its form alone."""
    topics = [f"{one.cluster}/{one.topic}" for one in settings.in_order(deployment)]
    with DAG(
        dag_id=DAG_ID,
        schedule=None,
        max_active_runs=4,
        catchup=False,
        default_args={**tasks.DEFAULT_ARGS, "owner": "tidemark"},
        tags=["tidemark", "backfill"],
        description="Makes dates of a table again from raw segments",
        doc_md=__doc__,
        params={
            "topic": Param(type="string", enum=topics, title="Topic", description="Cluster and topic."),
            "from_date": Param(type="string", format="date", title="From", description="The first date, inclusive."),
            "to_date": Param(type="string", format="date", title="To", description="The last date, inclusive."),
            "dry_run": Param(
                True, type="boolean", title="Dry run", description="Only show what would be read and replaced."
            ),
            "max_gib": Param(
                100, type="integer", minimum=1, title="Approved GiB", description="Refuse to read more than this."
            ),
        },
    ) as dag:
        request = validate()
        cluster, topic = request["cluster"], request["topic"]
        planned = plan(request)
        convert = ConvertOperator(
            task_id="convert",
            cluster=cluster,
            topic=topic,
            planned=planned,
            execution_timeout=tasks.CONVERT_TIMEOUT,
        )
        planned >> convert
    return dag
