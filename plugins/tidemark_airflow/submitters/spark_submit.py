"""spark-submit: a driver of its own for each job, as a child of the task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from typing_extensions import override

from tidemark_airflow import settings
from tidemark_airflow.submitters import subprocesses
from tidemark_airflow.submitters.base import KeptId, SparkJob, Submitter
from tidemark_airflow.submitters.environment import job_environment

_OPTIONS: Final = "SPARK_SUBMIT_OPTS"
_ONE_COMPILER: Final = "-XX:TieredStopAtLevel=1"
"""The driver's JVM only schedules, and does not get back what its second compiler takes."""


class SparkSubmit(Submitter):
    """All about Spark is from the connection; ``environment`` are variables of the job beside those of all jobs."""

    def __init__(self, conn_id: str, environment: Mapping[str, str]) -> None:
        self._conn_id = conn_id
        self._environment = dict(environment)
        self._hook: SparkSubmitHook | None = None

    @override
    def run(self, job: SparkJob, kept: KeptId) -> None:
        self._hook = SparkSubmitHook(
            conn_id=self._conn_id,
            name=job.name,
            application_args=list(job.arguments),
            spark_binary=settings.spark_submit(),
        )
        # By Popen alone: what the hook gets as ``env_vars`` it adds to the whole environment of this process, which has
        # Airflow's keys, and hands that over.
        environment = job_environment(self._environment)
        # First: of two options, the JVM takes the last one, which are the deployment's, here or in Spark's settings.
        environment[_OPTIONS] = f"{_ONE_COMPILER} {environment.get(_OPTIONS, '')}".rstrip()
        self._hook.submit(str(settings.spark_job(job.program)), env=environment)

    @override
    def end(self) -> None:
        """End all of the job's processes, since spark-submit alone would leave its driver behind."""
        started = subprocesses.descendants()
        try:
            if self._hook is not None:
                self._hook.on_kill()
        finally:
            subprocesses.end(started)
