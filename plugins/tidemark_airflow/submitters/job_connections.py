"""Selects the Airflow connections that a job gets: no more than it needs."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from pathlib import Path

from tidemark.jobs.registry import JOBS
from tidemark.parsers.settings import registry_of
from tidemark.topics import Deployment
from tidemark_airflow import settings
from tidemark_airflow.configuration import option
from tidemark_airflow.connections import aws_connection, named_connection
from tidemark_airflow.submitters.handover import handed_over


def job_connections(job: str, *, deletes_raw: bool = False) -> AbstractContextManager[dict[str, str]]:
    """The variables that lead ``job`` to its connections, while the context lasts, see :func:`handed_over`.

    Raises:
        ConfigError: a named connection does not exist.
    """
    conn_id = (option("retention_aws_conn_id") if deletes_raw else "") or option("aws_conn_id")
    names = _names(settings.deployment(), catalogs=JOBS[Path(job).stem].uses_catalogs)
    aws = aws_connection(conn_id) if conn_id else None
    return handed_over(aws, {name: named_connection(name) for name in names})


def catalog_secrets() -> dict[str, str]:
    """Variables of this process that hold secrets of catalogs, as the topics file names them."""
    names = {name for catalog in settings.deployment().catalogs for name in catalog.secrets.values()}
    return {name: os.environ[name] for name in sorted(names) if name in os.environ}


def _names(deployment: Deployment, *, catalogs: bool) -> list[str]:
    connections = {catalog.connection for catalog in deployment.catalogs} if catalogs else set()
    if any(registry.connection for registry in deployment.registries.values()):
        registries = (registry_of(topic.parser) for topic in deployment.topics)
        connections |= {registry.connection for registry in registries if registry is not None}
    return sorted(name for name in connections if name)
