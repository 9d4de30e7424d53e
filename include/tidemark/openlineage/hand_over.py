"""Hands a job's lineage over to the Airflow task that started it, wherever the job runs.

The task names an object of the lake. The job writes it as its last step, and the task removes it after reading it.
Each try of a task names an object of its own, so no other job ever writes to it. If a task dies, a vacuum
(:mod:`tidemark.planning.maintenance.old_reports`) removes the object.
"""

from __future__ import annotations

import secrets

from tidemark.errors import NotFound
from tidemark.formats.raw.lineage import JobLineage
from tidemark.store import open_store, put_over
from tidemark.topics import Deployment


def new_place() -> str:
    """A new name of an object, for one job's lineage."""
    return secrets.token_hex(8)


def put(deployment: Deployment, cluster: str, place: str, lineage: JobLineage) -> None:
    """Leave ``lineage`` for the task. Raises StoreError."""
    store = open_store(deployment.lake_store, deployment.store)
    put_over(store, deployment.deployment_keys(cluster).hand_over(place), lineage.to_bytes())


def read(deployment: Deployment, cluster: str, place: str) -> JobLineage | None:
    """The lineage that the job left; None if it left none.

    Raises:
        StoreError, FormatError: the object cannot be read.
    """
    store = open_store(deployment.lake_store, deployment.store)
    try:
        return JobLineage.load(store, deployment.deployment_keys(cluster).hand_over(place))
    except NotFound:
        return None


def remove(deployment: Deployment, cluster: str, place: str) -> None:
    """Remove the job's lineage, once it has been read. Raises StoreError."""
    store = open_store(deployment.lake_store, deployment.store)
    store.delete(deployment.deployment_keys(cluster).hand_over(place))
