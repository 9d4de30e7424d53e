"""Runs spark-submit: starts a driver for each job, as a child of the task.

Jobs without tasks for Spark run in the Python of Spark's environment instead, without a JVM.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from typing_extensions import override

from tidemark_airflow import settings
from tidemark_airflow.submitters import subprocesses
from tidemark_airflow.submitters.base import KeptId, SparkJob, Submitter
from tidemark_airflow.submitters.environment import job_environment
from tidemark_airflow.submitters.plain_python import PlainPython

_OPTIONS: Final = "SPARK_SUBMIT_OPTS"
_ONE_COMPILER: Final = "-XX:TieredStopAtLevel=1"
"""The driver's JVM only schedules, and its second compiler would cost more than it saves."""


class SparkSubmit(Submitter):
    """Spark's settings are the connection's; ``environment`` has further variables of the job."""

    def __init__(self, conn_id: str, environment: Mapping[str, str]) -> None:
        self._conn_id = conn_id
        self._environment = dict(environment)
        self._hook: SparkSubmitHook | None = None

    @override
    def run(self, job: SparkJob, kept: KeptId) -> str | None:
        if not job.needs_spark and (python := settings.python_of_spark()) is not None:
            return PlainPython(python, self._environment).run(job, kept)
        self._hook = SparkSubmitHook(
            conn_id=self._conn_id,
            name=job.name,
            application_args=list(job.arguments),
            spark_binary=settings.spark_submit(),
        )
        # Only through Popen: the hook adds ``env_vars`` to the whole environment of this process, with Airflow's keys.
        environment = job_environment(self._environment)
        # First, because the JVM applies the last of two options: the deployment's, here or in Spark's settings.
        environment[_OPTIONS] = f"{_ONE_COMPILER} {environment.get(_OPTIONS, '')}".rstrip()
        self._hook.submit(str(settings.spark_job(job.program)), env=environment)
        return None

    @override
    def end(self) -> None:
        """End all of the job's processes, since spark-submit alone would leave its driver behind."""
        started = subprocesses.descendants()
        try:
            if self._hook is not None:
                self._hook.on_kill()
        finally:
            subprocesses.end(started)
