"""``tidemark brokersets``: the load of brokersets, and the placement of a topic's replicas in one."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer
from pydantic import TypeAdapter, ValidationError

from tidemark.brokersets.load import BrokersetLoad, load_of, observed_loads
from tidemark.brokersets.placement import place as placed
from tidemark.brokersets.placement import reassignment, replica_assignment
from tidemark.brokersets.settings import Brokerset, brokerset_named, load_brokersets
from tidemark.cli.options import DEFAULT_TOPICS, As, ClientConfig, Topics, client_settings, need_consumer_extra
from tidemark.config import Duration
from tidemark.errors import ConfigError
from tidemark.formats.keys import TopicPartition, check_topic
from tidemark.inspection.agent_reports import led_partitions
from tidemark.terminal import columns
from tidemark.topics import load_topics
from tidemark.words import plural

brokersets_app = typer.Typer(no_args_is_help=True, help="Subsets of a cluster's brokers: load and placement.")

BrokersetsPath = Annotated[
    Path, typer.Option("--brokersets", envvar="TIDEMARK_BROKERSETS", metavar="FILE", help="The brokersets file.")
]
DEFAULT_BROKERSETS: Final = Path("brokersets.yaml")
ClusterOfFile = Annotated[str | None, typer.Option(help="Needed where the file has several clusters.")]


Tool = Literal["kafka-reassign-partitions", "kafka-topics"]
"""The Kafka tool that takes the placement."""


@brokersets_app.command(epilog="Example: tidemark brokersets show --topics include/topics.yaml --output json")
def show(
    brokersets: BrokersetsPath = DEFAULT_BROKERSETS,
    over: Annotated[
        str | None, typer.Option(metavar="TIME", help="Measure for so long, such as 2m, instead of estimating rates.")
    ] = None,
    bootstrap: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Ask these brokers which replicas follow.")
    ] = None,
    client_config: ClientConfig = None,
    topics: Topics = DEFAULT_TOPICS,
    cluster: ClusterOfFile = None,
    output: As = "text",
) -> None:
    """Show each brokerset's upload load, lag and hold in the agents' watermark indexes, and its load without a broker.

    An agent uploads what its broker leads. Rates are estimated from each active segment, or measured with --over. If a
    broker is lost, its leaders move to the replicas that follow; without --bootstrap these are not known, and its load
    is spread evenly over the other zones. Exits with 1 if a capacity is exceeded, today or without a broker.
    """
    deployment = load_topics(topics)
    name, known = cluster_brokersets(brokersets, cluster)
    before = None
    if over is not None:
        before = led_partitions(deployment, name)
        time.sleep(duration(over, "--over").total_seconds())
    replicas = None if bootstrap is None else _replicas(client_settings(bootstrap, client_config))
    partitions = observed_loads(led_partitions(deployment, name), before, replicas)
    loaded = [load_of(brokerset, partitions) for brokerset in known]
    answer = {"cluster": name, "brokersets": [load.answer() for load in loaded]}
    typer.echo(json.dumps(answer) if output == "json" else "\n".join(_lines(name, loaded)))
    if any(load.exceeded for load in loaded):
        raise typer.Exit(1)


@brokersets_app.command(
    epilog="Examples: tidemark brokersets place orders --brokerset a --partitions 6 --stride 1 > orders.json   "
    'kafka-topics.sh --create --topic orders --replica-assignment "$(tidemark brokersets place orders --brokerset a '
    '--partitions 6 --for kafka-topics)"'
)
def place(
    topic: Annotated[str, typer.Argument(help="The topic that is placed.")],
    brokerset: Annotated[str, typer.Option(help="The brokerset's name in the file.")],
    partitions: Annotated[int, typer.Option(min=1, help="How many; a multiple of the brokerset's brokers.")],
    replication_factor: Annotated[int, typer.Option(min=1, help="Replicas of each partition.")] = 3,
    stride: Annotated[
        int, typer.Option(min=0, help="0 is sequential; topics of one brokerset take different ones.")
    ] = 0,
    tool: Annotated[
        Tool, typer.Option("--for", help="The Kafka tool that takes the answer.")
    ] = "kafka-reassign-partitions",
    brokersets: BrokersetsPath = DEFAULT_BROKERSETS,
    cluster: ClusterOfFile = None,
) -> None:
    """Print the placement of a topic's replicas in the format of a Kafka tool. Nothing is changed."""
    try:
        check_topic(topic)
    except ValueError as error:
        raise ConfigError("the topic", [("", str(error))]) from error
    _, known = cluster_brokersets(brokersets, cluster)
    placement = placed(brokerset_named(known, brokerset), partitions, replication_factor, stride)
    created = tool == "kafka-topics"
    typer.echo(replica_assignment(placement) if created else json.dumps(reassignment(topic, placement)))


def cluster_brokersets(path: Path, cluster: str | None) -> tuple[str, tuple[Brokerset, ...]]:
    """(cluster, its brokersets); the file's only cluster if none is given. Raises ConfigError."""
    file = load_brokersets(path)
    if cluster is None:
        if len(file.clusters) != 1:
            rule = f"has several clusters ({', '.join(file.clusters)}): choose one with --cluster"
            raise ConfigError(str(path), [("clusters", rule)])
        [cluster] = file.clusters
    return cluster, file.of_cluster(cluster)


def duration(text: str, option: str) -> timedelta:
    """A length of time of the command line. Raises ConfigError."""
    try:
        length: timedelta = TypeAdapter(Duration).validate_python(text)
    except ValidationError as error:
        rule = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise ConfigError(option, [("", f"{rule}, but it is {text!r}")]) from None
    return length


def _lines(cluster: str, loaded: Sequence[BrokersetLoad]) -> Iterator[str]:
    yield f"{cluster}: upload load in MB/s, by the agents' watermark indexes"
    head = (
        "brokerset",
        "brokers",
        "partitions",
        "load",
        "busiest",
        "lag",
        "held MB",
        "without",
        "busiest then",
        "load",
    )
    rows: list[Sequence[object]] = [head]
    for load in loaded:
        (top, most), (gone, busiest, rate), total = load.busiest, load.worst, load.total
        name, count = load.brokerset.name, len(load.brokerset.brokers)
        cells = (name, count, load.partitions, _mb(total.rate), f"{top}: {_mb(most)}")
        rows.append((*cells, f"{total.lag:,.0f}", f"{total.held / 1e6:,.0f}", gone, busiest, _mb(rate)))
    yield columns(rows, right=True)
    yield ""
    yield columns(_brokers(loaded), right=True)
    for load in loaded:
        name = load.brokerset.name
        if load.failover == "even":
            yield f"{name}: replicas are not known; the load of a lost broker is taken to spread evenly"
        if load.unmeasured:
            yield f"{name}: the rate of {plural(load.unmeasured, 'partition')} is not known"
        if load.exceeded:
            yield f"{name}: A CAPACITY OF {_mb(load.brokerset.capacity or 0)} MB/s IS EXCEEDED"


def _brokers(loaded: Sequence[BrokersetLoad]) -> Iterator[Sequence[object]]:
    """A table of brokers: the load today, and the highest load of another broker after the loss of this one."""
    yield "brokerset", "broker", "load", "lag", "held MB", "without it", "busiest", "most lag", "most held MB"
    for load in loaded:
        for broker, now in load.brokers.items():
            cells = (load.brokerset.name, broker, _mb(now.rate), f"{now.lag:,.0f}", f"{now.held / 1e6:,.0f}")
            then = load.without.get(broker)
            left = () if then is None else (then.busiest, _mb(then.rate), f"{then.lag:,.0f}", f"{then.held / 1e6:,.0f}")
            yield (*cells, *(left or (None,) * 4))


def _mb(rate: float) -> str:
    return f"{rate / 1e6:,.2f}"


def _replicas(client: dict[str, Any]) -> dict[TopicPartition, tuple[int, ...]]:
    """The replicas of all partitions of the cluster. Raises BrokerError."""
    need_consumer_extra()
    from tidemark.onboarding.kafka_source import KafkaSource

    with KafkaSource(client) as kafka:
        return kafka.replicas()
