"""The DAG that lists tables in catalogs: after each commit, and every ten minutes. A task per cluster.

A catalog that does not answer makes the task red, and the watch reports it once. The tables do not wait for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from airflow.sdk import DAG, AssetAny, AssetOrTimeSchedule, CronTriggerTimetable

from tidemark.topics import Deployment
from tidemark_airflow import settings
from tidemark_airflow.assets.events import assets_of, state_asset
from tidemark_airflow.dag_factories import task_defaults
from tidemark_airflow.operators.spark_job import JobOperator

_DOES = "Lists each commit of the tables as a snapshot in the catalogs of the topics file."


def catalog_dags(deployment: Deployment) -> Iterator[DAG]:
    """``tidemark_catalogs``, if any topic has a catalog."""
    topics = [topic for topic in settings.in_order(deployment) if deployment.catalogs_of(topic)]
    if not topics:
        return
    with DAG(
        dag_id="tidemark_catalogs",
        schedule=AssetOrTimeSchedule(
            timetable=CronTriggerTimetable("*/10 * * * *", timezone="UTC"),
            assets=AssetAny(
                *(assets_of(deployment, topic).rows for topic in topics),
                *(state_asset(deployment, topic) for topic in topics if topic.state),
            ),
        ),
        start_date=task_defaults.START,
        catchup=False,
        max_active_runs=1,
        # The watch reports a catalog that fails, once.
        default_args={**task_defaults.DEFAULT_ARGS, "owner": "tidemark", "on_failure_callback": None, "retries": 1},
        tags=["tidemark", "catalogs"],
        description=_DOES,
        doc_md=f"{_DOES}\n\n{__doc__}",
    ) as dag:
        JobOperator.partial(
            task_id="mirror",
            job="mirror",
            map_index_template="{{ task.cluster }}",
            execution_timeout=timedelta(hours=1),
        ).expand_kwargs([{"cluster": cluster} for cluster in sorted({topic.cluster for topic in topics})])
    yield dag
