"""Spark Connect: runs the job in the Python of Spark's environment, as a client of a server.

The job is a fork of a process that has imported its libraries, see :mod:`tidemark_airflow.submitters.forked`.
"""

from __future__ import annotations

from collections.abc import Mapping

from airflow.providers.apache.spark.hooks.spark_connect import SparkConnectHook
from typing_extensions import override

from tidemark_airflow import settings
from tidemark_airflow.submitters import subprocesses
from tidemark_airflow.submitters.base import KeptId, SparkJob, Submitter
from tidemark_airflow.submitters.environment import job_environment
from tidemark_airflow.submitters.forked import ForkedJob


class SparkConnect(Submitter):
    """The server is the connection's; the job gets its token through the environment, hidden from other users."""

    def __init__(self, conn_id: str, environment: Mapping[str, str]) -> None:
        self._conn_id = conn_id
        self._environment = dict(environment)
        self._job: ForkedJob | None = None

    @override
    def run(self, job: SparkJob, kept: KeptId) -> str | None:
        own = {**self._environment, "SPARK_REMOTE": SparkConnectHook(self._conn_id).get_connection_url()}
        environment = job_environment(own)
        common = {name: value for name, value in environment.items() if name not in own}
        self._job = ForkedJob(settings.spark_python(), common)
        subprocesses.run_forked(self._job, job.program, job.arguments, environment)
        return None

    @override
    def end(self) -> None:
        if self._job is not None:
            self._job.end()
