"""Lineage of the tasks that run jobs, for Airflow's OpenLineage provider.

The provider asks an operator for its datasets and facets, in a process of its own that it forks. The store's clients do
not survive that, so the task fetches what the job handed over before it ends, and all that is left is to convert it.

A task that names no datasets would get those of its asset outlets, and ``<table>.final`` is not a dataset. So a task
with outlets always names some. Lineage never fails a task: what goes wrong with it is logged as an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import BaseOperator

from tidemark.formats.lineage import Dataset, JobLineage
from tidemark.lineage import hand_over
from tidemark_airflow import settings

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage

    from tidemark.topics import Deployment

OFF: Final = "off"


def enabled() -> bool:
    """Whether the provider is installed and knows where to send events."""
    try:
        from airflow.providers.openlineage import conf
    except ImportError:
        return False
    return not conf.is_disabled()


class LineageMixin(BaseOperator):
    """Takes the lineage of the job that a task runs, and answers the provider.

    ``job``, ``cluster`` and, of a task for one topic, ``topic`` are the operator's. A class whose jobs write nothing
    has ``tells_lineage`` false.
    """

    tells_lineage = True
    cluster: str
    job: str
    _handed: JobLineage | None = None

    @contextmanager
    def lineage_of_job(self) -> Iterator[str]:
        """What the job's ``--lineage`` is to be. The job runs inside of the ``with``; what it left is taken then."""
        if not (self.tells_lineage and enabled()):
            yield OFF
            return
        self._handed = None
        place = hand_over.new_place()
        try:
            yield place
        except BaseException:
            self._take(place, required=False)
            raise
        self._take(place, required=True)

    def get_openlineage_facets_on_start(self) -> OperatorLineage[Any, Any]:
        """What the task is about to read and write."""
        return self._answer(None, ended=False)

    def get_openlineage_facets_on_complete(self, _task_instance: Any) -> OperatorLineage[Any, Any]:
        """What the task has read and written."""
        return self._answer(self._handed, ended=True)

    def get_openlineage_facets_on_failure(self, _task_instance: Any) -> OperatorLineage[Any, Any]:
        """What the job told before it failed, such as an audit's findings; else what it was about to do."""
        return self._answer(self._handed, ended=False)

    @property
    def _topic(self) -> str | None:
        return getattr(self, "topic", None)

    def _take(self, place: str, *, required: bool) -> None:
        try:
            deployment = settings.deployment()
            self._handed = hand_over.read(deployment, self.cluster, place)
        except Exception:
            self.log.exception("lineage: what the job left cannot be read; the event will not say what was written")
            return
        if self._handed is not None:
            self._remove(deployment, place)
        elif required:
            self.log.error("lineage: the job left nothing, see its log; the event will not say what was written")

    def _remove(self, deployment: Deployment, place: str) -> None:
        try:
            hand_over.remove(deployment, self.cluster, place)
        except Exception:
            self.log.exception("lineage: what the job left cannot be removed; a vacuum will remove it")

    def _answer(self, handed: JobLineage | None, *, ended: bool) -> OperatorLineage[Any, Any]:
        found = handed or JobLineage(inputs=(), outputs=())
        if self.tells_lineage and not (found.inputs or found.outputs) and (self.outlets or not ended):
            found = self._expected().model_copy(update={"run": found.run})
        return _converted(found)

    def _expected(self) -> JobLineage:
        """By the topics file; if that is wrong, by the assets of the task's tables."""
        from tidemark.lineage import naming
        from tidemark.lineage.expected import of_job

        try:
            deployment = settings.deployment()
            topics = [one for one in deployment.topics if one.cluster == self.cluster]
            if self._topic is not None:
                topics = [deployment.topic(self._topic, self.cluster)]
            return of_job(self.job.removesuffix(".py"), deployment, topics)
        except Exception:
            self.log.exception("lineage: the topics file does not say what the task reads and writes")
            uris = [str(one.uri) for one in self.outlets if hasattr(one, "uri")]
            tables = tuple(naming.at(uri) for uri in uris if not uri.endswith(".final"))
            return JobLineage(inputs=(), outputs=tables)


def _converted(found: JobLineage) -> OperatorLineage[Any, Any]:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from openlineage.client.event_v2 import InputDataset, OutputDataset

    inputs: Any = [InputDataset(**_named(one), inputFacets=_plain(one.more)) for one in found.inputs]
    outputs: Any = [OutputDataset(**_named(one), outputFacets=_plain(one.more)) for one in found.outputs]
    return OperatorLineage(inputs=inputs, outputs=outputs, run_facets=_plain(found.run))


def _named(one: Dataset) -> dict[str, Any]:
    return {"namespace": one.namespace, "name": one.name, "facets": _plain(one.facets)}


def _plain(facets: Any) -> Any:
    """Facets as the client takes them beside objects of its own classes: it writes a mapping as it is."""
    return dict(facets)
