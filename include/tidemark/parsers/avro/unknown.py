"""Fields of a writer's schema that the table's schema lacks."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from tidemark.parsers.avro.resolution import ItemsStep, RecordStep, Step, UnionStep
from tidemark.parsers.unknown_fields import field_name, summed

_MOST: Final = 100_000
"""The most fields that are looked at: a type may be declared once and used in many places."""


def unknown_fields(step: Step) -> dict[str, int]:
    """Each field that the records have and the table does not take, counted as for one row.

    All branches of a writer's union count.
    """
    return summed({field_name(*path): 1} for path in set(islice(_paths(step), _MOST)))


def _paths(step: Step, *path: str) -> Iterator[tuple[str, ...]]:
    if isinstance(step, UnionStep):
        for branch in step.branches:
            yield from _paths(branch, *path)
    elif isinstance(step, ItemsStep):
        yield from _paths(step.item, *path, *(("value",) if step.keys else ()))
    elif isinstance(step, RecordStep):
        for field in step.fields:
            if field.place >= 0:
                yield from _paths(field.step, *path, step.names[field.place])
            else:
                yield (*path, field.name)
