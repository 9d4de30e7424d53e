"""The contract of submitters, and the common part of all platforms that give a job an id.

A job is a program of ``spark/jobs`` with arguments: names and paths only. However often it runs, it lands once, so a
submitter may start it again whenever it is not known to run.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from airflow.sdk.exceptions import AirflowException
from typing_extensions import override

if TYPE_CHECKING:
    from airflow.sdk import Context

_KEY: Final = "tidemark_job"

log = logging.getLogger(__name__)


class SparkJob(NamedTuple):
    """``program`` is the file's name; ``name`` is shown on pages.

    ``token`` is constant within a try of a task, ``task`` across all of its tries. ``needs_spark`` is False if the job
    has no task for Spark.
    """

    program: str
    arguments: tuple[str, ...]
    name: str
    token: str
    task: str
    needs_spark: bool = True


class KeptId:
    """The id of a task's job in Airflow's state of the task, kept for a retry; not at all in a test without a state."""

    def __init__(self, context: Context) -> None:
        self._store = context.get("task_state_store")

    def read(self) -> str | None:
        """The id, if an earlier try was interrupted while its job ran."""
        job_id = self._store.get(_KEY) if self._store is not None else None
        return job_id if isinstance(job_id, str) else None

    def write(self, job_id: str | None) -> None:
        """Keep the id; None once the job has ended."""
        if self._store is not None and job_id is None:
            self._store.delete(_KEY)
        elif self._store is not None:
            self._store.set(_KEY, job_id)


class Submitter(ABC):
    """Runs one job of a task. ``page`` is the address of the job's page or log, or empty."""

    page = ""

    @abstractmethod
    def run(self, job: SparkJob, kept: KeptId) -> str | None:
        """Run the job to its end, or start it on a platform, unless the job of an earlier try runs there.

        Returns the id of a job that runs on a platform, where :class:`tidemark_airflow.submitters.waiting.JobTrigger`
        waits for it; None if the job has ended.

        Raises:
            AirflowException: the job failed; the message has the platform's reason, if any.
            ConfigError: a setting that the job needs is missing.
        """

    @abstractmethod
    def end(self) -> None:
        """End the job of a killed task; called from a signal's handler, within Airflow's five seconds."""


class JobState(Enum):
    """The state of a job on a platform."""

    RUNS = "runs"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    UNKNOWN = "unknown"


class JobStatus(NamedTuple):
    """The state of a job, and the platform's own words for it."""

    state: JobState
    words: str


class RemoteSubmitter(Submitter):
    """Starts a job on a platform that gives it an id. The job survives the worker's death, and a retry waits for it."""

    def __init__(self, conn_id: str, place: str | None = None) -> None:
        """``place`` is where the job runs beside the connection, such as an application of EMR.

        None opens the submitter for starting jobs, and takes the place from the template. With a place it only asks
        about jobs, and needs no template: it may be in the triggerer.
        """
        self.conn_id = conn_id
        self.place = place or ""
        self._running: str | None = None

    @abstractmethod
    def submit(self, job: SparkJob) -> str:
        """Start the job, and return its id. A repeated ``token`` starts no second job."""

    @abstractmethod
    def status(self, job_id: str) -> JobStatus:
        """The job's status; UNKNOWN if the platform has no job with this id."""

    @abstractmethod
    def cancel(self, job_id: str) -> None:
        """End the job."""

    @abstractmethod
    def link(self, job_id: str) -> str:
        """Address of the job's page or log, or empty. It holds no secret, as Airflow stores it."""

    @override
    def run(self, job: SparkJob, kept: KeptId) -> str | None:
        if (job_id := self._found_again(kept)) is None:
            job_id = self.submit(job)
            kept.write(job_id)
        self._running = job_id
        self.page = self.link(job_id)
        log.info("job %s: %s", job_id, self.page or "no page")
        now = self.status(job_id)
        if now.state is JobState.RUNS:
            return job_id
        self._running = None
        check_ended(job.program, job_id, now, kept)
        return None

    @override
    def end(self) -> None:
        if self._running is not None:
            self.cancel(self._running)

    def _found_again(self, kept: KeptId) -> str | None:
        """The job of an interrupted try, if it runs or has succeeded."""
        job_id = kept.read()
        if job_id is None:
            return None
        now = self.status(job_id)
        if now.state in {JobState.RUNS, JobState.SUCCEEDED}:
            log.info("job %s of an earlier try: %s", job_id, now.words)
            return job_id
        log.warning("job %s of an earlier try: %s: submitted again", job_id, now.words)
        return None


def check_ended(program: str, job_id: str, status: JobStatus, kept: KeptId) -> None:
    """Forget the id of a job that has ended. Raises AirflowException unless the job has succeeded."""
    kept.write(None)
    if status.state is not JobState.SUCCEEDED:
        raise AirflowException(f"{program}, job {job_id}: {status.state.value}: {status.words}")
