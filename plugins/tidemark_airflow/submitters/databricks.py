"""A one-time run of Databricks, submitted with the hook of Airflow's databricks provider."""

from __future__ import annotations

from airflow.providers.databricks.hooks.databricks import DatabricksHook
from typing_extensions import override

from tidemark_airflow.submitters.base import JobState, JobStatus, RemoteSubmitter, SparkJob
from tidemark_airflow.submitters.template import program_url, remote_arguments, request_of


class DatabricksRun(RemoteSubmitter):
    """Its template is the only task of a request ``runs/submit``: its cluster and libraries."""

    def __init__(self, conn_id: str, place: str | None = None) -> None:
        super().__init__(conn_id, place)
        self._task = request_of() if place is None else {}
        self._hook = DatabricksHook(databricks_conn_id=conn_id)

    @override
    def submit(self, job: SparkJob) -> str:
        program = {"python_file": program_url(job.program), "parameters": remote_arguments(job.arguments)}
        task = {"task_key": "tidemark", **self._task, "spark_python_task": program}
        request = {"run_name": job.name, "idempotency_token": job.token, "tasks": [task]}
        return str(self._hook.submit_run(request))

    @override
    def status(self, job_id: str) -> JobStatus:
        state = self._hook.get_run_state(int(job_id))
        words = f"{state.life_cycle_state}: {state.result_state}: {state.state_message}"
        if not state.is_terminal:
            return JobStatus(JobState.RUNS, words)
        return JobStatus(JobState.SUCCEEDED if state.is_successful else JobState.FAILED, words)

    @override
    def cancel(self, job_id: str) -> None:
        self._hook.cancel_run(int(job_id))

    @override
    def link(self, job_id: str) -> str:
        return self._hook.get_run_page_url(int(job_id))
