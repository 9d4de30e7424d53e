"""Runs a job without Spark, in the Python of Spark's environment, as a child of the task."""

from __future__ import annotations

from collections.abc import Mapping

from typing_extensions import override

from tidemark_airflow.submitters import subprocesses
from tidemark_airflow.submitters.base import KeptId, SparkJob, Submitter
from tidemark_airflow.submitters.environment import job_environment


class PlainPython(Submitter):
    """``environment`` has further variables of the job."""

    def __init__(self, python: str, environment: Mapping[str, str]) -> None:
        self._python, self._environment = python, job_environment(environment)

    @override
    def run(self, job: SparkJob, kept: KeptId) -> str | None:
        subprocesses.run_job("without Spark", self._python, job.program, job.arguments, self._environment)
        return None

    @override
    def end(self) -> None:
        subprocesses.end(subprocesses.descendants())
