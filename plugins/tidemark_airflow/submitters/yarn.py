"""Runs spark-submit in cluster mode on YARN: the driver is an application, watched through the ResourceManager.

Its REST API is asked (``/ws/v1/cluster``). It restarts, and a stand-by redirects to the active one. So while it does
not answer, an application counts as running, for :data:`SILENCE_SECONDS`.

An application has a tag that is constant across all tries of a task with the same arguments. So a try finds an
application whose submission got no answer, and waits for it instead of submitting another one.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import httpx
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowException
from typing_extensions import override

from tidemark.errors import ConfigError
from tidemark_airflow import settings
from tidemark_airflow.submitters.base import JobState, JobStatus, KeptId, RemoteSubmitter, SparkJob
from tidemark_airflow.submitters.child_processes import descendants, end
from tidemark_airflow.submitters.environment import job_environment
from tidemark_airflow.submitters.template import program_url, remote_arguments, spark_settings

ADDRESS: Final = "yarn_resourcemanager_webapp_address"
"""The provider's name for the address in the connection's extra."""

_PYTHON: Final = "spark.yarn.appMasterEnv.PYSPARK_PYTHON"
_DRIVER_PYTHON: Final = "spark.yarn.appMasterEnv.PYSPARK_DRIVER_PYTHON"

SILENCE_SECONDS: Final = 600.0
_READ_SECONDS: Final = 30.0
_KILL_SECONDS: Final = 1.5  # Airflow gives a killed task 5 in all
_RUNS: Final = frozenset({"NEW", "NEW_SAVING", "SUBMITTED", "ACCEPTED", "RUNNING"})

log = logging.getLogger(__name__)


class YarnApplication(RemoteSubmitter):
    """Its template has settings of Spark. The nodes give the job its environment and credentials."""

    def __init__(self, conn_id: str, place: str | None = None) -> None:
        super().__init__(conn_id, place)
        self._settings = spark_settings() if place is None else {}
        self._manager = _resource_manager(conn_id)
        self._tag = ""

    @override
    def run(self, job: SparkJob, kept: KeptId) -> str | None:
        self._tag = _tag(job)
        return super().run(job, kept)

    @override
    def submit(self, job: SparkJob) -> str:
        tag = _tag(job)
        before = self._manager.tagged(tag)
        if live := _live(before):
            log.info("application %s of an earlier try: %s", live[0].id, live[0].state)
            return live[0].id
        failed: AirflowException | None = None
        try:
            self._spark_submit(job, tag)
        except AirflowException as error:
            failed = error  # YARN may have accepted it nevertheless
        submitted = _new(self._manager.tagged(tag), before)
        if not submitted:
            raise failed or AirflowException(f"{job.program}: YARN has no application tagged {tag} after spark-submit")
        # The spark-submit of a dead worker may have submitted meanwhile: the first application stays.
        chosen, *others = _live(submitted) or submitted[-1:]
        for other in others:
            self._manager.kill(other.id)
        return chosen.id

    @override
    def status(self, job_id: str) -> JobStatus:
        application = self._manager.application(job_id)
        if application is None:
            return JobStatus(JobState.UNKNOWN, "the ResourceManager has no such application")
        self.page = application.page or self.page
        return JobStatus(application.job_state, application.words)

    @override
    def cancel(self, job_id: str) -> None:
        self._manager.kill(job_id)

    @override
    def link(self, job_id: str) -> str:
        """YARN's page of the application, until YARN has a tracking URL."""
        return self._manager.page(job_id)

    @override
    def end(self) -> None:
        """End the application, or spark-submit with the applications that it has submitted."""
        if self._running is not None or not self._tag:
            super().end()
            return
        end(descendants())
        for application in _live(self._manager.tagged(self._tag)):
            self.cancel(application.id)

    def _spark_submit(self, job: SparkJob, tag: str) -> None:
        ours = {"spark.yarn.tags": tag, "spark.yarn.submit.waitAppCompletion": "false"}
        # Without it, Spark takes the path of Python from the worker's environment, where it differs.
        driver = {_DRIVER_PYTHON: self._settings[_PYTHON]} if _PYTHON in self._settings else {}
        hook = SparkSubmitHook(
            conf={**driver, **self._settings, **ours},
            conn_id=self.conn_id,
            name=job.name,
            application_args=remote_arguments(job.arguments),
            spark_binary=settings.spark_submit(),
        )
        hook.submit(program_url(job.program), env=job_environment(settings.spark_environment()))


def _tag(job: SparkJob) -> str:
    """The job's tag, in lower case, like YARN's own tags."""
    digest = hashlib.sha256("\0".join((job.task, job.program, *job.arguments)).encode()).hexdigest()
    return f"tidemark-{digest[:40]}"


def _live(applications: Sequence[Application]) -> list[Application]:
    return [application for application in applications if application.job_state is JobState.RUNS]


def _new(applications: Sequence[Application], before: Sequence[Application]) -> list[Application]:
    known = {application.id for application in before}
    return [application for application in applications if application.id not in known]


def _resource_manager(conn_id: str) -> ResourceManager:
    connection = BaseHook.get_connection(conn_id)
    extra: dict[str, Any] = connection.extra_dejson
    address = str(extra.get(ADDRESS) or "").strip()
    if not address:
        rule = f"must have {ADDRESS} in its extra for cluster mode on YARN, such as http://rm:8088"
        raise ConfigError("Airflow's connections", [(conn_id, rule)])
    if kerberos := [name for name in ("keytab", "principal") if extra.get(name)]:
        rule = f"cannot have {', '.join(kerberos)} for cluster mode on YARN: its REST API is not asked with Kerberos"
        raise ConfigError("Airflow's connections", [(conn_id, rule)])
    return ResourceManager(address, user=connection.login or os.environ.get("HADOOP_USER_NAME", ""))


class Application(NamedTuple):
    """An application's status in YARN; ``page`` is its tracking URL."""

    id: str
    state: str
    final: str
    diagnostics: str
    page: str
    started: int

    @property
    def job_state(self) -> JobState:
        """The job's state from YARN's two states."""
        if self.state in _RUNS:
            return JobState.RUNS
        return JobState.SUCCEEDED if (self.state, self.final) == ("FINISHED", "SUCCEEDED") else JobState.FAILED

    @property
    def words(self) -> str:
        """YARN's own description."""
        return f"{self.state}: {self.final}: {self.diagnostics}"


class ResourceManager:
    """The REST API at ``address``, as ``user`` if it asks for one (Hadoop's simple authentication)."""

    def __init__(self, address: str, *, user: str = "") -> None:
        self._url = (address if "://" in address else f"http://{address}").rstrip("/")
        self._client = httpx.Client(
            base_url=f"{self._url}/ws/v1/cluster/",
            params={"user.name": user} if user else {},
            headers={"Accept": "application/json"},
            timeout=_READ_SECONDS,
            follow_redirects=True,
        )
        self._answered = time.monotonic()

    def page(self, app_id: str) -> str:
        """Address of its page about an application."""
        return f"{self._url}/cluster/app/{app_id}"

    def tagged(self, tag: str) -> list[Application]:
        """All applications with a tag that it remembers, in the order of submission.

        Raises:
            AirflowException: it does not answer.
        """
        document = self._get("apps", applicationTags=tag)
        listed = (document["apps"] or {}).get("app", []) if document else []
        return sorted(
            (_application(fields) for fields in listed), key=lambda application: (application.started, application.id)
        )

    def application(self, app_id: str) -> Application | None:
        """The application with this id, or None.

        Raises:
            AirflowException: it has not answered for :data:`SILENCE_SECONDS`.
        """
        try:
            document = self._get(f"apps/{app_id}")
        except AirflowException as error:
            if time.monotonic() - self._answered > SILENCE_SECONDS:
                raise
            return Application(app_id, "RUNNING", "UNDEFINED", str(error), "", 0)
        return _application(document["app"]) if document else None

    def kill(self, app_id: str) -> None:
        """Have an application killed. Raises AirflowException if that was not accepted."""
        try:
            answer = self._client.put(f"apps/{app_id}/state", json={"state": "KILLED"}, timeout=_KILL_SECONDS)
            answer.raise_for_status()
        except httpx.HTTPError as error:
            raise AirflowException(f"application {app_id} was not killed: {error}") from error

    def _get(self, path: str, **query: str) -> dict[str, Any] | None:
        """A document, or None if it does not exist."""
        try:
            # Before it has read its stored state, it answers without knowing any application.
            info = self._client.get("info").raise_for_status().json()
            if info["clusterInfo"]["haState"] == "INITIALIZING":
                raise AirflowException(f"the ResourceManager at {self._url} starts")
            answer = self._client.get(path, params=query)
            document: dict[str, Any] | None = None
            if answer.status_code != httpx.codes.NOT_FOUND:
                document = answer.raise_for_status().json()
        except (httpx.HTTPError, ValueError, KeyError) as error:
            raise AirflowException(f"the ResourceManager at {self._url} does not answer: {error}") from error
        self._answered = time.monotonic()
        return document


def _application(fields: dict[str, Any]) -> Application:
    return Application(
        id=str(fields["id"]),
        state=str(fields["state"]),
        final=str(fields["finalStatus"]),
        diagnostics=str(fields.get("diagnostics") or "").strip(),
        page=str(fields.get("trackingUrl") or ""),
        started=int(fields.get("startedTime") or 0),
    )
