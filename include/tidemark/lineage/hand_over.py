"""How a job hands over what it did to the task of Airflow's that started it, wherever the job runs.

The task names an object of the lake, and a token that the object must have; the job writes it as its last step. A task
that dies leaves the object, which its next try replaces.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from typing import NamedTuple, Self

from tidemark.errors import NotFound
from tidemark.formats.lineage import JobLineage
from tidemark.store import open_store, put_over
from tidemark.topics import Deployment

_PLACE = re.compile(r"([0-9a-f]{16})-([0-9a-f]{16})", re.ASCII)


class Place(NamedTuple):
    """Where a job puts its lineage: the name of the object, and the token in it."""

    name: str
    token: str

    @classmethod
    def of_task(cls, *names: object) -> Self:
        """That of the task which ``names`` name, with a new token."""
        digest = hashlib.sha256("\n".join(map(str, names)).encode()).hexdigest()
        return cls(digest[:16], secrets.token_hex(8))

    @classmethod
    def parse(cls, text: str) -> Self:
        """As a command line has it. Raises ValueError for anything else, as the name becomes part of a key."""
        match = _PLACE.fullmatch(text)
        if match is None:
            raise ValueError(f"{text[:60]!r} is not a place for lineage: 16 of 0-9 a-f, a hyphen, 16 more")
        return cls(match[1], match[2])

    def __str__(self) -> str:
        return f"{self.name}-{self.token}"


def put(deployment: Deployment, cluster: str, place: Place, lineage: JobLineage) -> None:
    """Leave ``lineage`` for the task. Raises StoreError."""
    store = open_store(deployment.lake_store, deployment.store)
    key = deployment.deployment_keys(cluster).lineage(place.name)
    put_over(store, key, lineage.model_copy(update={"token": place.token}).to_bytes())


def take(deployment: Deployment, cluster: str, place: Place) -> JobLineage | None:
    """What the job left; None if it left nothing.

    Raises:
        StoreError, FormatError: that cannot be read.
    """
    store = open_store(deployment.lake_store, deployment.store)
    try:
        found = JobLineage.load(store, deployment.deployment_keys(cluster).lineage(place.name))
    except NotFound:
        return None
    return found if found.token == place.token else None
