"""Tidemark's jobs, run by the submitter of :mod:`tidemark_airflow.submitters.choice`, and the lineage of their tasks.

Airflow's OpenLineage provider asks an operator for its datasets and facets in a forked process. The store's clients do
not survive the fork, so the task fetches the job's lineage before it ends, and only the conversion is left for the
provider. A task that names no datasets would get those of its asset outlets, and ``<table>.final`` is not a dataset. So
a task with outlets always names some. Lineage never fails a task: its errors are logged.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypedDict

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException, TaskDeferred

from tidemark.errors import ConfigError
from tidemark.formats.raw.lineage import Dataset, JobLineage
from tidemark.jobs.options import OFF, TopicsOptions
from tidemark.jobs.registry import JOBS
from tidemark.openlineage import hand_over
from tidemark_airflow import settings
from tidemark_airflow.assets.events import publish
from tidemark_airflow.links.operator_links import ContinuityLink, PlanLink, SparkLink, TableLink
from tidemark_airflow.submitters.base import (
    JobState,
    JobStatus,
    KeptId,
    RemoteSubmitter,
    SparkJob,
    Submitter,
    check_ended,
)
from tidemark_airflow.submitters.choice import submitter
from tidemark_airflow.submitters.environment import environment_of
from tidemark_airflow.submitters.waiting import JobEnded, JobTrigger

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk import Context

    from tidemark.topics import Deployment


class WaitedJob(TypedDict):
    """A job for which a task is deferred; ``lineage`` is the value of its ``--lineage``."""

    program: str
    job_id: str
    page: str
    lineage: str


def enabled() -> bool:
    """True if the provider is installed and has a receiver of events."""
    try:
        from airflow.providers.openlineage import conf
    except ImportError:
        return False
    return not conf.is_disabled()


class JobOperator(BaseOperator):
    """Runs one of Tidemark's jobs; :mod:`tidemark.jobs.registry` has them, with their options.

    Programs and paths come from :mod:`tidemark_airflow.settings`, and Spark from the connection. Nothing secret is on a
    command line: only names and paths, as separate arguments that no shell sees.

    :param job: the job's name, such as ``vacuum``
    :param cluster: the Kafka cluster's name in the topics file (templated)
    :param topic: the topic's name; none for a job for a cluster (templated)
    :param options: further options of the job, by the names of its model's fields (templated)
    """

    template_fields: Sequence[str] = ("cluster", "topic", "options")
    tells_lineage = True
    """False for a class whose jobs write nothing."""
    _handed: JobLineage | None = None

    def __init__(
        self,
        *,
        job: str,
        cluster: str,
        topic: str | None = None,
        options: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.job = job
        self.cluster = cluster
        self.topic = topic
        self.options = options or {}
        self._submitter: Submitter | None = None
        self._page = ""

    @property
    def job_page(self) -> str:
        """Address of the job's page or log; empty if there is none, or before it has started."""
        return self._submitter.page if self._submitter else self._page

    def execute(self, context: Context) -> Any:
        """Run the job and wait, then do the rest of the task. Raises as :meth:`submit`."""
        self.submit(context)
        return self.after_job(context)

    def submit(self, context: Context, *, spark: bool = True, **options: Any) -> None:
        """Run the job with further ``options``, and wait. Without ``spark`` it is known to have no tasks.

        While the job runs on a platform, the task is deferred: it returns to :meth:`resume`, which calls
        :meth:`after_job`. So whatever follows this call must be in that method.

        Raises:
            AirflowException: there is no connection, or it names no host, or the job failed.
            AirflowFailException: an option is wrong, or a setting that the job needs is missing.
        """
        try:
            with self.lineage_of_job() as lineage:
                job = self._with_options(lineage, options)
                needs_spark = spark and job.needs_spark
                with submitter(job.program(), environment_of(job), deletes_raw=job.deletes_raw) as self._submitter:
                    words = tuple(job.arguments())
                    name = f"tidemark-{self._subject()}"
                    started = SparkJob(job.program(), words, name, _token(context), _task(context), needs_spark)
                    if (job_id := self._submitter.run(started, KeptId(context))) is not None:
                        self._wait(job_id, lineage)
        except ConfigError as error:
            raise AirflowFailException(str(error)) from error

    def _with_options(self, lineage: str, options: Mapping[str, Any]) -> TopicsOptions:
        kind = JOBS[self.job]
        assert issubclass(kind, TopicsOptions), "the others need no task"
        named = {} if self._named is None else {"topic": self.topic or tuple(self._named)}
        where = {"topics": settings.topics_file(), "cluster": self.cluster, "lineage": lineage}
        return kind.of(**where, **named, **self.options, **options)

    def _wait(self, job_id: str, lineage: str) -> None:
        assert isinstance(self._submitter, RemoteSubmitter)
        trigger = JobTrigger.of(self._submitter, job_id, self.execution_timeout)
        waited = WaitedJob(program=JOBS[self.job].program(), job_id=job_id, page=self.job_page, lineage=lineage)
        self.defer(trigger=trigger, method_name="resume", kwargs={"job": waited})

    def resume(self, context: Context, job: WaitedJob, event: JobEnded) -> Any:
        """Go on after the end of a ``job`` on a platform: forget its id, take its lineage, do the task's rest.

        Raises:
            AirflowException: the job failed, or the platform does not know it; the message has the platform's words.
        """
        self._page = event["page"] or job["page"]
        status = JobStatus(JobState(event["state"]), event["words"])
        self.lineage_of_ended_job(job["lineage"], succeeded=status.state is JobState.SUCCEEDED)
        check_ended(job["program"], job["job_id"], status, KeptId(context))
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
        return self.topic or self.cluster

    @contextmanager
    def lineage_of_job(self) -> Iterator[str]:
        """Value of the job's ``--lineage``. The job runs inside of the ``with``, at whose end its lineage is read.

        If the task is deferred there, the job goes on, and :meth:`lineage_of_ended_job` reads its lineage.
        """
        if not (self.tells_lineage and enabled()):
            yield OFF
            return
        self._handed = None
        place = hand_over.new_place()
        try:
            yield place
        except TaskDeferred:
            raise  # the job runs: see lineage_of_ended_job
        except BaseException:
            self._take(place, required=False)
            raise
        self._take(place, required=True)

    def lineage_of_ended_job(self, place: str, *, succeeded: bool) -> None:
        """Read the lineage of a job for which the task was deferred; ``place`` is the value of :meth:`lineage_of_job`.

        A job that ``succeeded`` must have left one.
        """
        if place != OFF:
            self._take(place, required=succeeded)

    def get_openlineage_facets_on_start(self) -> OperatorLineage[Any, Any]:
        """Lineage that the task is expected to have."""
        return self._answer(None, ended=False)

    def get_openlineage_facets_on_complete(self, _task_instance: Any) -> OperatorLineage[Any, Any]:
        """Lineage of the ended task."""
        return self._answer(self._handed, ended=True)

    def get_openlineage_facets_on_failure(self, _task_instance: Any) -> OperatorLineage[Any, Any]:
        """Lineage that the job left before it failed, such as an audit's findings, or else the expected lineage."""
        return self._answer(self._handed, ended=False)

    @property
    def _named(self) -> Sequence[str] | None:
        """The topics of the task; None for those of its cluster."""
        topic: str | None = getattr(self, "topic", None)
        topics: Sequence[str] | None = getattr(self, "topics", None)
        return topics if topic is None else [topic]

    def _take(self, place: str, *, required: bool) -> None:
        try:
            deployment = settings.deployment()
            self._handed = hand_over.read(deployment, self.cluster, place)
        except Exception:
            self.log.exception(
                "lineage: the job's lineage cannot be read; the event will not name the written datasets"
            )
            return
        if self._handed is not None:
            self._remove(deployment, place)
        elif required:
            self.log.error("lineage: the job left none, see its log; the event will not name the written datasets")

    def _remove(self, deployment: Deployment, place: str) -> None:
        try:
            hand_over.remove(deployment, self.cluster, place)
        except Exception:
            self.log.exception("lineage: the job's lineage cannot be removed; a vacuum will remove it")

    def _answer(self, handed: JobLineage | None, *, ended: bool) -> OperatorLineage[Any, Any]:
        lineage = handed or JobLineage(inputs=(), outputs=())
        if self.tells_lineage and not (lineage.inputs or lineage.outputs) and (self.outlets or not ended):
            lineage = self._expected().model_copy(update={"run": lineage.run})
        return _converted(lineage)

    def _expected(self) -> JobLineage:
        """Lineage from the topics file, or if that is wrong, from the assets of the task's tables."""
        from tidemark.openlineage import naming
        from tidemark.openlineage.hand_over import datasets_of_job

        try:
            deployment = settings.deployment()
            topics = deployment.topics_of(self.cluster)
            if self._named is not None:
                topics = [deployment.topic(topic, self.cluster) for topic in self._named]
            return datasets_of_job(self.job, deployment, topics)
        except Exception:
            self.log.exception("lineage: the topics file does not say what the task reads and writes")
            uris = [str(asset.uri) for asset in self.outlets if hasattr(asset, "uri")]
            tables = tuple(naming.at(uri) for uri in uris if not uri.endswith(".final"))
            return JobLineage(inputs=(), outputs=tables)


def _token(context: Context) -> str:
    """A token of 64 hexadecimal digits, constant within a try of a task."""
    ti = context.get("ti")  # none in a test of the operator alone; each try has another id
    return hashlib.sha256(str(ti.id if ti is not None else uuid.uuid4()).encode()).hexdigest()


def _task(context: Context) -> str:
    """An id of the task of a DAG's run, constant across its tries."""
    ti = context.get("ti")
    return "/".join(map(str, (ti.dag_id, ti.run_id, ti.task_id, ti.map_index))) if ti is not None else _token(context)


class RunPlanOperator(JobOperator):
    """Has Spark carry out a plan, then sends asset events of the commits; skipped if there is neither.

    A retry submits the same plan, which lands once. The topic is the task's at run time, and the outlets are that
    topic's assets.

    :param planned: a :class:`tidemark_airflow.planned.Planned` (templated)
    :param with_state: True if the job brings the topic's state table up to date as well
    """

    template_fields: Sequence[str] = (*JobOperator.template_fields, "planned")
    operator_extra_links = (ContinuityLink(), TableLink(), PlanLink(), SparkLink())

    def __init__(self, *, planned: Any, with_state: bool = False, **kwargs: Any) -> None:
        super().__init__(job="run_plan", **kwargs)
        self.planned = planned
        self.with_state = with_state

    def execute(self, context: Context) -> None:
        """Submit and wait; then publish. Raises as :meth:`submit` and :meth:`after_job`."""
        if not self.planned["empty"]:
            # A plan that only closes dates, or only drops files, has no task.
            spark = self.with_state or self.planned["tasks"] > 0
            self.submit(context, spark=spark, plan=self.planned["plan"], state=self.with_state)
        self.after_job(context)

    def after_job(self, context: Context) -> None:
        """Publish.

        Raises:
            AirflowSkipException: the plan has nothing to do, and all commits are published.
            TableTampered: the table was restored to a version older than the published one.
        """
        assert self.topic is not None
        if not publish(context, settings.topic_table(self.cluster, self.topic), self.planned) and self.planned["empty"]:
            raise AirflowSkipException("the plan has nothing to do, and all is published")


def _converted(lineage: JobLineage) -> OperatorLineage[Any, Any]:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from openlineage.client.event_v2 import InputDataset, OutputDataset

    inputs: Any = [InputDataset(**_named(dataset), inputFacets=_plain(dataset.more)) for dataset in lineage.inputs]
    outputs: Any = [OutputDataset(**_named(dataset), outputFacets=_plain(dataset.more)) for dataset in lineage.outputs]
    return OperatorLineage(inputs=inputs, outputs=outputs, run_facets=_plain(lineage.run))


def _named(dataset: Dataset) -> dict[str, Any]:
    return {"namespace": dataset.namespace, "name": dataset.name, "facets": _plain(dataset.facets)}


def _plain(facets: Any) -> Any:
    """Facets in the client's form: it writes a mapping unchanged, next to objects of its own classes."""
    return dict(facets)
