"""Collects the inputs and outputs of a job. Lineage never fails a job: its errors are printed to standard error.

Of a job that no scheduler started, OpenLineage's own client sends events, as its environment configures it.

==============================  ====================================================================================
``OPENLINEAGE_URL``             where events go by HTTP; further variables of the client are its own
``OPENLINEAGE_CONFIG``          or the client's file
``OPENLINEAGE__TRANSPORT…``     or its settings, variable by variable
``OPENLINEAGE_NAMESPACE``       the namespace of jobs; default ``default``
``OPENLINEAGE_DISABLED``        ``true``: no events
==============================  ====================================================================================
"""

from __future__ import annotations

import os
import sys
import traceback
import uuid
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from tidemark.errors import ConfigError, TidemarkError
from tidemark.formats.raw.lineage import Dataset, Facets, JobLineage
from tidemark.jobs.options import EVENTS, OFF, TopicsOptions
from tidemark.openlineage import facets, hand_over
from tidemark.openlineage.facets import LineagePart, joined
from tidemark.openlineage.hand_over import datasets_of_job
from tidemark.topics import Deployment, TopicSettings, load_topics

if TYPE_CHECKING:
    from openlineage.client import OpenLineageClient

_TRANSPORT: Final = "OPENLINEAGE__TRANSPORT"


def configured(environment: Mapping[str, str] = os.environ) -> bool:
    """True if the environment configures a receiver of events."""
    if environment.get("OPENLINEAGE_DISABLED", "").strip().lower() == "true":
        return False
    named = any(environment.get(name) for name in ("OPENLINEAGE_URL", "OPENLINEAGE_CONFIG"))
    return named or any(value for name, value in environment.items() if name.startswith(_TRANSPORT))


class JobEvents:
    """The events of one run of a job. A run of a known ``attempt`` always has the same id."""

    def __init__(self, name: str, attempt: str | None) -> None:
        """Raises ImportError if OpenLineage's client is not installed."""
        from openlineage.client import OpenLineageClient
        from openlineage.client.uuid import generate_new_uuid

        self._client: OpenLineageClient = OpenLineageClient()
        self._name = name
        known = f"urn:tidemark:run:{name}:{attempt}"
        self._run = str(uuid.uuid5(uuid.NAMESPACE_URL, known) if attempt else generate_new_uuid())

    def start(self, lineage: JobLineage) -> None:
        """Send the start of the job. Raises any error of the client's transport."""
        self._emit("START", lineage, {})

    def end(self, lineage: JobLineage, error: BaseException | None) -> None:
        """Send the end of the job, a failure if there is an ``error``; nothing may be sent afterwards."""
        try:
            if error is None:
                self._emit("COMPLETE", lineage, lineage.run)
            else:
                self._emit("FAIL", lineage, {**lineage.run, **facets.error_message(error)})
        finally:
            self._client.close()

    def _emit(self, kind: str, lineage: JobLineage, run: Facets) -> None:
        from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState

        inputs: Any = [InputDataset(**_named(dataset), inputFacets=_plain(dataset.more)) for dataset in lineage.inputs]
        outputs: Any = [
            OutputDataset(**_named(dataset), outputFacets=_plain(dataset.more)) for dataset in lineage.outputs
        ]
        namespace = os.environ.get("OPENLINEAGE_NAMESPACE") or "default"
        self._client.emit(
            RunEvent(
                eventType=RunState[kind],
                eventTime=datetime.now(UTC).isoformat(),
                run=Run(self._run, _plain(run)),
                job=Job(namespace, self._name, _plain(facets.job_type())),
                inputs=inputs,
                outputs=outputs,
                producer=facets.PRODUCER,
            )
        )


def _named(dataset: Dataset) -> dict[str, Any]:
    return {"namespace": dataset.namespace, "name": dataset.name, "facets": _plain(dataset.facets)}


def _plain(mapping: Facets) -> Any:
    """Facets in the client's form: it writes a mapping unchanged, next to objects of its own classes."""
    return dict(mapping)


def job_name(job: str, cluster: str | None, topics: Iterable[str]) -> str:
    """Name of the job: ``tidemark_ingest.prod.orders``, or without the topic if there are several or all."""
    named = list(topics)
    return ".".join([f"tidemark_{job}", *([cluster] if cluster else []), *(named if len(named) == 1 else [])])


class Recorder:
    """Lineage of one job. Without a receiver, nothing is built and no module of OpenLineage is loaded."""

    def __init__(self, options: TopicsOptions) -> None:
        """A recorder of the job with these options."""
        self._job, self._options = options.name, options
        self._parts: list[LineagePart] = []
        self._place = None if options.lineage in {EVENTS, OFF} else options.lineage
        self._events: JobEvents | None = None
        if options.lineage == EVENTS and configured() and not options.only_shows:
            self._guarded(self._connect)

    def begin(self) -> None:
        """Report that the job begins, and with which datasets."""
        if self._events is not None:
            self._guarded(self._start)

    def note(self, build: Callable[[], LineagePart]) -> None:
        """Keep the lineage of a part of the job's work; ``build`` is not called if there is no receiver."""
        if self._place is not None or self._events is not None:
            self._guarded(lambda: self._parts.append(build()))

    def end(self, error: BaseException | None) -> None:
        """Report that the job has ended, with ``error`` if there is one."""
        if self._place is not None and (self._parts or error is None):
            self._guarded(self._hand_over)
        if self._events is not None:
            self._guarded(lambda: self._stop(error))

    def _connect(self) -> None:
        options = self._options
        name = job_name(self._job, options.cluster, options.named)
        attempt = getattr(options, "attempt", None) or _attempt_in(getattr(options, "plan", None))
        try:
            self._events = JobEvents(name, None if attempt is None else str(attempt))
        except ImportError as error:
            sys.stderr.write(
                f"lineage: OPENLINEAGE_… is set, but {error.name} is not installed, so no event is sent: install "
                "requirements/lineage.txt beside Spark, or say --lineage off\n"
            )

    def _start(self) -> None:
        assert self._events is not None
        deployment = load_topics(self._options.topics)
        self._events.start(datasets_of_job(self._job, deployment, self._topics(deployment)))

    def _stop(self, error: BaseException | None) -> None:
        assert self._events is not None
        lineage = joined(self._parts)
        if error is not None and not self._parts:
            deployment = load_topics(self._options.topics)
            lineage = datasets_of_job(self._job, deployment, self._topics(deployment))
        self._events.end(lineage, error)

    def _hand_over(self) -> None:
        assert self._place is not None
        deployment = load_topics(self._options.topics)
        clusters = sorted({topic.cluster for topic in self._topics(deployment)})
        if len(clusters) != 1:
            rule = f"must be the cluster of the task that waits for lineage; the topics are of {', '.join(clusters)}"
            raise ConfigError(f"{self._job}.py", [("--cluster", rule)])
        hand_over.put(deployment, clusters[0], self._place, joined(self._parts))

    def _topics(self, deployment: Deployment) -> list[TopicSettings]:
        """The topics of the command line, or all topics of its cluster."""
        named, cluster = self._options.named, self._options.cluster
        return [deployment.topic(name, cluster) for name in named] if named else deployment.topics_of(cluster)

    def _guarded(self, step: Callable[[], Any]) -> None:
        try:
            step()
        except TidemarkError as error:
            sys.stderr.write(f"lineage: not reported: {error}\n")
        except Exception as error:  # noqa: BLE001 - any error of a client or a store; the job's work is done
            sys.stderr.write("".join(["lineage: not reported:\n", *traceback.format_exception(error)]))


def _attempt_in(plan: str | None) -> str | None:
    """The attempt in a plan's key."""
    return plan.rpartition("/")[2].removesuffix(".json") if plan else None
