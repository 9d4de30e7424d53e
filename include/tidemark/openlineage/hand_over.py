"""Hands a job's lineage over to the Airflow task that started it, wherever the job runs.

The task names an object of the lake. The job writes it as its last step, and the task removes it after reading it. Each
try of a task names an object of its own, so no other job ever writes to it. If a task dies, a vacuum
(:mod:`tidemark.planning.maintenance.vacuum`) removes the object. For the events of a job's start and failure there is
no such object: the topics file alone tells which datasets the job is about to read and write.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from typing import Final

from tidemark.formats.raw.lineage import Dataset, JobLineage
from tidemark.openlineage import naming
from tidemark.openlineage.facets import LineagePart, joined
from tidemark.store import Store, open_store, put_over
from tidemark.topics import Deployment, TopicSettings

_Name = Callable[[Deployment, TopicSettings], Dataset]
_LANDS: Final = ((naming.kafka_topic, naming.raw_topic), (naming.table,))

_DATASETS_OF_JOBS: Final[dict[str, tuple[tuple[_Name, ...], tuple[_Name, ...]]]] = {
    "ingest": _LANDS,
    "land_live": _LANDS,
    "rebuild": ((naming.raw_topic,), (naming.table,)),
    "repair": ((naming.raw_topic,), (naming.table,)),
    "replay": ((naming.quarantine,), (naming.table,)),
    # The inputs depend on the plan; for retention, so do the outputs: its last report has them.
    "run_plan": ((), (naming.table,)),
    "compact": ((naming.table,), (naming.table,)),
    "compact_live": ((naming.table,), (naming.table,)),
    "audit": ((naming.raw_topic, naming.table), ()),
    "vacuum": ((), (naming.table,)),
    "export": ((naming.raw_topic,), ()),
    "retain_packs": ((), (naming.packs_of,)),
}
"""Inputs and outputs of each topic, by the name of the job's program."""


def new_place() -> str:
    """A new name of an object, for one job's lineage."""
    return secrets.token_hex(8)


def _object(deployment: Deployment, cluster: str, place: str) -> tuple[Store, str]:
    return open_store(deployment.lake_store, deployment.store), deployment.deployment_keys(cluster).hand_over(place)


def put(deployment: Deployment, cluster: str, place: str, lineage: JobLineage) -> None:
    """Leave ``lineage`` for the task. Raises StoreError."""
    put_over(*_object(deployment, cluster, place), lineage.to_bytes())


def read(deployment: Deployment, cluster: str, place: str) -> JobLineage | None:
    """The lineage that the job left; None if it left none.

    Raises:
        StoreError, FormatError: the object cannot be read.
    """
    return JobLineage.load_or_none(*_object(deployment, cluster, place))


def remove(deployment: Deployment, cluster: str, place: str) -> None:
    """Remove the job's lineage, once it has been read. Raises StoreError."""
    store, key = _object(deployment, cluster, place)
    store.delete(key)


def datasets_of_job(job: str, deployment: Deployment, topics: Iterable[TopicSettings]) -> JobLineage:
    """The datasets of ``topics`` that the program ``job`` of ``spark/jobs`` works on; none for other programs."""
    inputs, outputs = _DATASETS_OF_JOBS.get(job, ((), ()))
    return joined(
        LineagePart(
            tuple(name(deployment, topic) for name in inputs), tuple(name(deployment, topic) for name in outputs)
        )
        for topic in topics
    )
