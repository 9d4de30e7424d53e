"""The task that lists a cluster's tables in catalogs.

It needs no Spark: the job runs in the Python of Spark's environment as it is. Its secrets are on no command line.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook, BaseOperator

from tidemark.catalogs import CatalogSettings
from tidemark_airflow import settings
from tidemark_airflow.operators import subprocesses
from tidemark_airflow.operators.environment import job_environment

if TYPE_CHECKING:
    from airflow.sdk import Context

_JOB = "mirror.py"


class MirrorOperator(BaseOperator):
    """Brings all catalogs of a cluster's tables up to date.

    :param cluster: the Kafka cluster's name in the topics file (templated)
    """

    template_fields: Sequence[str] = ("cluster",)

    def __init__(self, *, cluster: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.cluster = cluster

    def execute(self, context: Context) -> None:
        """Run the job and wait.

        Raises:
            AirflowNotFoundException: there is no connection of the name that a catalog has in the topics file.
            AirflowException: a catalog did not answer, or refuses; the others are done.
        """
        job = settings.spark_job(_JOB)
        arguments = ["--topics", str(settings.topics_file()), "--cluster", self.cluster]
        environment = catalog_environment(settings.deployment().catalogs)
        subprocesses.run(_JOB, [settings.spark_python(), str(job), *arguments], job_environment(environment))

    def on_kill(self) -> None:
        """End the job."""
        subprocesses.end(subprocesses.descendants())


def catalog_environment(catalogs: Sequence[CatalogSettings]) -> dict[str, str]:
    """What the job needs in its environment to reach ``catalogs``: their secrets, and what connections say.

    A connection gives ``uri`` (from its host, with schema and port), ``credential`` (its login and password) and, in
    its extra, any property of pyiceberg's.
    """
    found = {name: os.environ[name] for one in catalogs for name in one.secrets.values() if name in os.environ}
    return found | {one.variable: json.dumps(_connection(one.connection)) for one in catalogs if one.connection}


def _connection(name: str) -> dict[str, str]:
    connection = BaseHook.get_connection(name)
    properties = {str(key): str(value) for key, value in connection.extra_dejson.items()}
    if connection.host:
        host = connection.host if "://" in connection.host else f"{connection.schema or 'https'}://{connection.host}"
        properties.setdefault("uri", f"{host}:{connection.port}" if connection.port else host)
    if connection.login or connection.password:
        credential = ":".join(one for one in (connection.login, connection.password) if one)
        properties.setdefault("credential", credential)
    return properties
