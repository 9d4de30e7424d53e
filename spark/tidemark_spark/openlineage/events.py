"""The events of a job that no scheduler started, sent by OpenLineage's own client, as its environment configures it.

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
import uuid
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from tidemark.formats.raw.lineage import Dataset, Facets, JobLineage
from tidemark.openlineage import facets

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
