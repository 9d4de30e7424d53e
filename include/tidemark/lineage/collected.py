"""What one job did, put together from its parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from pydantic import JsonValue

from tidemark.formats.lineage import Dataset, JobLineage
from tidemark.lineage import facets


class Found(NamedTuple):
    """A part of what a job did: its datasets, and its entry in Tidemark's facet of the run."""

    inputs: tuple[Dataset, ...] = ()
    outputs: tuple[Dataset, ...] = ()
    entry: Mapping[str, JsonValue] | None = None


def joined(parts: Iterable[Found]) -> JobLineage:
    """All ``parts`` together. A dataset is named once as an input and once as an output, as the last part has it."""
    found = list(parts)
    entries = [one.entry for one in found if one.entry is not None]
    return JobLineage(
        inputs=_once(dataset for one in found for dataset in one.inputs),
        outputs=_once(dataset for one in found for dataset in one.outputs),
        run=facets.runs(entries) if entries else {},
    )


def _once(datasets: Iterable[Dataset]) -> tuple[Dataset, ...]:
    return tuple({one.key: one for one in datasets}.values())
