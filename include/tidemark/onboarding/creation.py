"""The creation of a topic: its number of partitions, and the brokerset and stride that carry it best."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tidemark.brokersets.load import PartitionLoad, load_of
from tidemark.brokersets.placement import Replicas, place, reassignment, replica_assignment, strides
from tidemark.brokersets.settings import Brokerset, brokerset_named, load_brokersets
from tidemark.errors import ConfigError
from tidemark.onboarding.gather import cluster_loads
from tidemark.onboarding.kafka_source import KafkaSource
from tidemark.onboarding.onboard import OnboardingRequest, check_request
from tidemark.onboarding.options import WantedTopic
from tidemark.terminal import columns
from tidemark.topics import Deployment


class Creation(NamedTuple):
    """The placements that can be balanced, the best first, and Kafka's command that creates the topic with the best."""

    wanted: WantedTopic
    choices: Sequence[Choice]
    command: str

    @property
    def best(self) -> Choice:
        """The proposed placement."""
        return self.choices[0]

    def answer(self) -> dict[str, Any]:
        """The placements for programs."""
        return {
            "topic": f"{self.wanted.cluster}/{self.wanted.topic}",
            "chosen": self.best.answer(),
            "choices": [choice.answer() for choice in self.choices],
            "assignment": reassignment(self.wanted.topic, self.best.placement),
            "command": self.command,
        }

    def lines(self) -> Iterator[str]:
        """The placements for people, without the command."""
        best = self.best
        yield (
            f"{self.wanted.cluster}/{self.wanted.topic}: {len(best.placement)} partitions in brokerset "
            f"{best.brokerset.name}, stride {best.stride}"
        )
        rows: list[Sequence[object]] = [
            ("BROKERSET", "STRIDE", "PARTITIONS", "BUSIEST MB/S", "WITHOUT A BROKER", "FITS")
        ]
        for choice in self.choices:
            loads = (f"{choice.busiest / 1e6:,.2f}", f"{choice.busiest_without / 1e6:,.2f}")
            fits = "yes" if choice.fits else "NO"
            rows.append((choice.brokerset.name, choice.stride, len(choice.placement), *loads, fits))
        yield columns(rows)


def create(
    wanted: WantedTopic,
    topics: Path,
    deployment: Deployment,
    client: Mapping[str, Any] | None,
    brokersets: Path,
    show: Callable[[Creation], None],
    *,
    execute: bool,
) -> None:
    """Propose a placement by load, and ``show`` it; create the topic if a person has asked for that (``execute``).

    ``deployment`` is parsed from the file ``topics``; ``brokersets`` is the path of the brokersets; ``client`` are
    kafka-python's settings, None if the brokers' addresses are not known.

    Raises:
        ConfigError: something is missing, cannot be balanced, has no room, or exists already.
        BrokerError: Kafka did not do it.
    """
    check_request(OnboardingRequest(topics, wanted.cluster, wanted.topic), deployment, None)
    if wanted.rate is None:
        raise ConfigError("--create", [("--rate", "is required: the bytes per second that the topic will receive")])
    if client is None:
        raise ConfigError("--create", [("--bootstrap", "is required, unless the topics file has bootstrap")])
    known = load_brokersets(brokersets).of_cluster(wanted.cluster)
    if wanted.brokerset is not None:
        known = (brokerset_named(known, wanted.brokerset),)
    with KafkaSource(client) as kafka:
        if kafka.facts(wanted.topic) is not None:
            raise ConfigError(wanted.topic, [("--create", "the topic exists already; leave --create out")])
        loads = cluster_loads(deployment, wanted.cluster, kafka.replicas())
        balanced = choices(wanted, wanted.rate, known, loads)
        best = balanced[0]
        command = ["kafka-topics.sh", "--bootstrap-server", ",".join(client["bootstrap_servers"]), "--create"]
        command += ["--topic", wanted.topic, "--replica-assignment", replica_assignment(best.placement)]
        show(Creation(wanted, balanced, shlex.join(command)))
        if not best.fits:
            rule = (
                "no brokerset has room for it: some broker would exceed its capacity; add a brokerset, or lower --rate"
            )
            raise ConfigError("--create", [("", rule)])
        if execute:
            kafka.create(wanted.topic, best.placement)


class Choice(NamedTuple):
    """A placement, and the busiest broker's load with it, in bytes a second: today, and without the worst broker."""

    brokerset: Brokerset
    stride: int
    placement: tuple[Replicas, ...]
    busiest: float
    busiest_without: float

    @property
    def fits(self) -> bool:
        """True if no broker has more than its capacity, also with any one broker gone."""
        capacity = self.brokerset.capacity
        return capacity is None or max(self.busiest, self.busiest_without) <= capacity

    def answer(self) -> dict[str, Any]:
        """The placement for programs."""
        return {
            "brokerset": self.brokerset.name,
            "stride": self.stride,
            "partitions": len(self.placement),
            "busiest": self.busiest,
            "busiest_without": self.busiest_without,
            "capacity": self.brokerset.capacity,
            "fits": self.fits,
        }


def partitions_for(rate: float, each: float, brokerset: Brokerset) -> int:
    """The partitions that ``rate`` bytes a second need at ``each`` a partition: a multiple of the brokers."""
    brokers = len(brokerset.brokers)
    return max(1, math.ceil(math.ceil(rate / each) / brokers)) * brokers


def choices(
    wanted: WantedTopic, rate: float, brokersets: Sequence[Brokerset], loads: Sequence[PartitionLoad]
) -> list[Choice]:
    """The placements that can be balanced, the best first: the least load with the worst broker gone, by capacity.

    ``rate`` is in bytes a second, ``loads`` are those of the cluster without the topic.

    Raises:
        ConfigError: there is none; names the reason for each brokerset.
    """
    balanced: list[Choice] = []
    reasons: list[tuple[str, str]] = []
    for brokerset in brokersets:
        count = wanted.partitions or partitions_for(rate, wanted.partition_rate, brokerset)
        try:
            for stride in range(strides(brokerset)):
                placement = place(brokerset, count, wanted.replication_factor, stride)
                added = [
                    PartitionLoad(wanted.topic, number, replicas[0], rate / count, replicas=replicas)
                    for number, replicas in enumerate(placement)
                ]
                load = load_of(brokerset, [*loads, *added])
                balanced.append(Choice(brokerset, stride, placement, load.busiest[1], load.worst[2]))
        except ConfigError as error:
            reasons += [(f"{brokerset.name}: {key}", rule) for key, rule in error.problems]
    if not balanced:
        raise ConfigError("the brokersets", reasons)

    def order(choice: Choice) -> tuple[bool, float, int]:
        return not choice.fits, choice.busiest_without / (choice.brokerset.capacity or 1), choice.stride

    return sorted(balanced, key=order)
