"""Asks Kafka and the store for the facts and the sample that onboarding starts from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidemark.brokersets.load import PartitionLoad
from tidemark.brokersets.observed import loads
from tidemark.errors import ConfigError
from tidemark.formats.keys import TopicPartition
from tidemark.inspection.led_partitions import led_partitions
from tidemark.onboarding.facts import TopicFacts
from tidemark.onboarding.kafka_source import KafkaSource
from tidemark.onboarding.onboard import Request, check_request
from tidemark.onboarding.options import SampleSource
from tidemark.onboarding.raw_source import raw_sample
from tidemark.onboarding.sample import Sample
from tidemark.remote.catalog.storage import Storage
from tidemark.topics import Deployment


def facts_and_sample(
    request: Request,
    deployment: Deployment,
    client: Mapping[str, Any] | None,
    source: SampleSource,
    records: int,
) -> tuple[TopicFacts | None, Sample | None]:
    """Kafka's facts about the topic (None if Kafka is not asked), and a sample from raw, or from Kafka if raw has none.

    Raises:
        ConfigError: the topic is refused, or neither raw nor Kafka has it.
        BrokerError, StoreError, FormatError: Kafka or the store cannot be asked.
    """
    facts: TopicFacts | None = None
    sample: Sample | None = None
    name = f"{request.cluster}/{request.topic}"
    check_request(request, deployment, None)  # before its name becomes part of a key or a request
    if source != "kafka":
        storage = Storage(request.cluster, deployment.raw, deployment.store)
        sample = raw_sample(storage, request.topic, records)
    if client is not None:
        with KafkaSource(client) as kafka:
            facts = kafka.facts(request.topic)
            if facts is None:
                raise ConfigError(name, [("", "the cluster has no such topic; --create proposes how to create it")])
            check_request(request, deployment, facts)
            if sample is None and source != "raw":
                sample = kafka.sample(request.topic, facts.partitions, records)
    elif sample is None:
        rule = "the agents have stored no record of it; give --bootstrap, or bootstrap in the topics file, to ask Kafka"
        raise ConfigError(name, [("", rule)])
    return facts, sample


def cluster_loads(
    deployment: Deployment, cluster: str, replicas: Mapping[TopicPartition, tuple[int, ...]] | None = None
) -> list[PartitionLoad]:
    """The loads of all partitions that agents of ``cluster`` report. Raises StoreError and FormatError."""
    return loads(led_partitions(deployment, cluster), None, replicas)


def topic_loads(deployment: Deployment, cluster: str, topic: str) -> list[PartitionLoad]:
    """The loads of one topic's partitions, from :func:`cluster_loads`."""
    return [load for load in cluster_loads(deployment, cluster) if load.topic == topic]
