"""The inputs and outputs of a job, as OpenLineage names them, for the Airflow task that started the job.

``_tidemark/_lineage/<cluster>/<name>.json`` belongs to one job, under a name that the task drew. Only the task reads
it, and then removes it. Nothing else depends on it.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, JsonValue

from tidemark.formats import object_sizes
from tidemark.formats.base import Model, StoredObject

Facets = dict[str, dict[str, JsonValue]]
"""Facets of OpenLineage by name, each in the form of its JSON schema."""


class Dataset(Model):
    """A dataset of OpenLineage: an input or an output. ``more`` are the facets that only an input or an output has."""

    namespace: str
    name: str
    facets: Facets = Field(default_factory=dict)
    more: Facets = Field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str]:
        """(namespace, name), the identity of the dataset for all programs."""
        return self.namespace, self.name


class JobLineage(StoredObject):
    """The inputs and outputs of one job, with the facets of its run."""

    most_bytes: ClassVar[int] = object_sizes.REPORT

    inputs: tuple[Dataset, ...]
    outputs: tuple[Dataset, ...]
    run: Facets = Field(default_factory=dict)
