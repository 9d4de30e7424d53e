"""Tidemark's jobs on Spark, run by the submitter of :mod:`tidemark_airflow.submitters.choice`."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from tidemark.errors import ConfigError
from tidemark_airflow import settings
from tidemark_airflow.assets.events import publish
from tidemark_airflow.links.operator_links import ContinuityLink, PlanLink, SparkLink, TableLink
from tidemark_airflow.operators.lineage import LineageMixin
from tidemark_airflow.submitters.base import (
    JobState,
    JobStatus,
    RemoteSubmitter,
    SparkJob,
    Submitter,
    TaskState,
    check_ended,
)
from tidemark_airflow.submitters.choice import submitter
from tidemark_airflow.submitters.waiting import JobEnded, JobTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context


class WaitedJob(TypedDict):
    """A job for which a task is deferred; ``lineage`` is the value of its ``--lineage``."""

    program: str
    job_id: str
    page: str
    lineage: str


class ClusterJobOperator(LineageMixin):
    """Has Spark run one of Tidemark's jobs for a cluster.

    Programs and paths come from :mod:`tidemark_airflow.settings`, and Spark from the connection. Nothing secret is on a
    command line: only names and paths, as separate arguments that no shell sees.

    :param job: the file's name in ``spark/jobs``
    :param cluster: the Kafka cluster's name in the topics file (templated)
    :param environment: returns further variables for the job's process, called before its start
    :param deletes_raw: True if the job uses the role that may delete raw
    """

    template_fields: Sequence[str] = ("cluster",)

    def __init__(
        self,
        *,
        job: str,
        cluster: str,
        environment: Callable[[], Mapping[str, str]] = dict,
        deletes_raw: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.job = job
        self.cluster = cluster
        self._more = environment
        self._deletes_raw = deletes_raw
        self._submitter: Submitter | None = None
        self._page = ""

    @property
    def job_page(self) -> str:
        """Address of the job's page or log; empty if there is none, or before it has started."""
        return self._submitter.page if self._submitter else self._page

    def submit(self, context: Context, *arguments: str) -> None:
        """Run the job with ``arguments`` beside the topics file and the cluster, and wait.

        While the job runs on a platform, the task is deferred: it returns to :meth:`resume`, which calls
        :meth:`after_job`. So whatever follows this call must be in that method.

        Raises:
            AirflowException: there is no connection, or it names no host, or the job failed.
            AirflowFailException: a setting that the job needs is missing.
        """
        where = ("--topics", str(settings.topics_file()), "--cluster", self.cluster)
        try:
            with (
                self.lineage_of_job() as lineage,
                submitter(self.job, self._more(), deletes_raw=self._deletes_raw) as self._submitter,
            ):
                given = (*where, "--lineage", lineage, *arguments)
                job = SparkJob(self.job, given, f"tidemark-{self._subject()}", _token(context), _task(context))
                if (job_id := self._submitter.run(job, TaskState(context))) is not None:
                    self._wait(job_id, lineage)
        except ConfigError as error:
            raise AirflowFailException(str(error)) from error

    def _wait(self, job_id: str, lineage: str) -> None:
        assert isinstance(self._submitter, RemoteSubmitter)
        trigger = JobTrigger.of(self._submitter, job_id, self.execution_timeout)
        waited = WaitedJob(program=self.job, job_id=job_id, page=self.job_page, lineage=lineage)
        self.defer(trigger=trigger, method_name="resume", kwargs={"job": waited})

    def resume(self, context: Context, job: WaitedJob, event: JobEnded) -> Any:
        """Go on after the end of a ``job`` on a platform: forget its id, take its lineage, do the task's rest.

        Raises:
            AirflowException: the job failed, or the platform does not know it; the message has the platform's words.
        """
        self._page = event["page"] or job["page"]
        status = JobStatus(JobState(event["state"]), event["words"])
        self.lineage_of_ended_job(job["lineage"], succeeded=status.state is JobState.SUCCEEDED)
        check_ended(job["program"], job["job_id"], status, TaskState(context))
        self.log.info("%s, job %s: %s", job["program"], job["job_id"], status.words)
        return self.after_job(context)

    def after_job(self, context: Context) -> Any:
        """Do the rest of the task, once its job has succeeded; nothing by default. Its result is the task's."""

    def on_kill(self) -> None:
        """End the job: all of its processes, or its run on a platform."""
        if self._submitter is not None:
            self._submitter.end()

    def _subject(self) -> str:
        """The subject of the job, for its name."""
        return self.cluster


def _token(context: Context) -> str:
    """A token of 64 hexadecimal digits, constant within a try of a task."""
    ti = context.get("ti")  # none in a test of the operator alone; each try has another id
    return hashlib.sha256(str(ti.id if ti is not None else uuid.uuid4()).encode()).hexdigest()


def _task(context: Context) -> str:
    """An id of the task of a DAG's run, constant across its tries."""
    ti = context.get("ti")
    return "/".join(map(str, (ti.dag_id, ti.run_id, ti.task_id, ti.map_index))) if ti is not None else _token(context)


class JobOperator(ClusterJobOperator):
    """Has Spark run one of Tidemark's jobs for a topic.

    :param topic: the topic's name (templated)
    """

    template_fields: Sequence[str] = (*ClusterJobOperator.template_fields, "topic")

    def __init__(self, *, topic: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.topic = topic

    def submit(self, context: Context, *arguments: str) -> None:
        """Like :meth:`ClusterJobOperator.submit`, with the topic."""
        super().submit(context, "--topic", self.topic, *arguments)

    def _subject(self) -> str:
        return self.topic


class RunPlanOperator(JobOperator):
    """Has Spark carry out a plan, then sends asset events of the commits; skipped if there is neither.

    A retry submits the same plan, which lands once. The topic is the task's at run time, and the outlets are that
    topic's assets.

    :param planned: a :class:`tidemark_airflow.planned.Planned` (templated)
    """

    template_fields: Sequence[str] = (*JobOperator.template_fields, "planned")
    operator_extra_links = (ContinuityLink(), TableLink(), PlanLink(), SparkLink())

    def __init__(self, *, planned: Any, **kwargs: Any) -> None:
        super().__init__(job="run_plan.py", **kwargs)
        self.planned = planned

    def execute(self, context: Context) -> None:
        """Submit and wait; then publish.

        Raises:
            AirflowSkipException: the plan has nothing to do, and all commits are published.
            AirflowException: there is no connection, or it names no host, or the job failed.
            TableTampered: the table was restored to a version older than the published one.
        """
        if not self.planned["empty"]:
            self.submit(context, "--plan", self.planned["plan"])
        self.after_job(context)

    def after_job(self, context: Context) -> None:
        """Publish.

        Raises:
            AirflowSkipException: the plan has nothing to do, and all commits are published.
            TableTampered: the table was restored to a version older than the published one.
        """
        if not publish(context, settings.topic_table(self.cluster, self.topic), self.planned) and self.planned["empty"]:
            raise AirflowSkipException("the plan has nothing to do, and all is published")
