"""What a read_committed consumer reads from the broker equals the table, row for row, for each topic."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Producer
from kafka import KafkaConsumer, TopicPartition

from tests.end_to_end.deployment import SmallDeployment
from tests.support.kafka import KafkaCluster
from tests.support.s3 import S3Server
from tidemark.store.s3 import clients
from tidemark.table import committed_ledger, open_table

DAY = 86_400_000
NOVEMBER_18 = 1_794_960_000_000 - 1_794_960_000_000 % DAY
SMALL = {"segment.bytes": str(1 << 20)}


class Row(NamedTuple):
    """A record, as every reader must give it."""

    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def send(producer: Producer, topic: str, rng: random.Random, count: int, partitions: int) -> None:
    """Records of all kinds: keys, values and header values that are there, empty and null; three dates."""
    headers: list[tuple[str, str | bytes | None]] = [("a", b"1"), ("a", None), ("", b"")]
    for number in range(count):
        producer.produce(
            topic,
            key=rng.choice([None, b"", b"key-%d" % number]),
            value=rng.choice([None, b"", rng.randbytes(rng.randrange(1, 1500))]),
            headers=rng.choice([[], headers]),
            timestamp=NOVEMBER_18 + rng.randrange(3 * DAY),
            partition=rng.randrange(partitions),
        )
        producer.poll(0)
    assert producer.flush(60) == 0


def plain(bootstrap: str, topic: str, codec: str, rng: random.Random) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "compression.type": codec, "linger.ms": 20})
    send(producer, topic, rng, 6_000, 3)


def transactional(bootstrap: str, topic: str, codec: str, rng: random.Random) -> None:
    """Committed, aborted and interleaved transactions; the last one stays open."""
    patient = {"bootstrap.servers": bootstrap, "compression.type": codec, "transaction.timeout.ms": 600_000}
    producers = [Producer({**patient, "transactional.id": f"{topic}-{number}"}) for number in range(2)]
    for producer in producers:
        producer.init_transactions()
    for round_number in range(6):
        for producer in producers:
            producer.begin_transaction()
            send(producer, topic, rng, 400, 3)
        for number, producer in enumerate(producers):
            if (round_number + number) % 3 == 0:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
    producers[0].begin_transaction()
    send(producers[0], topic, rng, 50, 3)
    _open.append(producers[0])


_open: list[Producer] = []  # kept, so that closing does not abort what must stay open


@pytest.fixture
def small(
    kafka: KafkaCluster, s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SmallDeployment]:
    """A deployment of two topics on the session's servers."""
    for name, value in s3_server.env().items():
        monkeypatch.setenv(name, value)
    clients.cache_clear()
    mark = uuid.uuid4().hex[:8]
    topics = (f"plain-{mark}", f"transactional-{mark}")
    yield SmallDeployment(tmp_path, kafka, s3_server, mark, topics)
    clients.cache_clear()


def consumed(bootstrap: str, topic: str) -> set[Row]:
    """All that a read_committed consumer gets, by an independent implementation."""
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap,
        isolation_level="read_committed",
        enable_auto_commit=False,
        consumer_timeout_ms=10_000,
    )
    parts = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic)]
    consumer.assign(parts)
    consumer.seek_to_beginning()
    ends = consumer.end_offsets(parts)  # under read_committed: the last stable offsets
    rows: list[Row] = []
    while any(consumer.position(part) < ends[part] for part in parts):
        for records in consumer.poll(500).values():
            rows += [
                Row(one.partition, one.offset, one.timestamp, one.key, one.value, tuple(one.headers)) for one in records
            ]
    consumer.close()
    assert len(rows) == len(set(rows))
    return set(rows)


def landed(small: SmallDeployment, topic: str) -> list[Row]:
    table = open_table(small.lake(topic))
    assert table is not None
    found = table.to_pyarrow_table().to_pylist()
    assert {one["dt"].isoformat() for one in found} == {"2026-11-18", "2026-11-19", "2026-11-20"}
    assert all(one["dt"] == one["kafka_timestamp"].date() for one in found)
    return [
        Row(
            one["kafka_partition"],
            one["kafka_offset"],
            int(one["kafka_timestamp"].timestamp() * 1000),
            one["kafka_key"],
            one["kafka_value"],
            tuple((header["key"], header["value"]) for header in one["kafka_headers"]),
        )
        for one in found
    ]


def test_the_table_is_what_a_consumer_reads(small: SmallDeployment, rng: random.Random) -> None:
    bootstrap = small.kafka.bootstrap
    for topic in small.topics:
        small.kafka.create_topic(topic, partitions=3, config=SMALL)
    plain(bootstrap, small.topics[0], "zstd", rng)
    transactional(bootstrap, small.topics[1], "lz4", rng)
    small.upload()
    for topic in small.topics:
        assert small.convert(topic)["status"] == "landed"
        rows = landed(small, topic)
        assert len(rows) == len(set(rows)) == committed_ledger(small.lake(topic)).rows
        assert set(rows) == consumed(bootstrap, topic)
    held = [state for state in committed_ledger(small.lake(small.topics[1])).partitions if state.held_by]
    assert held, "the open transaction holds its partitions back"

    _open.pop().commit_transaction()
    plain(bootstrap, small.topics[0], "gzip", rng)
    small.upload()
    for topic in small.topics:
        assert small.convert(topic)["status"] == "landed"
        rows = landed(small, topic)
        assert len(rows) == len(set(rows))
        assert set(rows) == consumed(bootstrap, topic)
        assert small.convert(topic)["status"] == "empty", "nothing is left to do"
