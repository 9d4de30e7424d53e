"""A group of topics as one DAG, to be measured beside a DAG for each: all that its members have lands in one task.

It wakes by its first member's watermarks. Only that member's asset events are sent.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG

from tidemark_airflow import settings
from tidemark_airflow.assets.events import assets_of, publish
from tidemark_airflow.operators.spark_job import JobOperator
from tidemark_airflow.sensors.watermark import WatermarkSensor

if TYPE_CHECKING:
    from airflow.sdk import Context


class GroupOperator(JobOperator):
    """Has one job carry out the first member's plan, then plan and convert the ``others``, one after the other.

    :param planned: a :class:`tidemark_airflow.dag_factories.Planned` of the first member (templated)
    :param others: names of the topics behind it
    """

    template_fields = (*JobOperator.template_fields, "planned")

    def __init__(self, *, planned: Any, others: list[str], **kwargs: Any) -> None:
        super().__init__(job="job.py", **kwargs)
        self.planned = planned
        self.others = others

    def execute(self, context: Context) -> None:
        """Submit and wait; then publish."""
        self.submit(context, "--plan", self.planned["plan"], "--others", *self.others)
        publish(context, settings.topic_table(self.cluster, self.topic), self.planned)


_deployment = settings.deployment()
_first, *_others = (_deployment.topic(name) for name in os.environ["TIDEMARK_BENCH_GROUP"].split(","))

with DAG(
    dag_id="group",
    schedule="@continuous",
    start_date=datetime(2024, 1, 1, tzinfo=UTC),
    max_active_runs=1,
    catchup=False,
) as dag:
    _name = {"cluster": _first.cluster, "topic": _first.topic}
    GroupOperator(
        task_id="convert_and_publish",
        # It tries again as the sensors of the topics' own DAGs do.
        planned=WatermarkSensor(task_id="wait_and_plan", retries=10, retry_delay=timedelta(seconds=1), **_name).output,
        others=[one.topic for one in _others],
        outlets=list(assets_of(_deployment, _first)),
        **_name,
    )
