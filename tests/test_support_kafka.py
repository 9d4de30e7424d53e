"""Both generations of Kafka start, keep records over a crash, and can be reconfigured."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from tests.support.kafka import KafkaCluster


def produce(cluster: KafkaCluster, topic: str, *values: bytes) -> None:
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap, acks="all")
    try:
        for value in values:
            producer.send(topic, value, partition=0).get(timeout=30)
    finally:
        producer.close()


def consume(cluster: KafkaCluster, topic: str, count: int) -> list[bytes]:
    consumer = KafkaConsumer(
        bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest", consumer_timeout_ms=30_000
    )
    try:
        consumer.assign([TopicPartition(topic, 0)])
        return [record.value for _, record in zip(range(count), consumer, strict=False)]
    finally:
        consumer.close()


@pytest.mark.parametrize("kind", [pytest.param("kafka", marks=pytest.mark.essential), "kafka39"])
def test_a_record_comes_back_and_lies_on_disk(starts_kafka: None, kind: str, request: pytest.FixtureRequest) -> None:
    cluster: KafkaCluster = request.getfixturevalue(kind)
    topic = f"support-{uuid.uuid4().hex[:8]}"
    cluster.create_topic(topic, config={"retention.ms": "-1"})
    produce(cluster, topic, b"a", b"b")
    assert consume(cluster, topic, 2) == [b"a", b"b"]
    [broker] = cluster.brokers
    assert cluster.leaders(topic) == {0: broker.node_id}
    segment = broker.log_dirs[0] / f"{topic}-0" / f"{0:020d}.log"
    assert segment.stat().st_size > 0
    assert len(cluster.cluster_id) == 22
    cluster.delete_topic(topic)
    with cluster.admin() as admin:
        assert topic not in admin.list_topics()


@pytest.mark.full  # brokers are killed by many a test of the agent's
@pytest.mark.parametrize("version", ["3.9.2", "4.3.1"])
def test_a_killed_broker_comes_back_with_its_records(starts_kafka: None, version: str, tmp_path: Path) -> None:
    kept = {"log.segment.bytes": "1048576"}
    with KafkaCluster(tmp_path, version=version, brokers=2, log_dirs=2, per_broker={2: kept}) as cluster:  # type: ignore[arg-type]
        cluster.create_topic("t", replication=2, config={"min.insync.replicas": "1"})
        produce(cluster, "t", b"before")
        first, second = cluster.brokers
        assert len(first.log_dirs) == 2
        assert "log.segment.bytes=1048576" in second.properties_path.read_text()
        assert len(cluster.records()) == 3
        first.kill()
        assert not first.running
        first.start()
        second.properties["log.segment.bytes"] = "2097152"
        second.restart()
        assert "log.segment.bytes=2097152" in second.properties_path.read_text()
        produce(cluster, "t", b"after")
        assert consume(cluster, "t", 2) == [b"before", b"after"]
    assert not cluster.records()
