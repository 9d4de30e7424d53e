"""``tidemark topics add --create``: partitions and placement of a topic that does not exist yet."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import typer

from tidemark.brokersets.assignment import reassignment, replica_assignment
from tidemark.brokersets.settings import brokerset_named, load_brokersets
from tidemark.errors import ConfigError
from tidemark.onboarding.capacity import Choice, choices
from tidemark.onboarding.gather import cluster_loads
from tidemark.onboarding.kafka_source import KafkaSource
from tidemark.onboarding.onboard import Request, check_request
from tidemark.terminal import Output, columns
from tidemark.topics import Deployment


class Wanted(NamedTuple):
    """The topic that is to be. Rates are in bytes a second, that of a partition is what it may have at most."""

    cluster: str
    topic: str
    rate: float | None
    partition_rate: float
    partitions: int | None
    replication_factor: int
    brokerset: str | None


def create(
    wanted: Wanted,
    topics: Path,
    deployment: Deployment,
    client: dict[str, Any] | None,
    path: Path,
    *,
    execute: bool,
    output: Output,
) -> None:
    """Propose a placement by load, and print the command; create the topic if a person has said so (``execute``).

    ``deployment`` is what the file ``topics`` says; ``path`` is that of the brokersets file.

    Raises:
        ConfigError: something is missing, cannot be balanced, or is there already.
        BrokerError: Kafka did not do it.
    """
    check_request(Request(topics, wanted.cluster, wanted.topic), deployment, None)
    if wanted.rate is None:
        raise ConfigError("--create", [("--rate", "is needed: the bytes a second that the topic will have")])
    if client is None:
        raise ConfigError("--create", [("--bootstrap", "is needed, or bootstrap in the topics file")])
    known = load_brokersets(path).of_cluster(wanted.cluster)
    if wanted.brokerset is not None:
        known = (brokerset_named(known, wanted.brokerset),)
    with KafkaSource(client) as kafka:
        if kafka.facts(wanted.topic) is not None:
            raise ConfigError(wanted.topic, [("--create", "the topic exists already; leave --create out")])
        found = choices(
            wanted.topic,
            wanted.rate,
            wanted.partition_rate,
            wanted.replication_factor,
            known,
            cluster_loads(deployment, wanted.cluster, kafka.replicas()),
            wanted.partitions,
        )
        best = found[0]
        command = _command(wanted.topic, best, ",".join(client["bootstrap_servers"]))
        if output is Output.json:
            typer.echo(json.dumps(_answer(wanted, best, found, command)))
        else:
            typer.echo("\n".join(_lines(wanted, best, found, command)))
        if not best.fits:
            rule = (
                "no brokerset has room for it: some broker would exceed its capacity; add a brokerset, or choose a rate"
            )
            raise ConfigError("--create", [("", rule)])
        if execute:
            kafka.create(wanted.topic, best.placement, {})
            typer.echo(f"{wanted.topic}: created; onboard it by the same command without --create", err=True)


def _command(topic: str, best: Choice, bootstrap: str) -> str:
    parts = ["kafka-topics.sh", "--bootstrap-server", bootstrap, "--create", "--topic", topic]
    return shlex.join([*parts, "--replica-assignment", replica_assignment(best.placement)])


def _answer(wanted: Wanted, best: Choice, found: Sequence[Choice], command: str) -> dict[str, Any]:
    return {
        "topic": f"{wanted.cluster}/{wanted.topic}",
        "chosen": best.answer(),
        "choices": [one.answer() for one in found],
        "assignment": reassignment(wanted.topic, best.placement),
        "command": command,
    }


def _lines(wanted: Wanted, best: Choice, found: Sequence[Choice], command: str) -> Iterator[str]:
    count, name = len(best.placement), best.brokerset.name
    yield f"{wanted.cluster}/{wanted.topic}: {count} partitions in brokerset {name}, stride {best.stride}"
    rows: list[Sequence[object]] = [("BROKERSET", "STRIDE", "PARTITIONS", "BUSIEST MB/S", "WITHOUT A BROKER", "FITS")]
    for one in found:
        loads = (f"{one.busiest / 1e6:,.2f}", f"{one.busiest_without / 1e6:,.2f}")
        rows.append((one.brokerset.name, one.stride, len(one.placement), *loads, "yes" if one.fits else "NO"))
    yield columns(rows)
    yield command
