"""Tidemark's jobs on Spark, where the connection ``spark_default`` says.

==================  ============================================================================================
connection's type   what runs the job
==================  ============================================================================================
``spark``           spark-submit: a driver of its own for each job
``spark_connect``   the same file in the Python of Spark's environment, as a client of a Spark Connect server
==================  ============================================================================================
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.providers.apache.spark.hooks.spark_connect import SparkConnectHook
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import BaseHook, Connection
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowNotFoundException,
    AirflowSkipException,
)

from tidemark.errors import ConfigError
from tidemark_airflow import settings
from tidemark_airflow.assets.events import publish
from tidemark_airflow.links.operator_links import ContinuityLink, PlanLink, SparkLink, TableLink
from tidemark_airflow.operators import subprocesses
from tidemark_airflow.operators.environment import job_environment
from tidemark_airflow.operators.job_connections import job_connections

if TYPE_CHECKING:
    from airflow.sdk import Context

CONNECTION = "spark_default"


class JobSubmitHook(SparkSubmitHook):
    """Starts spark-submit with no more than the environment of a job: the provider would hand over Airflow's own."""

    def submit(self, application: str = "", **kwargs: Any) -> str | None:
        """Run spark-submit and wait, as the provider does. Raises AirflowException if the job fails."""
        self._env = None  # else the provider adds it to a copy of this process's environment, and takes that
        found: str | None = super().submit(application, **{**kwargs, "env": job_environment(self._env_vars)})
        return found


class ClusterJobOperator(SparkSubmitOperator):
    """Has Spark run one of Tidemark's jobs for a cluster.

    Programs and paths come from :mod:`tidemark_airflow.settings`, where Spark is from the connection. The provider
    takes a missing connection for YARN; here it is an error. Nothing secret is on a command line: names and paths only,
    as separate arguments that no shell sees. A Connect server's token goes to the job by its environment.

    :param job: the file's name in ``spark/jobs``
    :param cluster: the Kafka cluster's name in the topics file (templated)
    :param environment: gives variables for the job's process beside those that all jobs get, when it is to start
    :param deletes_raw: whether the job comes to the store in the role that may delete raw
    """

    template_fields: Sequence[str] = (*SparkSubmitOperator.template_fields, "cluster")

    def __init__(
        self,
        *,
        job: str,
        cluster: str,
        environment: Callable[[], Mapping[str, str]] = dict,
        deletes_raw: bool = False,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("name", f"tidemark-{cluster}")
        super().__init__(
            conn_id=CONNECTION,
            application=str(settings.spark_job(job)),
            spark_binary=settings.spark_submit(),
            **kwargs,
        )
        self.cluster = cluster
        self._more = environment
        self._deletes_raw = deletes_raw
        self._environment: dict[str, str] = {}

    def submit(self, context: Context, *arguments: str) -> None:
        """Run the job with ``arguments`` beside the topics file and the cluster, and wait.

        Raises:
            AirflowException: there is no connection, or it names no host, or the job failed.
            AirflowFailException: the environment names a role whose credentials others would override.
        """
        connection = _connection()
        self.application_args = [
            *("--topics", str(settings.topics_file()), "--cluster", self.cluster),
            *arguments,
        ]
        try:
            environment = {**settings.spark_environment(), **self._more()}
            handed = job_connections(self.application, deletes_raw=self._deletes_raw)
            with handed as given:
                self._run(context, connection, {**environment, **given})
        except ConfigError as error:
            raise AirflowFailException(str(error)) from error

    def _run(self, context: Context, connection: Connection, environment: dict[str, str]) -> None:
        # An attribute of the hook alone: the operator's own ``env_vars`` is a field that Airflow stores and shows.
        self._environment = environment
        if connection.conn_type == SparkConnectHook.conn_type:
            self._run_on_connect(self.application_args or [])
        else:
            super().execute(context)

    def _get_hook(self) -> JobSubmitHook:
        """With what this operator sets; all else about Spark is from the connection."""
        return JobSubmitHook(
            conf=self.conf,
            conn_id=self._conn_id,
            name=self.name,
            application_args=self.application_args,
            env_vars=self._environment,
            spark_binary=self._spark_binary,
        )

    def on_kill(self) -> None:
        """End the job: all of its processes, since spark-submit alone would leave its driver behind."""
        started = subprocesses.descendants()
        try:
            if self._hook is not None:
                super().on_kill()
        finally:
            subprocesses.end(started)

    def _run_on_connect(self, arguments: Sequence[str]) -> None:
        server = {"SPARK_REMOTE": SparkConnectHook(CONNECTION).get_connection_url()}
        command = [settings.spark_python(), self.application, *arguments]
        self.log.info("Spark Connect: %s", shlex.join(command))
        subprocesses.run(Path(self.application).name, command, job_environment({**self._environment, **server}))


class JobOperator(ClusterJobOperator):
    """Has Spark run one of Tidemark's jobs for a topic.

    :param topic: the topic's name (templated)
    """

    template_fields: Sequence[str] = (*ClusterJobOperator.template_fields, "topic")

    def __init__(self, *, topic: str, **kwargs: Any) -> None:
        super().__init__(name=f"tidemark-{topic}", **kwargs)
        self.topic = topic

    def submit(self, context: Context, *arguments: str) -> None:
        """As of :class:`ClusterJobOperator`, with the topic."""
        super().submit(context, "--topic", self.topic, *arguments)


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


class RunPlanOperator(JobOperator):
    """Has Spark carry out a plan, then sends asset events of what is committed; skipped if there is neither.

    A retry submits the same plan, which lands once. The topic is whatever the task is given at run time, and the
    outlets are that topic's assets.

    :param planned: a :class:`tidemark_airflow.planned.Planned` (templated)
    """

    template_fields: Sequence[str] = (*JobOperator.template_fields, "planned")
    operator_extra_links = (ContinuityLink(), TableLink(), PlanLink(), SparkLink())

    def __init__(self, *, planned: Any, **kwargs: Any) -> None:
        super().__init__(job="run_plan.py", **kwargs)
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
        if not publish(context, settings.topic_table(self.cluster, self.topic), self.planned) and self.planned["empty"]:
            raise AirflowSkipException("the plan has nothing to do, and all is published")
