"""EMR Serverless, with the hook of Airflow's amazon provider. The job's execution role gives its credentials."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from airflow.providers.amazon.aws.hooks.emr import EmrServerlessHook
from typing_extensions import override

from tidemark_airflow.submitters.base import JobState, JobStatus, RemoteSubmitter, SparkJob
from tidemark_airflow.submitters.template import mapping, program_url, remote_arguments, request_of


class EmrServerless(RemoteSubmitter):
    """Its template is a request ``StartJobRun`` with ``applicationId`` and ``executionRoleArn``."""

    def __init__(self, conn_id: str, place: str | None = None) -> None:
        super().__init__(conn_id, place)
        self._request: dict[str, Any] = {}
        if place is None:
            self._request = request_of("applicationId", "executionRoleArn")
            self.place = str(self._request["applicationId"])
        self._client: Any = EmrServerlessHook(aws_conn_id=conn_id).conn

    @override
    def submit(self, job: SparkJob) -> str:
        mapping(self._request, "jobDriver", "sparkSubmit").update(
            entryPoint=program_url(job.program), entryPointArguments=remote_arguments(job.arguments)
        )
        # An application that has stopped starts by itself when a job arrives, unless its settings say otherwise.
        answer = self._client.start_job_run(**self._request, name=job.name, clientToken=job.token)
        return str(answer["jobRunId"])

    @override
    def status(self, job_id: str) -> JobStatus:
        try:
            run = self._client.get_job_run(applicationId=self.place, jobRunId=job_id)["jobRun"]
        except self._client.exceptions.ResourceNotFoundException as error:
            return JobStatus(JobState.UNKNOWN, str(error))
        words = f"{run['state']}: {run.get('stateDetails', '')}"
        if run["state"] in EmrServerlessHook.JOB_SUCCESS_STATES:
            return JobStatus(JobState.SUCCEEDED, words)
        if run["state"] in {"FAILED", "CANCELLED"}:
            return JobStatus(JobState.FAILED, words)
        return JobStatus(JobState.RUNS, words)  # a job that is being cancelled may still write

    @override
    def cancel(self, job_id: str) -> None:
        self._client.cancel_job_run(applicationId=self.place, jobRunId=job_id)

    @override
    def link(self, job_id: str) -> str:
        """The folder of the job's logs in S3, if the template has one: the job's own page needs a secret in its URL."""
        url: Any = self._request
        for name in ("configurationOverrides", "monitoringConfiguration", "s3MonitoringConfiguration", "logUri"):
            url = url.get(name) if isinstance(url, dict) else None
        if not isinstance(url, str) or not url.startswith("s3://"):
            return ""
        bucket, _, prefix = url.removeprefix("s3://").partition("/")
        parts = (prefix.strip("/"), "applications", self.place, "jobs", job_id)
        folder = "/".join(part for part in parts if part)
        return f"https://console.aws.amazon.com/s3/buckets/{quote(bucket)}?prefix={quote(folder)}/"
