"""The buttons on a task's page: continuity page, table, plan, Spark's pages. A button without an address is hidden.

Each address is computed on the worker when a try of the task ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow.sdk import BaseOperatorLink

from tidemark_airflow import settings
from tidemark_airflow.configuration import option
from tidemark_airflow.links import urls

if TYPE_CHECKING:
    from airflow.sdk.types import TaskInstanceKey

    from tidemark.table.delta_table import TopicTable


class ContinuityLink(BaseOperatorLink):
    """A link to the landed, waiting and missing offsets of the topic."""

    name = "Continuity"

    def get_link(self, operator: Any, *, ti_key: TaskInstanceKey) -> str:
        """The URL of the topic's continuity page."""
        return urls.continuity_url(operator.cluster, operator.topic)


class TableLink(BaseOperatorLink):
    """A link to the folder of the topic's table, in the store's pages."""

    name = "Table"

    def get_link(self, operator: Any, *, ti_key: TaskInstanceKey) -> str:
        """The folder in the store's pages."""
        table = settings.topic_table(operator.cluster, operator.topic)
        return object_page(table, f"{table.keys.root}/")


class PlanLink(BaseOperatorLink):
    """A link to the run's plan."""

    name = "Plan"

    def get_link(self, operator: Any, *, ti_key: TaskInstanceKey) -> str:
        """The plan's object in the store's pages; empty if there is no plan."""
        if not (operator.planned and operator.planned["plan"]):
            return ""
        return object_page(settings.topic_table(operator.cluster, operator.topic), operator.planned["plan"])


class SparkLink(BaseOperatorLink):
    """A link to Spark's own pages on jobs, if the deployment has any."""

    name = "Spark"

    def get_link(self, operator: Any, *, ti_key: TaskInstanceKey) -> str:
        """The page of the job on its platform, or the deployment's address of Spark's pages."""
        return getattr(operator, "job_page", "") or option("spark_page")


def object_page(table: TopicTable, key: str) -> str:
    """A page that shows an object of the lake's store, or a folder (``key`` ends in a slash); empty if there is none.

    ``[tidemark] object_page`` names it for other S3 servers; for AWS it is AWS's console.
    """
    store = table.deployment.lake_store
    if not store.startswith("s3://"):
        return ""
    bucket, template = store.removeprefix("s3://"), option("object_page")
    if template:
        return template.replace("{bucket}", quote(bucket)).replace("{key}", quote(key))
    if "AWS_ENDPOINT_URL" in table.delta_options:
        return ""
    kind = "buckets" if key.endswith("/") else "object"
    return f"https://console.aws.amazon.com/s3/{kind}/{quote(bucket)}?prefix={quote(key)}"
