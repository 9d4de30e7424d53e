"""Spark Connect: runs the job in the Python of Spark's environment, as a child of the task and a client of a server."""

from __future__ import annotations

from collections.abc import Mapping

from airflow.providers.apache.spark.hooks.spark_connect import SparkConnectHook
from typing_extensions import override

from tidemark_airflow import settings
from tidemark_airflow.submitters import subprocesses
from tidemark_airflow.submitters.base import KeptId, SparkJob, Submitter
from tidemark_airflow.submitters.environment import job_environment


class SparkConnect(Submitter):
    """The server is the connection's; the job gets its token through the environment, hidden from other users."""

    def __init__(self, conn_id: str, environment: Mapping[str, str]) -> None:
        self._conn_id = conn_id
        self._environment = dict(environment)

    @override
    def run(self, job: SparkJob, kept: KeptId) -> str | None:
        server = {"SPARK_REMOTE": SparkConnectHook(self._conn_id).get_connection_url()}
        environment = job_environment({**self._environment, **server})
        subprocesses.run_job("Spark Connect", settings.spark_python(), job.program, job.arguments, environment)
        return None

    @override
    def end(self) -> None:
        subprocesses.end(subprocesses.descendants())
