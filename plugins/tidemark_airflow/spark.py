"""spark-submit for Tidemark's jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowException, AirflowNotFoundException, AirflowSkipException

from tidemark_airflow import settings
from tidemark_airflow.extra_links import ContinuityLink, PlanLink, SparkLink, TableLink
from tidemark_airflow.publishing import publish

if TYPE_CHECKING:
    from airflow.sdk import Context

CONNECTION = "spark_default"


class JobOperator(SparkSubmitOperator):
    """Has Spark run one of Tidemark's jobs for a topic.

    Programs and paths come from :mod:`tidemark_airflow.settings`, the master from the connection. The provider takes
    a missing connection for YARN; here it is an error. Nothing secret is on the command line: names and paths only,
    as separate arguments that no shell sees.

    :param job: the file's name in ``spark/jobs``
    :param cluster: the Kafka cluster's name in the topics file (templated)
    :param topic: the topic's name (templated)
    :param environment: variables for the job's process beside those that all jobs get
    """

    template_fields: Sequence[str] = (*SparkSubmitOperator.template_fields, "cluster", "topic")

    def __init__(
        self, *, job: str, cluster: str, topic: str, environment: Mapping[str, str] | None = None, **kwargs: Any
    ) -> None:
        super().__init__(
            conn_id=CONNECTION,
            application=str(settings.spark_job(job)),
            spark_binary=settings.spark_submit(),
            env_vars={**settings.spark_environment(), **(environment or {})},
            name=f"tidemark-{topic}",
            **kwargs,
        )
        self.cluster = cluster
        self.topic = topic

    def submit(self, context: Context, *arguments: str) -> None:
        """Run the job with ``arguments`` beside those that say which topic, and wait.

        Raises:
            AirflowException: there is no connection, or it names no master, or the job failed.
        """
        self._check_connection()
        self.application_args = [
            *("--topics", str(settings.topics_file())),
            *("--cluster", self.cluster, "--topic", self.topic),
            *arguments,
        ]
        super().execute(context)

    def _check_connection(self) -> None:
        try:
            host = BaseHook.get_connection(CONNECTION).host
        except AirflowNotFoundException as error:
            raise AirflowException(
                f"there is no connection {CONNECTION!r}, and without one the job would go to YARN: "
                f'create it, for example with conn_type "spark" and host "spark://master:7077" or "local[2]"'
            ) from error
        if not host:
            raise AirflowException(f"connection {CONNECTION!r} has no host: it must name Spark's master")


class ConvertOperator(JobOperator):
    """Has Spark carry out a plan, then sends asset events of what is committed; skipped if there is neither.

    A retry submits the same plan, which lands once. The topic is whatever the task is given at run time, and the
    outlets are that topic's assets.

    :param planned: a :class:`tidemark_airflow.tasks.Planned` (templated)
    """

    template_fields: Sequence[str] = (*JobOperator.template_fields, "planned")
    operator_extra_links = (ContinuityLink(), TableLink(), PlanLink(), SparkLink())

    def __init__(self, *, planned: Any, **kwargs: Any) -> None:
        super().__init__(job="convert.py", **kwargs)
        self.planned = planned

    def execute(self, context: Context) -> None:
        """Submit and wait; then publish.

        Raises:
            AirflowSkipException: the plan has nothing to do, and all is published.
            AirflowException: there is no connection, or it names no master, or the job failed.
            TableTampered: the table was restored to an older version than the one that was published.
        """
        if not self.planned["empty"]:
            self.submit(context, "--plan", self.planned["plan"])
        if not publish(context, settings.lake_of(self.cluster, self.topic), self.planned) and self.planned["empty"]:
            raise AirflowSkipException("the plan has nothing to do, and all is published")
