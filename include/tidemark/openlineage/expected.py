"""Datasets that a job is about to read and write, from the topics file alone: for its start and failure events."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from tidemark.formats.raw.lineage import Dataset, JobLineage
from tidemark.openlineage import naming
from tidemark.openlineage.collected import Found, joined
from tidemark.topics import Deployment, TopicSettings

_Name = Callable[[Deployment, TopicSettings], Dataset]
_LANDS: Final = ((naming.kafka_topic, naming.raw_topic), (naming.table,))

_OF_JOBS: Final[dict[str, tuple[tuple[_Name, ...], tuple[_Name, ...]]]] = {
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


def of_job(job: str, deployment: Deployment, topics: Iterable[TopicSettings]) -> JobLineage:
    """The datasets of ``topics`` that the program ``job`` of ``spark/jobs`` works on; none for other programs."""
    inputs, outputs = _OF_JOBS.get(job, ((), ()))
    return joined(
        Found(tuple(name(deployment, topic) for name in inputs), tuple(name(deployment, topic) for name in outputs))
        for topic in topics
    )
