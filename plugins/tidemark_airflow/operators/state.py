"""The tasks that bring a topic's state table to the newest commit of its table, and that publish state tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowSkipException

from tidemark_airflow import settings
from tidemark_airflow.assets.events import publish_states
from tidemark_airflow.operators.spark_job import JobOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

    from tidemark.table.delta_table import TopicTable


class StateOperator(JobOperator):
    """Sends an asset event of the state table's newest commit; skipped if the topic has none.

    The job of the backfill has brought the state up to date. If it could not, this task runs the job again.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(job="state", **kwargs)

    def execute(self, context: Context) -> None:
        """Submit and wait if the state is behind; then publish.

        Raises:
            AirflowSkipException: the topic has no state table.
            AirflowException: there is no connection, or it names no host, or the job failed.
        """
        assert self.topic is not None
        table = settings.topic_table(self.cluster, self.topic)
        if table.topic.state is None:
            raise AirflowSkipException(f"{self.cluster}/{self.topic} has no state table")
        if not _is_current(table):
            self.submit(context)
        self.after_job(context)

    def after_job(self, context: Context) -> None:
        """Publish."""
        deployment = settings.deployment()
        publish_states(context, deployment, [deployment.topic(str(self.topic), self.cluster)])


def _is_current(table: TopicTable) -> bool:
    """True if the state is that of the table's newest commit."""
    from tidemark.table.delta_table import committed_ledger
    from tidemark.table.state_table import StateTable

    state = StateTable.open(table).committed()
    return state is not None and state.of.n == committed_ledger(table).n


class PublishStatesOperator(BaseOperator):
    """Sends asset events of the newest commits of state tables that have none yet.

    A topic that cannot be read does not keep others from their events: its error is in the log, and the next run sends
    its event.

    :param groups: clusters, each with names of topics: a :class:`tidemark_airflow.dag_factories.maintenance.Group` each
        (templated)
    """

    template_fields: Sequence[str] = ("groups",)

    def __init__(self, *, groups: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.groups = groups

    def execute(self, context: Context) -> None:
        """Publish. Raises ConfigError if the topics file is wrong."""
        deployment = settings.deployment()
        # None if the task that makes the groups has failed.
        named = [(topic, of["cluster"]) for of in self.groups or () for topic in of["topics"]]
        publish_states(context, deployment, [deployment.topic(topic, cluster) for topic, cluster in named])
