"""Asks Kafka about a topic, samples it, and creates one: the only module of onboarding that talks to brokers."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Self

import pyarrow as pa
from kafka import KafkaConsumer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, NewTopic
from kafka.errors import KafkaError

from tidemark.brokersets.placement import Replicas
from tidemark.decode.schema import MAX_MILLISECONDS
from tidemark.errors import BrokerError
from tidemark.formats import keys
from tidemark.intervals import Interval
from tidemark.kafka_admin import AdminClient, patiently
from tidemark.onboarding.facts import (
    MOST_SAMPLE_BYTES,
    SAMPLE_COLUMNS,
    Sample,
    TopicFacts,
    first_and_last,
    sample_rows,
    sampled_partitions,
)

_POLL_MS: Final = 200
_READ_SECONDS: Final = 20.0


class KafkaSource:
    """A cluster; ``client`` are kafka-python's settings, ``bootstrap_servers`` among them. Use it with ``with``."""

    def __init__(self, client: Mapping[str, Any]) -> None:
        """Connect to the cluster. Raises BrokerError."""
        self._client = dict(client)
        self._where = ", ".join(self._client["bootstrap_servers"])
        try:
            self._admin = AdminClient(**self._client)
        except KafkaError as error:
            raise self._failed(error) from error

    def facts(self, topic: str) -> TopicFacts | None:
        """The cluster's description of a topic; None if it does not exist. Raises BrokerError."""
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        try:
            if topic not in patiently(self._admin.list_topics):
                return None  # asking for it by name might create it
            [description] = patiently(self._admin.describe_topics, [topic])
            answer = patiently(self._admin.describe_configs, [resource], config_filter="all")
        except KafkaError as error:
            raise self._failed(error) from error
        parts = sorted(description["partitions"], key=lambda part: part["partition_index"])
        return TopicFacts(
            topic=topic,
            replicas=tuple(tuple(part["replica_nodes"]) for part in parts),
            internal=bool(description.get("is_internal")),
            config={name: str(setting["value"]) for name, setting in answer["topic"][topic].items()},
        )

    def replicas(self) -> dict[keys.TopicPartition, Replicas]:
        """The replicas of all partitions of the cluster. Raises BrokerError."""
        try:
            topics = patiently(self._admin.describe_topics)
        except KafkaError as error:
            raise self._failed(error) from error
        return {
            keys.TopicPartition(topic["name"], part["partition_index"]): tuple(part["replica_nodes"])
            for topic in topics
            for part in topic["partitions"]
        }

    def sample(self, topic: str, partitions: int, records: int) -> Sample:
        """At most ``records`` committed records, the first and last of each partition. Raises BrokerError.

        Records that a broker does not give within 20 s are left out.
        """
        numbers = sampled_partitions(range(partitions))
        asked = [TopicPartition(topic, number) for number in numbers]
        try:
            consumer = KafkaConsumer(
                **self._client,
                isolation_level="read_committed",
                auto_offset_reset="none",
                enable_auto_commit=False,
                group_id=None,
                max_poll_records=500,
            )
            try:
                first, last = consumer.beginning_offsets(asked), consumer.end_offsets(asked)
                spans = {at.partition: Interval(first[at], last[at]) for at in asked}
                each = max(2, records // max(1, len(asked)))
                batches = list(_read(consumer, topic, spans, each))
            finally:
                consumer.close()
        except KafkaError as error:
            raise self._failed(error) from error
        return Sample("kafka", sample_rows(batches), spans, partitions)

    def create(self, topic: str, placement: Sequence[Replicas]) -> None:
        """Create a topic with these replicas. Raises BrokerError, also if it exists."""
        new = NewTopic(topic, replica_assignments=dict(enumerate(placement)))
        try:
            self._admin.create_topics([new], wait_for_metadata=True)
        except KafkaError as error:
            raise self._failed(error) from error

    def _failed(self, error: KafkaError) -> BrokerError:
        return BrokerError(f"{self._where}: {error!r}; check --bootstrap, --client-config and the rights on the topic")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._admin.close()


def _read(consumer: Any, topic: str, spans: Mapping[int, Interval], each: int) -> Iterator[pa.RecordBatch]:
    size = 0
    for number, span in spans.items():
        at = TopicPartition(topic, number)
        consumer.assign([at])
        for part in first_and_last(span, each):
            consumer.seek(at, part.start)
            records = list(_records(consumer, at, part.end))
            size += sum(len(record.key or b"") + len(record.value or b"") for record in records)
            if records:
                yield _batch(records)
            if size >= MOST_SAMPLE_BYTES:
                return


def _records(consumer: Any, at: TopicPartition, end: int) -> Iterator[Any]:
    until = time.monotonic() + _READ_SECONDS
    while consumer.position(at) < end and time.monotonic() < until:
        for record in consumer.poll(timeout_ms=_POLL_MS).get(at, []):
            if record.offset < end:
                yield record


def _batch(records: Sequence[Any]) -> pa.RecordBatch:
    """The records as :data:`SAMPLE_COLUMNS`; a time that no table can hold is null, as in the decoder."""
    rows = [
        {
            "kafka_partition": record.partition,
            "kafka_offset": record.offset,
            "kafka_timestamp": _instant(record.timestamp),
            "kafka_key": record.key,
            "kafka_value": record.value,
            "kafka_headers": [
                {"key": key, "value": None if value is None else bytes(value)} for key, value in record.headers
            ],
        }
        for record in records
    ]
    return pa.RecordBatch.from_pylist(rows, schema=SAMPLE_COLUMNS)


def _instant(milliseconds: int | None) -> int | None:
    if milliseconds is None or abs(milliseconds) > MAX_MILLISECONDS:
        return None
    return milliseconds * 1000
