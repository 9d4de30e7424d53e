"""Tidemark's jobs on Spark, where the connection ``spark_default`` says.

==================  ============================================================================================
connection's type   what runs the job
==================  ============================================================================================
``spark``           spark-submit: a driver of its own for each job
``spark_connect``   the same file in the Python of Spark's environment, as a client of a Spark Connect server
==================  ============================================================================================
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.providers.apache.spark.hooks.spark_connect import SparkConnectHook
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import BaseHook, Connection
from airflow.sdk.exceptions import AirflowException, AirflowNotFoundException, AirflowSkipException

from tidemark_airflow import children, settings
from tidemark_airflow.extra_links import ContinuityLink, PlanLink, SparkLink, TableLink
from tidemark_airflow.publishing import publish

if TYPE_CHECKING:
    from airflow.sdk import Context

CONNECTION = "spark_default"


class JobOperator(SparkSubmitOperator):
    """Has Spark run one of Tidemark's jobs for a topic.

    Programs and paths come from :mod:`tidemark_airflow.settings`, where Spark is from the connection. The provider
    takes a missing connection for YARN; here it is an error. Nothing secret is on a command line: names and paths only,
    as separate arguments that no shell sees. A Connect server's token goes to the job by its environment.

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
            AirflowException: there is no connection, or it names no host, or the job failed.
        """
        connection = _connection()
        self.application_args = [
            *("--topics", str(settings.topics_file())),
            *("--cluster", self.cluster, "--topic", self.topic),
            *arguments,
        ]
        if connection.conn_type == SparkConnectHook.conn_type:
            self._run_on_connect(self.application_args)
        else:
            super().execute(context)

    def on_kill(self) -> None:
        """End the job: all of its processes, since spark-submit alone would leave its driver behind."""
        started = children.descendants()
        try:
            if self._hook is not None:
                super().on_kill()
        finally:
            children.end(started)

    def _run_on_connect(self, arguments: Sequence[str]) -> None:
        """The environment is this process's without Airflow's own variables, which are none of the job's business."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW_")}
        server = {"SPARK_REMOTE": SparkConnectHook(CONNECTION).get_connection_url()}
        command = [settings.spark_python(), self.application, *arguments]
        self.log.info("Spark Connect: %s", shlex.join(command))
        children.run(Path(self.application).name, command, {**inherited, **(self.env_vars or {}), **server})


def _connection() -> Connection:
    try:
        found = BaseHook.get_connection(CONNECTION)
    except AirflowNotFoundException as error:
        raise AirflowException(
            f"there is no connection {CONNECTION!r}, and without one the job would go to YARN: create it, for example "
            f'with conn_type "spark" and host "spark://master:7077" or "local[2]", or with conn_type "spark_connect", '
            f'host "connect-server" and port 15002'
        ) from error
    if not found.host:
        raise AirflowException(f"connection {CONNECTION!r} has no host: it must name Spark's master or Connect server")
    return found


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
            AirflowException: there is no connection, or it names no host, or the job failed.
            TableTampered: the table was restored to an older version than the one that was published.
        """
        if not self.planned["empty"]:
            self.submit(context, "--plan", self.planned["plan"])
        if not publish(context, settings.lake_of(self.cluster, self.topic), self.planned) and self.planned["empty"]:
            raise AirflowSkipException("the plan has nothing to do, and all is published")
