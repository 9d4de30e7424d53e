"""A look at a topic, from its name to the change: the work of ``tidemark topics add`` and of Airflow's form.

It begins with the facts and the sample, for which Kafka and the store are asked. The rights of these credentials are
tried, without leaving anything behind. Other roles' rights follow from objects they have written, or are unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from tidemark.brokersets.load import PartitionLoad, observed_loads
from tidemark.errors import ConfigError, FormatError, NeverSeen, StoreError
from tidemark.formats.keys import TopicPartition
from tidemark.inspection.agent_reports import check_seen, led_partitions
from tidemark.intervals import Interval
from tidemark.onboarding.facts import Sample, TopicFacts, first_and_last, sample_rows, sampled_partitions
from tidemark.onboarding.kafka_source import KafkaSource
from tidemark.onboarding.onboard import Onboarding, OnboardingRequest, check_request, onboard
from tidemark.onboarding.options import SampleSource
from tidemark.remote.reader.read_range import iter_range
from tidemark.remote.topics import RemoteTopics
from tidemark.storage import Storage
from tidemark.store import open_store
from tidemark.store.probe import Outcome, Tried, probe_key, try_to_get, try_to_list, try_to_put
from tidemark.timestamps import utc_now
from tidemark.topics import Deployment, TopicSettings


def facts_and_sample(
    request: OnboardingRequest,
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
        sample = _raw_sample(storage, request.topic, records)
    if client is not None:
        with KafkaSource(client) as kafka:
            facts = kafka.facts(request.topic)
            if facts is None:
                raise ConfigError(name, [("", "the cluster has no such topic; --create proposes how to create it")])
            check_request(request, deployment, facts)
            if sample is None and source != "raw":
                sample = kafka.sample(request.topic, facts.partitions, records)
    elif sample is None:
        rule = "no record of it is stored; to ask Kafka, give --bootstrap, or set bootstrap in the topics file"
        raise ConfigError(name, [("", rule)])
    return facts, sample


def cluster_loads(
    deployment: Deployment, cluster: str, replicas: Mapping[TopicPartition, tuple[int, ...]] | None = None
) -> list[PartitionLoad]:
    """The loads of all partitions that agents of ``cluster`` report. Raises StoreError and FormatError."""
    return observed_loads(led_partitions(deployment, cluster), None, replicas)


def topic_loads(deployment: Deployment, cluster: str, topic: str) -> list[PartitionLoad]:
    """The loads of one topic's partitions, from :func:`cluster_loads`."""
    return [load for load in cluster_loads(deployment, cluster) if load.topic == topic]


def _raw_sample(storage: Storage, topic: str, records: int) -> Sample | None:
    """A sample from the segments that agents stored, of about ``records`` records; None if they have stored none.

    Raises:
        StoreError, FormatError, SegmentError: raw cannot be read.
    """
    topics = RemoteTopics(storage)
    numbers = topics.partitions_for_topic(topic)
    spans: dict[int, Interval] = {}
    for number in sampled_partitions(numbers):
        known = topics.partition(topic, number)
        if known is not None:
            spans[number] = Interval(known.start, max(known.start, known.end(committed=True)))
    each = max(2, records // max(1, len(spans)))
    batches = [
        batch
        for number, span in spans.items()
        for part in first_and_last(span, each)
        for batch in iter_range(topic, number, *part, storage=storage, on_gap="skip")
    ]
    rows = sample_rows(batches)
    return Sample("raw", rows, spans, len(numbers)) if len(rows) else None


def look_at(
    request: OnboardingRequest,
    deployment: Deployment,
    client: Mapping[str, Any] | None,
    source: SampleSource,
    records: int,
    say: Callable[[str], None],
) -> tuple[Onboarding, tuple[Right, ...]]:
    """Ask Kafka (``client`` are kafka-python's settings, None asks nobody), sample, propose, and try rights.

    ``deployment`` is parsed from the file of ``request``. ``say`` gets the progress.

    Raises:
        ConfigError: the topic is refused; names the reason, and the option that would change that.
        BrokerError, StoreError, FormatError, SegmentError, RegistryUnavailable: a service cannot be asked.
    """
    say("asking Kafka and sampling records …")
    facts, sample = facts_and_sample(request, deployment, client, source, records)
    loads = topic_loads(deployment, request.cluster, request.topic)
    found = onboard(request, facts, sample, loads, utc_now(), say)
    say("trying rights …")
    return found, tuple(rights(deployment, found.topic))


class Right(NamedTuple):
    """A right of ``role``; ``outcome`` says if it has it, ``detail`` how that is known, or the store's answer."""

    role: str
    what: str
    outcome: Outcome
    detail: str


def rights(deployment: Deployment, topic: TopicSettings) -> Iterator[Right]:
    """The rights that ``topic`` needs."""
    storage = Storage(topic.cluster, deployment.raw, deployment.store)
    cluster = storage.cluster_store(storage.endpoint(topic.topic, 0))
    yield _of("reader, pipeline", try_to_list(cluster.store, cluster.keys.indexes))
    yield _of("reader, pipeline", try_to_get(cluster.store, cluster.keys.incarnations(topic.topic)))
    lake, folder = open_store(deployment.lake_store, deployment.store), deployment.table_keys(topic).root
    yield _of("pipeline", try_to_list(lake, f"{folder}/"))
    yield _of("pipeline", try_to_get(lake, probe_key(folder)))
    yield _of("pipeline", try_to_put(lake, folder))
    yield _agents(deployment, topic)
    yield Right("maintenance, retention", "delete", "unknown", "cannot be checked without deleting something")


def _of(role: str, tried: Tried) -> Right:
    return Right(role, *tried)


def _agents(deployment: Deployment, topic: TopicSettings) -> Right:
    right = "put segments of the topic"
    try:
        check_seen(deployment, topic)
    except NeverSeen as error:
        return Right("agent", right, "unknown", str(error))
    except (StoreError, FormatError) as error:
        return Right("agent", right, "unknown", f"what the agents wrote cannot be read: {error}")
    return Right("agent", right, "yes", "an agent has reported the topic")
