"""A SparkApplication of the Kubernetes operator for Spark, with the hook of Airflow's cncf-kubernetes provider."""

from __future__ import annotations

from typing import Any, Final

from airflow.providers.cncf.kubernetes.hooks.kubernetes import KubernetesHook
from kubernetes.client.exceptions import ApiException
from typing_extensions import override

from tidemark_airflow.submitters.base import JobState, JobStatus, RemoteSubmitter, SparkJob
from tidemark_airflow.submitters.template import mapping, program_url, remote_arguments, request_of

_KIND: Final = {"group": "sparkoperator.k8s.io", "version": "v1beta2", "plural": "sparkapplications"}
_FAILED: Final = {"FAILED", "SUBMISSION_FAILED", "FAILING", "INVALIDATING"}


class SparkApplication(RemoteSubmitter):
    """Its template is a SparkApplication with ``spec``. Its service account gives the credentials."""

    def __init__(self, conn_id: str, place: str | None = None) -> None:
        super().__init__(conn_id, place)
        self._request: dict[str, Any] = {}
        self._hook = KubernetesHook(conn_id=conn_id)
        if place is None:
            self._request = request_of("spec")
            named = mapping(self._request, "metadata").get("namespace")
            self.place = str(named or self._hook.get_namespace() or "default")

    @override
    def submit(self, job: SparkJob) -> str:
        name = f"tidemark-{job.token[:32]}"  # constant within a try, so that it is created once
        self._request.update(apiVersion=f"{_KIND['group']}/{_KIND['version']}", kind="SparkApplication")
        mapping(self._request, "metadata").update(name=name, namespace=self.place)
        mapping(self._request, "metadata", "annotations")["tidemark/name"] = job.name
        # Airflow does the retries.
        mapping(self._request, "spec").update(
            mainApplicationFile=program_url(job.program),
            arguments=remote_arguments(job.arguments),
            restartPolicy={"type": "Never"},
        )
        try:
            self._hook.create_custom_object(**_KIND, body=self._request, namespace=self.place)
        except ApiException as error:
            if error.status != 409:
                raise
        return name

    @override
    def status(self, job_id: str) -> JobStatus:
        try:
            application: Any = self._hook.get_custom_object(**_KIND, name=job_id, namespace=self.place)
        except ApiException as error:
            if error.status != 404:
                raise
            return JobStatus(JobState.UNKNOWN, "there is no such SparkApplication")
        state = application.get("status", {}).get("applicationState", {})
        words = f"{state.get('state', 'NEW')}: {state.get('errorMessage', '')}"
        if state.get("state") == "COMPLETED":
            return JobStatus(JobState.SUCCEEDED, words)
        return JobStatus(JobState.FAILED if state.get("state") in _FAILED else JobState.RUNS, words)

    @override
    def cancel(self, job_id: str) -> None:
        self._hook.delete_custom_object(**_KIND, name=job_id, namespace=self.place)

    @override
    def link(self, job_id: str) -> str:
        return ""
