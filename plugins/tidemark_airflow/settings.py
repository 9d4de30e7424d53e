"""The places of a deployment's topics file and of Spark's programs: from ``[tidemark]``, or installed ones.

:mod:`tidemark_airflow.configuration` has the options. ``PYSPARK_PYTHON`` in the environment is the Python of Spark's
workers; by default it is the one beside spark-submit.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from tidemark import installation
from tidemark.brokersets.settings import BrokersetsFile, load_brokersets
from tidemark.errors import ConfigError
from tidemark.topics import Deployment, TopicSettings, load_topics
from tidemark_airflow import connections
from tidemark_airflow.configuration import label, option

if TYPE_CHECKING:
    from tidemark.table.delta_table import TopicTable


def topics_file() -> Path:
    """Path of the topics file: ``[tidemark] topics``, or ``include/topics.yaml`` of a checkout."""
    return Path(option("topics") or installation.home() / "include" / "topics.yaml")


def deployment() -> Deployment:
    """The topics file, read and checked. Raises :class:`tidemark.errors.ConfigError` naming file, field and rule."""
    connections.install()
    return load_topics(topics_file())


def brokersets_file() -> Path:
    """Path of the brokersets file, which need not exist: ``[tidemark] brokersets``, or beside the topics file."""
    return Path(option("brokersets") or topics_file().with_name("brokersets.yaml"))


def brokersets() -> BrokersetsFile | None:
    """The brokersets file, read and checked; None if no option names it and none is beside the topics file.

    Raises:
        ConfigError: it breaks a rule, or does not exist although the option names it.
    """
    path = brokersets_file()
    return load_brokersets(path) if option("brokersets") or path.exists() else None


def in_order(deployment: Deployment) -> list[TopicSettings]:
    """Topics by cluster and name, whatever the file's order, so that DAGs do not change needlessly."""
    return sorted(deployment.topics, key=lambda topic: (topic.cluster, topic.topic))


def topic_table(cluster: str, topic: str) -> TopicTable:
    """The table of a topic. Raises ConfigError if the topics file no longer has it."""
    from tidemark.table.delta_table import open_topic_table

    current = deployment()
    return open_topic_table(current, current.topic(topic, cluster))


def spark_job(name: str) -> Path:
    """Path of the Spark application with this name, such as ``ingest.py``."""
    return Path(option("spark_jobs") or installation.folder("jobs")) / name


def spark_submit() -> str | None:
    """The program to submit with; None leaves the choice to the connection and ``PATH``."""
    return option("spark_submit") or None


def spark_python() -> str:
    """The Python that runs a job as a client of Spark Connect.

    Raises:
        ConfigError: no option names it, and none is beside spark-submit.
    """
    if (python := python_of_spark()) is not None:
        return python
    rule = "must name the Python of Spark's environment, since there is none beside spark-submit"
    raise ConfigError("Airflow's configuration", [(label("spark_python"), rule)])


def python_of_spark() -> str | None:
    """The Python of Spark's environment: the option's, or the one beside spark-submit; None if neither is known."""
    if named := option("spark_python"):
        return named
    submit = shutil.which(spark_submit() or "spark-submit")
    if submit is not None and (python := Path(submit).resolve().with_name("python")).exists():
        return str(python)
    return None


def spark_environment() -> dict[str, str]:
    """The variable that names the workers' Python if nothing else does; they would take python3 of ``PATH``."""
    submit = spark_submit()
    if os.environ.get("PYSPARK_PYTHON") or submit is None:
        return {}
    python = Path(submit).with_name("python")
    return {"PYSPARK_PYTHON": str(python)} if python.is_absolute() and python.exists() else {}
