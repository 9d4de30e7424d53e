"""The DAG of a topic: wait for watermarks, plan, convert, publish, name what is missing, and from the start again."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime

from airflow.sdk import DAG

from tidemark.topics import Deployment, TopicSettings
from tidemark_airflow import tasks
from tidemark_airflow.sensor import WatermarkSensor
from tidemark_airflow.spark import ConvertOperator

# A run that fails has tried for minutes, so this is a good part of a day, and not a loop that spins.
_FAILED_RUNS_UNTIL_PAUSE = 100
_LONGEST_DAG_ID = 250
# Any time in the past: without one, Airflow never starts a run.
_START = datetime(2024, 1, 1, tzinfo=UTC)


def dag_id(topic: TopicSettings) -> str:
    """``tidemark_ingest__<cluster>__<topic>``; a digest is added where that is too long or could be another topic's."""
    name = f"tidemark_ingest__{topic.cluster}__{topic.topic}"
    if len(name) <= _LONGEST_DAG_ID and "__" not in topic.cluster:
        return name
    digest = hashlib.sha256(f"{topic.cluster}/{topic.topic}".encode()).hexdigest()[:8]
    return f"{name[: _LONGEST_DAG_ID - 10]}__{digest}"


def ingest_dag(deployment: Deployment, topic: TopicSettings) -> DAG:
    """The DAG of ``topic``. It has one run at a time, which waits in its first task for as long as there is nothing."""
    with DAG(
        dag_id=dag_id(topic),
        schedule="@continuous",
        start_date=_START,
        max_active_runs=1,
        catchup=False,
        max_consecutive_failed_dag_runs=_FAILED_RUNS_UNTIL_PAUSE,
        default_args={**tasks.DEFAULT_ARGS, "owner": topic.owner},
        tags=["tidemark", "ingest", f"cluster:{topic.cluster}"[:100]],
        dag_display_name=f"ingest {topic.cluster}/{topic.topic}"[:250],
        description=f"{topic.cluster}/{topic.topic} to table {topic.table}",
        doc_md=_doc(deployment, topic),
    ) as dag:
        name = {"cluster": topic.cluster, "topic": topic.topic}
        # A topic may be quiet for as long as it likes: no timeout, not even the one that all tasks have.
        wait = WatermarkSensor(task_id="wait", execution_timeout=None, **name)
        planned = tasks.plan(**name)
        convert = ConvertOperator(task_id="convert", planned=planned, execution_timeout=tasks.CONVERT_TIMEOUT, **name)
        published = tasks.publish.override(outlets=[tasks.asset_of(deployment, topic)])(**name, planned=planned)
        told = tasks.continuity(**name, planned=planned, published=published, event=wait.output)
        wait >> planned >> convert >> published >> told
    return dag


def _doc(deployment: Deployment, topic: TopicSettings) -> str:
    return f"""\
Lands `{topic.cluster}/{topic.topic}` in `{deployment.lake_store}/{deployment.table_keys(topic).root}`,
partitioned by `dt` in {topic.time_zone}.

| task | what it does | when it is red |
| --- | --- | --- |
| `wait` | deferred until watermarks are ahead of the ledger | the raw store was unreadable for {topic.freshness} |
| `plan` | reads manifests and writes the plan of this run | raw objects or the ledger do not parse |
| `convert` | Spark carries out the plan and commits once | the job failed; its log is this task's |
| `publish` | asset events per changed date; skipped when there is nothing new | the table was changed by hand |
| `continuity` | tells of gaps, once each | **offsets are missing**: the message names them |

A partition with a gap waits; the others go on. Upload the missing segments or acknowledge the gap, and it goes on too.
"""
