"""The task that brings a topic's state table to the newest commit of its table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowSkipException

from tidemark_airflow import settings
from tidemark_airflow.assets.events import publish_state
from tidemark_airflow.operators.spark_job import JobOperator

if TYPE_CHECKING:
    from airflow.sdk import Context


class StateOperator(JobOperator):
    """Has Spark bring the state table up to date, then sends an asset event of its commit; skipped if there is none."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(job="state.py", **kwargs)

    def execute(self, context: Context) -> None:
        """Submit and wait; then publish.

        Raises:
            AirflowSkipException: the topic has no state table.
            AirflowException: there is no connection, or it names no host, or the job failed.
        """
        table = settings.topic_table(self.cluster, self.topic)
        if table.topic.state is None:
            raise AirflowSkipException(f"{self.cluster}/{self.topic} has no state table")
        self.submit(context)
        self.after_job(context)

    def after_job(self, context: Context) -> None:
        """Publish."""
        publish_state(context, settings.topic_table(self.cluster, self.topic))
