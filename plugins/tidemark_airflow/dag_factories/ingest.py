"""The DAG of a topic: waits for watermarks and plans, converts and publishes, and starts again."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from airflow.sdk import DAG

from tidemark.formats.table.partitioning import names_of
from tidemark.topics import Deployment, Listed, TopicSettings
from tidemark_airflow import settings
from tidemark_airflow.assets.events import Assets, assets_of
from tidemark_airflow.configuration import flag
from tidemark_airflow.dag_factories import task_defaults
from tidemark_airflow.operators.spark_job import RunPlanOperator
from tidemark_airflow.sensors.watermark import WatermarkSensor

_BEFORE_OTHERS = 10


def dag_id(topic: TopicSettings | Listed) -> str:
    """``tidemark_ingest__<cluster>__<topic>``, or ``tidemark_ingest-<digest>`` if that is too long or ambiguous.

    The first form is unique, since its first ``__`` after the prefix ends the cluster's name; the second has 128 bits
    of a digest, and no name of the first form begins like it. Rights by topic are rights to its DAG.
    """
    name = f"tidemark_ingest__{topic.cluster}__{topic.topic}"
    if len(name) <= task_defaults.LONGEST_DAG_ID and "__" not in topic.cluster and not topic.cluster.endswith("_"):
        return name
    return task_defaults.digest_id("tidemark_ingest", f"{topic.cluster}/{topic.topic}")


def ingest_dags(deployment: Deployment, wanted: str | None = None) -> list[DAG]:
    """The DAGs of all topics, in a stable order, or of one topic if its id is ``wanted``."""
    paused = flag("starts_paused")
    if wanted is not None:
        topics = [deployment.topics[at] for at, listed in enumerate(deployment.listed) if dag_id(listed) == wanted]
        return [_ingest_dag(deployment, topic, paused=paused) for topic in topics]
    with _no_collection():
        return [_ingest_dag(deployment, topic, paused=paused) for topic in settings.in_order(deployment)]


@contextmanager
def _no_collection() -> Iterator[None]:
    """Make objects that all stay: Python's collector would search them again and again, a fifth of the time."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _ingest_dag(deployment: Deployment, topic: TopicSettings, *, paused: bool) -> DAG:
    """The DAG of ``topic``. It has one run at a time, which waits in its first task until there is something new."""
    assets = assets_of(deployment, topic)
    with DAG(
        dag_id=dag_id(topic),
        schedule="@continuous",
        **task_defaults.CONTINUOUS,
        is_paused_upon_creation=paused,
        default_args={
            **task_defaults.DEFAULT_ARGS,
            "owner": topic.owner,
            # One incident reports a topic that is late, however many runs fail meanwhile.
            "on_failure_callback": None,
            # If workers are scarce, landing comes before upkeep.
            "priority_weight": _BEFORE_OTHERS,
        },
        tags=["tidemark", "ingest", f"cluster:{topic.cluster}"[:100]],
        dag_display_name=f"ingest {topic.cluster}/{topic.topic}"[:250],
        description=f"{topic.cluster}/{topic.topic} to table {topic.table}",
        doc_md=_doc(deployment, topic, assets),
    ) as dag:
        name: dict[str, Any] = {"cluster": topic.cluster, "topic": topic.topic}
        # A topic may be quiet for any time: no timeout, not even the common one of all tasks.
        planned = WatermarkSensor(
            task_id="wait_and_plan",
            task_display_name="wait for watermarks, plan",
            doc_md="Deferred until watermarks are ahead of the ledger; then writes the plan of this run.",
            execution_timeout=None,
            # On a busy scheduler a resumed task loses tries without any failure (apache/airflow#72716).
            retries=10,
            retry_delay=timedelta(seconds=1),
            max_retry_delay=timedelta(minutes=1),
            **name,
        )
        RunPlanOperator(
            task_id="convert_and_publish",
            task_display_name="convert, publish",
            doc_md="Spark executes the plan and commits once; then asset events are sent for each changed date.",
            planned=planned.output,
            outlets=list(assets),
            execution_timeout=task_defaults.CONVERT_TIMEOUT,
            **name,
        )
    return dag


def _doc(deployment: Deployment, topic: TopicSettings, assets: Assets) -> str:
    rows, final = assets
    return f"""\
Lands `{topic.cluster}/{topic.topic}` in `{deployment.lake_store}/{deployment.table_keys(topic).root}`,
partitioned by {", ".join(f"`{column}`" for column in names_of(topic.partition_by))}, in {topic.time_zone}.

| task | what it does | when it is red |
| --- | --- | --- |
| `wait_and_plan` | deferred until watermarks are ahead of the ledger; then plans | the raw store was unreadable for \
{topic.freshness}, or raw objects or the ledger do not parse |
| `convert_and_publish` | Spark executes the plan and commits once; then the task sends asset events | the job failed, \
its log is this task's; or the table was changed by hand |

Two assets inform other DAGs, with a partition key per date: `{rows.name}` when rows have changed, `{final.name}`
when a date is closed.

A partition with a gap waits, and the others continue. The continuity page and an alert name the missing offsets.
After a failed run the next one waits before it begins: 30 s, and twice as long each time, up to 15 minutes.
"""
