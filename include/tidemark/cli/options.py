"""Options that several commands share, and the mark of commands that write."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeVar

import typer

from tidemark.cli.airflow_client import TOKEN
from tidemark.config import hint
from tidemark.errors import ConfigError
from tidemark.formats.keys import check_topic
from tidemark.installation import need
from tidemark.terminal import Output
from tidemark.topics import load_topics

if TYPE_CHECKING:
    from tidemark.storage import Storage
    from tidemark.topics import Deployment


Command = TypeVar("Command", bound=Callable[..., None])

WRITING: Final[set[Callable[..., None]]] = set()
"""The functions of commands that write; the help of ``tidemark`` names them."""


def writes(command: Command) -> Command:
    """Mark ``command`` as one that writes: to a store, Kafka, Airflow or the topics file. All others only read."""
    WRITING.add(command)
    return command


def not_empty(text: str) -> str:
    """A text of the command line. Raises BadParameter if it is empty."""
    if not text.strip():
        raise typer.BadParameter("must not be empty")
    return text


def iso_dates(values: list[str] | None) -> list[str] | None:
    """Dates of the command line in ISO format. Raises BadParameter for anything else."""
    try:
        return None if values is None else [date.fromisoformat(value).isoformat() for value in values]
    except ValueError as error:
        raise typer.BadParameter("must be a date such as 2026-11-20") from error


def checked_topic(name: str, option: str) -> str:
    """The name of a topic of Kafka. Raises ConfigError that names ``option``."""
    try:
        return check_topic(name)
    except ValueError as error:
        raise ConfigError(option, [("", str(error))]) from error


def chosen_clusters(topics: Path, deployment: Deployment, cluster: str | None) -> list[str]:
    """The clusters of the topics file, limited to ``cluster`` if given. Raises ConfigError if no topic is its."""
    if cluster not in {None, *deployment.clusters}:
        rule = f"no topic belongs to a cluster {cluster}; {hint(str(cluster), deployment.clusters)}"
        raise ConfigError(str(topics), [("--cluster", rule)])
    return [name for name in deployment.clusters if cluster in {None, name}]


def show(answer: object, lines: Iterable[str], output: Output) -> None:
    """Print ``answer`` as one JSON document for programs, or its ``lines`` for people."""
    typer.echo(json.dumps(answer, ensure_ascii=False) if output == "json" else "\n".join(lines))


FIRST_DATE: Final = typer.Option("--from", formats=["%Y-%m-%d"], help="The first date, inclusive.")
LAST_DATE: Final = typer.Option("--to", formats=["%Y-%m-%d"], help="The last date, inclusive.")

TopicName = Annotated[str, typer.Argument(help="A topic of the topics file.")]
Topics = Annotated[Path, typer.Option(envvar="TIDEMARK_TOPICS", metavar="FILE", help="The topics file.")]
Cluster = Annotated[str | None, typer.Option(help="Needed where two clusters have the topic's name.")]
OnlyCluster = Annotated[str | None, typer.Option("--cluster", help="Only this cluster.")]
TokenFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help=f"A file with Airflow's token; default: the variable {TOKEN}.")
]
As = Annotated[Output, typer.Option("--output", "-o", help="For people, or for programs.")]

DEFAULT_TOPICS = Path("topics.yaml")


Partitions = Annotated[list[int] | None, typer.Option(min=0, help="Only this partition; may be repeated.")]
First = Annotated[list[str] | None, typer.Option("--from", metavar="WHERE", help="Where to begin; may be repeated.")]
Last = Annotated[list[str] | None, typer.Option("--to", metavar="WHERE", help="Where to stop; may be repeated.")]
Isolation = Annotated[
    Literal["read_committed", "read_uncommitted"],
    typer.Option(help="Without aborted and undecided records, or with them."),
]
OnGap = Annotated[
    Literal["error", "skip"], typer.Option(help="At a recorded gap: stop, or warn and continue behind it.")
]
ClientConfig = Annotated[
    Path | None, typer.Option(metavar="FILE", help="YAML with kafka-python's settings, such as security_protocol.")
]


def need_consumer_extra() -> None:
    """Raise ConfigError if the command's libraries are not installed, as beside a broker or in Airflow."""
    need("consumer", "pyarrow", "numba", "kafka")


def storage_of(topics: Path, topic: str, cluster: str | None) -> Storage:
    """The remote tier of a topics file: the cluster that has the topic, or the only cluster.

    Raises:
        ConfigError: the file is wrong, or several clusters have the topic.
    """
    from tidemark.storage import Storage

    deployment = load_topics(topics)
    clusters = {entry.cluster for entry in deployment.topics if entry.topic == topic}
    if cluster is None and len(clusters) == 1:
        [cluster] = clusters
    try:
        return Storage.from_topics(topics, cluster)
    except ValueError as error:
        raise ConfigError("--cluster", [("", str(error))]) from error


def client_settings(bootstrap: str, file: Path | None) -> dict[str, Any]:
    """kafka-python's settings for brokers. Raises ConfigError for a file with other settings."""
    from tidemark import kafka_admin

    return kafka_admin.client_settings(bootstrap, file, "--client-config")
