"""Chooses the submitter, by the type of the connection ``[tidemark] spark_conn_id``, and by the job's template.

==================  ============================================================================================
connection's type   runs the job with
==================  ============================================================================================
``spark``           spark-submit: a driver of its own for each job; on YARN in cluster mode, an application
``spark_connect``   the same file in the Python of Spark's environment, as a client of a Spark Connect server
``aws``             EMR Serverless
``kubernetes``      a SparkApplication; needs the extra ``tidemark-kafka[airflow-kubernetes]``
``databricks``      a run of Databricks; needs the extra ``tidemark-kafka[airflow-databricks]``
==================  ============================================================================================

Jobs in child processes get their environment and connections from the task. The others get them from their platform.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from typing import Any, Final, NamedTuple

from airflow.sdk import BaseHook, Connection
from airflow.sdk.exceptions import AirflowException, AirflowNotFoundException

from tidemark.errors import ConfigError
from tidemark.jobs.registry import JOBS
from tidemark.parsers.settings import registry_of
from tidemark.topics import Deployment
from tidemark_airflow import settings
from tidemark_airflow.configuration import label, option
from tidemark_airflow.connections import aws_connection, named_connection
from tidemark_airflow.submitters.base import RemoteSubmitter, Submitter
from tidemark_airflow.submitters.environment import handed_over
from tidemark_airflow.submitters.template import request_of


class _Kind(NamedTuple):
    """Module and class of a submitter, and the extra that it needs. A ``child`` gets the job's environment."""

    module: str
    name: str
    extra: str = ""
    child: bool = False
    needs_host: bool = False


_KINDS: Final = {
    ("spark", ""): _Kind("child_processes", "SparkSubmit", child=True, needs_host=True),
    ("spark_connect", ""): _Kind("child_processes", "SparkConnect", child=True, needs_host=True),
    ("aws", "applicationId"): _Kind("emr_serverless", "EmrServerless"),
    ("kubernetes", ""): _Kind("kubernetes", "SparkApplication", "airflow-kubernetes"),
    ("databricks", ""): _Kind("databricks", "DatabricksRun", "airflow-databricks", needs_host=True),
}
"""Submitters by type of connection and, if platforms share a type, by a key that only this platform's template has."""

_YARN: Final = _Kind("yarn", "YarnApplication")
_PLAIN: Final = _Kind("child_processes", "PlainPython", child=True)


@contextmanager
def submitter(program: str, environment: Mapping[str, str], *, deletes_raw: bool = False) -> Iterator[Submitter]:
    """The submitter of ``program``; files for the job are on disk while the context lasts.

    Raises:
        AirflowException: there is no connection, or it names no host.
        ConfigError: its type is unknown, or the submitter is not installed or configured.
    """
    if JOBS[program.removesuffix(".py")].beside_airflow:
        with job_connections(program) as given:
            yield _class(_PLAIN)(settings.spark_python(), {**catalog_secrets(), **given})
        return
    conn_id = option("spark_conn_id")
    connection = _connection(conn_id)
    driver = connection.conn_type, connection.host, connection.extra_dejson.get("deploy-mode")
    on_yarn = driver == ("spark", "yarn", "cluster")
    kind = _YARN if on_yarn else _kind(conn_id, str(connection.conn_type))
    if kind.needs_host and not connection.host:
        raise AirflowException(f"connection {conn_id!r} has no host: it must name Spark's master or server")
    made = _class(kind)
    if not kind.child:
        _check_role(str(connection.conn_type), deletes_raw=deletes_raw)
        yield made(conn_id)
        return
    with job_connections(program, deletes_raw=deletes_raw) as given:
        yield made(conn_id, {**settings.spark_environment(), **environment, **given})


def watcher(name: str, conn_id: str, place: str) -> RemoteSubmitter:
    """The submitter of class ``name`` for a job that runs already: it asks about the job, or ends it.

    Raises:
        ConfigError: the submitter is not installed here, or this version has none of this name.
    """
    for kind in (*_KINDS.values(), _YARN):
        if kind.name == name and not kind.child:
            found: RemoteSubmitter = _class(kind)(conn_id, place)
            return found
    raise ConfigError("this installation", [(name, "is no platform of this version: let the task be tried again")])


def _kind(conn_id: str, conn_type: str) -> _Kind:
    """The submitter for a type of connection. Raises ConfigError if there is none, or the template names none."""
    kinds = {key: kind for (found, key), kind in _KINDS.items() if found == conn_type}
    if not kinds:
        types = ", ".join(dict.fromkeys(found for found, _ in _KINDS))
        raise ConfigError("Airflow's connections", [(conn_id, f"must be of type {types}, but is of type {conn_type}")])
    if "" in kinds:
        return kinds[""]
    template = request_of()
    named = [kind for key, kind in kinds.items() if key in template]
    if len(named) != 1:
        rule = f"is required: by it, a connection of type {conn_type} runs jobs on one platform"
        raise ConfigError(option("job_template"), [(" or ".join(kinds), rule)])
    return named[0]


def _check_role(kind: str, *, deletes_raw: bool) -> None:
    """Check that no role is set that a job on a platform cannot have. Raises ConfigError."""
    named = [name for name in ("retention_aws_conn_id", "retention_profile") if option(name)]
    if deletes_raw and named:
        rule = (
            f"cannot hold where jobs run by a connection of type {kind}: they have the role that their platform gives"
        )
        raise ConfigError("Airflow's configuration", [(label(name), f"{rule}; leave it out") for name in named])


def _class(kind: _Kind) -> Callable[..., Any]:
    try:
        submitter_class: Callable[..., Any] = getattr(import_module(f"{__package__}.{kind.module}"), kind.name)
    except ModuleNotFoundError as error:
        if not kind.extra:
            raise
        rule = (
            f"is needed for such a connection and is not installed: install the extra tidemark-kafka[{kind.extra}] here"
        )
        raise ConfigError("this installation", [(str(error.name), rule)]) from error
    return submitter_class


def _connection(conn_id: str) -> Connection:
    try:
        return BaseHook.get_connection(conn_id)
    except AirflowNotFoundException as error:
        raise AirflowException(
            f"there is no connection {conn_id!r}, and without one the job would go to YARN: create it, for example "
            f'with conn_type "spark" and host "spark://master:7077" or "local[2]", or with conn_type "spark_connect", '
            f'host "connect-server" and port 15002'
        ) from error


def job_connections(job: str, *, deletes_raw: bool = False) -> AbstractContextManager[dict[str, str]]:
    """The variables that lead ``job`` to its connections, while the context lasts, see :func:`handed_over`.

    Raises:
        ConfigError: a named connection does not exist.
    """
    conn_id = (option("retention_aws_conn_id") if deletes_raw else "") or option("aws_conn_id")
    names = _connections_of(settings.deployment(), catalogs=JOBS[job.removesuffix(".py")].uses_catalogs)
    aws = aws_connection(conn_id) if conn_id else None
    return handed_over(aws, {name: named_connection(name) for name in names})


def catalog_secrets() -> dict[str, str]:
    """Variables of this process that hold secrets of catalogs, as the topics file names them."""
    names = {name for catalog in settings.deployment().catalogs for name in catalog.secrets.values()}
    return {name: os.environ[name] for name in sorted(names) if name in os.environ}


def _connections_of(deployment: Deployment, *, catalogs: bool) -> list[str]:
    connections = {catalog.connection for catalog in deployment.catalogs} if catalogs else set()
    if any(registry.connection for registry in deployment.registries.values()):
        registries = (registry_of(topic.parser) for topic in deployment.topics)
        connections |= {registry.connection for registry in registries if registry is not None}
    return sorted(name for name in connections if name)
