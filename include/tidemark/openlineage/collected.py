"""The lineage of one job, put together from its parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from pydantic import JsonValue

from tidemark.formats.raw.lineage import Dataset, JobLineage
from tidemark.openlineage import facets


class Found(NamedTuple):
    """A part of a job's lineage: its datasets, and its entry in Tidemark's facet of the run."""

    inputs: tuple[Dataset, ...] = ()
    outputs: tuple[Dataset, ...] = ()
    entry: Mapping[str, JsonValue] | None = None


def joined(parts: Iterable[Found]) -> JobLineage:
    """All ``parts`` together. A dataset is listed once as an input and once as an output; its last part counts."""
    all_parts = list(parts)
    entries = [part.entry for part in all_parts if part.entry is not None]
    return JobLineage(
        inputs=_once(dataset for part in all_parts for dataset in part.inputs),
        outputs=_once(dataset for part in all_parts for dataset in part.outputs),
        run=facets.runs(entries) if entries else {},
    )


def _once(datasets: Iterable[Dataset]) -> tuple[Dataset, ...]:
    return tuple({dataset.key: dataset for dataset in datasets}.values())
