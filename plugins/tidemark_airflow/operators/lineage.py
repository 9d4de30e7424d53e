"""Lineage of the tasks that run jobs, for Airflow's OpenLineage provider.

The provider asks an operator for its datasets and facets in a forked process. The store's clients do not survive the
fork, so the task fetches the job's lineage before it ends, and only the conversion is left for the provider.

A task that names no datasets would get those of its asset outlets, and ``<table>.final`` is not a dataset. So a task
with outlets always names some. Lineage never fails a task: its errors are logged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import TaskDeferred

from tidemark.formats.raw.lineage import Dataset, JobLineage
from tidemark.jobs.options import OFF
from tidemark.openlineage import hand_over
from tidemark_airflow import settings

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage

    from tidemark.topics import Deployment


def enabled() -> bool:
    """True if the provider is installed and has a receiver of events."""
    try:
        from airflow.providers.openlineage import conf
    except ImportError:
        return False
    return not conf.is_disabled()


class LineageMixin(BaseOperator):
    """Takes over the lineage of the job that a task runs, and returns it to the provider.

    ``job`` and ``cluster`` are the operator's, and ``topic`` or ``topics``, unless it has all topics of its cluster.
    A class whose jobs write nothing sets ``tells_lineage`` to False.
    """

    tells_lineage = True
    cluster: str
    job: str
    _handed: JobLineage | None = None

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
