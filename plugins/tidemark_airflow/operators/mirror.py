"""The task that lists a cluster's tables in catalogs.

It needs no Spark: the job runs directly in the Python of Spark's environment. Its secrets are on no command line.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException

from tidemark.errors import ConfigError
from tidemark_airflow import settings
from tidemark_airflow.submitters import subprocesses
from tidemark_airflow.submitters.environment import job_environment
from tidemark_airflow.submitters.job_connections import catalog_secrets, job_connections

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
            AirflowFailException: a catalog's connection in the topics file does not exist.
            AirflowException: a catalog did not answer, or refuses; the others are done.
        """
        arguments = ["--topics", str(settings.topics_file()), "--cluster", self.cluster]
        try:
            with job_connections(_JOB) as given:
                environment = job_environment({**catalog_secrets(), **given})
                subprocesses.run_job("without Spark", settings.spark_python(), _JOB, arguments, environment)
        except ConfigError as error:
            raise AirflowFailException(str(error)) from error

    def on_kill(self) -> None:
        """End the job."""
        subprocesses.end(subprocesses.descendants())
