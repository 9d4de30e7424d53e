"""The options of ``[tidemark]`` in Airflow's configuration.

Airflow asks for them while it is being imported, so nothing of Airflow is imported here.
"""

from __future__ import annotations

from typing import Any, Final, Literal, NamedTuple

SECTION: Final = "tidemark"


class Option(NamedTuple):
    """An option that ``airflow config`` shows; without a ``default`` it is empty."""

    name: str
    description: str
    default: str | None = None
    type: Literal["string", "integer", "float", "boolean"] = "string"
    example: str | None = None
    sensitive: bool = False

    def described(self) -> dict[str, Any]:
        """The option in Airflow's schema of providers."""
        fields = self._asdict() | {"version_added": "1.0.0"}
        del fields["name"]
        return fields


OPTIONS: Final = (
    Option(
        "topics",
        "Path of the topics file. Default: include/topics.yaml of a checkout.",
        example="/etc/tidemark/topics.yaml",
    ),
    Option(
        "spark_conn_id",
        "The Airflow connection for running jobs: of type spark, spark_connect, aws (EMR Serverless), "
        "kubernetes or databricks.",
        "spark_default",
    ),
    Option(
        "job_template",
        "Path of a YAML file with the request that starts a job, if the connection is of type aws, kubernetes or "
        "databricks; or with settings of Spark, for cluster mode on YARN.",
        example="/etc/tidemark/job.yaml",
    ),
    Option("remote_jobs", "The folder of Spark's jobs for such a platform.", example="s3://bucket/tidemark/jobs"),
    Option("remote_topics", "Path of the topics file on such a platform.", example="/etc/tidemark/topics.yaml"),
    Option(
        "spark_submit",
        "The program spark-submit of Spark's own environment. Default: that of PATH.",
        example="/opt/tidemark/spark/bin/spark-submit",
    ),
    Option(
        "spark_python",
        "Python of Spark's own environment, for Spark Connect and for jobs without Spark. Default: the one beside "
        "spark-submit.",
        example="/opt/tidemark/spark/bin/python",
    ),
    Option(
        "spark_jobs",
        "The folder of Spark's jobs. Default: the folder in the installed package.",
        example="/opt/tidemark/jobs",
    ),
    Option(
        "aws_conn_id",
        "The Airflow connection of type aws with which raw and lake are reached on S3. Default: AWS's own chain.",
        example="tidemark_lake",
    ),
    Option(
        "retention_aws_conn_id",
        "The Airflow connection of the role that may delete raw segments. Default: retention_profile.",
        example="tidemark_retention",
    ),
    Option(
        "retention_profile",
        "The AWS profile of the role that may delete raw segments. Default: the profile of all jobs.",
        example="retention",
    ),
    Option(
        "erasure_profile",
        "The AWS profile of the role that erases. Default: the profile of all jobs.",
        example="erasure",
    ),
    Option(
        "job_environment",
        "Names of further variables of the worker's environment that jobs get, separated by commas.",
        example="OUR_PROXY,OUR_CA",
    ),
    Option(
        "kafka_conn_id",
        "The Airflow connection with which onboarding asks Kafka: host, login and password, and kafka-python's "
        "settings as extra. {cluster} in its name is replaced. Default: the topics file's bootstrap, no credentials.",
        example="kafka_{cluster}",
    ),
    Option(
        "brokersets",
        "Path of the brokersets file. Default: brokersets.yaml beside the topics file, if that exists.",
        example="/etc/tidemark/brokersets.yaml",
    ),
    Option(
        "onboarding_writes",
        "Whether the form of tidemark_onboard may change the topics file on the machine where the task runs.",
        "False",
        "boolean",
    ),
    Option(
        "starts_paused",
        "Whether the DAGs that land topics start paused, whatever [core] dags_are_paused_at_creation says.",
        "False",
        "boolean",
    ),
    Option("scan_seconds", "Seconds between two scans of the watermark indexes.", "10", "float"),
    Option("spark_page", "Address of Spark's own pages, for a link on tasks.", example="https://spark.example.com"),
    Option(
        "object_page",
        "Address of a page about the object {key} of {bucket}, for links on tasks. Default: AWS's console; none for "
        "another S3 server.",
        example="https://store.example.com/{bucket}?prefix={key}",
    ),
    Option(
        "notifiers",
        "Notifiers that report incidents to people: a JSON object with a name and the arguments of each. Default: the "
        "task's log.",
        example='{"hook": {"notifier": "tidemark_airflow.notifications.webhook.WebhookNotifier"}}',
        # A notifier's address alone may allow posting to it.
        sensitive=True,
    ),
    Option("approve_above_gib", "How many GiB a backfill may rewrite without an approval, at most.", "100", "integer"),
    Option(
        "approvers",
        "Ids of the users who alone may approve backfills and erasure, separated by commas. Default: Airflow's roles.",
        example="ada,grace",
    ),
)
