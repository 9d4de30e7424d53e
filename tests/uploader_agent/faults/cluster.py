"""Clusters of three brokers that never roll a segment at the same offset, and what an operator does to them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TypeVar

from confluent_kafka import ElectionType, IsolationLevel, KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # it does not list what it exports
    AdminClient,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    PartitionMetadata,
)
from kafka import TopicPartition
from kafka.errors import NoError

from tests.support.kafka import KafkaCluster
from tests.support.kafka_broker import Broker, KafkaVersion
from tests.support.waiting import HUNG, wait_until
from tidemark.kafka_log import parse_leader_epoch_checkpoint, parse_partition_metadata

Answer = TypeVar("Answer")

_PATIENCE = 30.0

SEGMENT_BYTES: dict[KafkaVersion, tuple[int, int, int]] = {
    "4.3.1": (1 << 20, 1_300_000, 1_600_000),  # it takes no less than 1 MiB
    "3.9.2": (200_000, 260_000, 330_000),
}
_COMMON = {
    "auto.leader.rebalance.enable": "false",
    "default.replication.factor": "3",
    "log.cleaner.min.cleanable.ratio": "0.01",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    "replica.lag.time.max.ms": "3000",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.replication.factor": "3",
}


def three_brokers(root: Path, version: KafkaVersion) -> KafkaCluster:
    """A cluster that is not started yet; every broker has two log directories, its own segment size and rack.

    Broker 2 keeps what retention gives up elsewhere.
    """
    own = {
        number: {"log.segment.bytes": str(size), "broker.rack": f"rack-{number}"}
        for number, size in enumerate(SEGMENT_BYTES[version], 1)
    }
    own[2]["log.retention.check.interval.ms"] = "3600000"
    # What a follower fetches at once goes into one segment: were it as large, both would roll at the same offsets.
    common = _COMMON | {"replica.fetch.max.bytes": str(min(SEGMENT_BYTES[version]) // (2 if version == "3.9.2" else 5))}
    if version != "3.9.2":
        common["broker.session.timeout.ms"] = "10000"  # a busy machine must not cost a broker its session
    return KafkaCluster(root, version=version, brokers=3, log_dirs=2, common=common, per_broker=own)


@cache
def _admin(bootstrap: str) -> AdminClient:
    """A client that gets over brokers that come and go."""
    return AdminClient({"bootstrap.servers": bootstrap, "reconnect.backoff.max.ms": 200, "log_level": 0})


def asked(question: Callable[[], Answer]) -> Answer:
    """The answer to a question that may be asked again, for as long as brokers come and go."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            return question()
        except KafkaException:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def create(cluster: KafkaCluster, topic: str, replicas: Sequence[Sequence[int]], **config: str) -> None:
    """Create a topic with these replicas by partition, the first of each preferred, and wait until it is led."""
    settings = {name.replace("_", "."): value for name, value in config.items()}
    made = NewTopic(topic, len(replicas), replica_assignment=[list(nodes) for nodes in replicas], config=settings)
    asked(lambda: _admin(cluster.bootstrap).create_topics([made])[topic].result(_PATIENCE))
    await_led(cluster, topic, len(replicas))


def delete(cluster: KafkaCluster, topic: str) -> None:
    """Delete a topic, and wait until it is not listed; its files go later."""
    asked(lambda: _admin(cluster.bootstrap).delete_topics([topic])[topic].result(_PATIENCE))
    wait_until(
        lambda: topic not in _admin(cluster.bootstrap).list_topics(timeout=_PATIENCE).topics,
        what=f"topic {topic} to be gone",
    )


def add_partitions(cluster: KafkaCluster, topic: str, replicas: Sequence[Sequence[int]]) -> None:
    """Add partitions with these replicas."""
    count = len(describe(cluster, topic)) + len(replicas)
    more = NewPartitions(topic, count, replica_assignment=[list(nodes) for nodes in replicas])
    asked(lambda: _admin(cluster.bootstrap).create_partitions([more])[topic].result(_PATIENCE))


def await_led(cluster: KafkaCluster, topic: str, count: int) -> None:
    """Wait until the topic has ``count`` partitions, and each broker that leads one knows it."""

    def led() -> bool:
        parts = describe(cluster, topic)
        return len(parts) == count and all(
            high_watermark(cluster, topic, number, patience=0) is not None for number in parts
        )

    wait_until(led, what=f"{count} partitions of {topic} to be led")


def describe(cluster: KafkaCluster, topic: str) -> dict[int, PartitionMetadata]:
    """By partition what the cluster says: leader, replicas, isrs."""
    found = asked(lambda: _admin(cluster.bootstrap).list_topics(topic, timeout=5))
    return dict(found.topics[topic].partitions)


def high_watermark(cluster: KafkaCluster, topic: str, partition: int, *, patience: float = _PATIENCE) -> int | None:
    """As the leader says; None if it does not answer for so long."""
    at = KafkaPartition(topic, partition)
    deadline = time.monotonic() + patience
    while True:
        asking = _admin(cluster.bootstrap).list_offsets(
            {at: OffsetSpec.latest()},  # type: ignore[no-untyped-call]  # it has no types
            isolation_level=IsolationLevel.READ_UNCOMMITTED,
            request_timeout=5,
        )
        try:
            return int(asking[at].result(_PATIENCE).offset)
        except KafkaException:
            if time.monotonic() > deadline:
                return None
            time.sleep(0.2)


def leader_of(cluster: KafkaCluster, topic: str, partition: int = 0) -> int:
    """Node id of the leader; -1 if there is none."""
    return describe(cluster, topic)[partition].leader


def await_leader(cluster: KafkaCluster, topic: str, node: int, partition: int = 0) -> None:
    """Wait until ``node`` leads."""
    what = f"broker {node} to lead {topic}-{partition}"
    wait_until(lambda: leader_of(cluster, topic, partition) == node, what=what)


def await_in_sync(cluster: KafkaCluster, topic: str, count: int, timeout: float = HUNG) -> None:
    """Wait until each partition has ``count`` replicas in sync."""

    def synced() -> bool:
        return all(len(part.isrs) == count for part in describe(cluster, topic).values())

    wait_until(synced, what=f"{count} replicas of {topic} in sync", timeout=timeout)


def lagging(cluster: KafkaCluster, topic: str) -> set[int]:
    """The node ids that have a replica of ``topic`` which is not in sync."""
    return {node for part in describe(cluster, topic).values() for node in {*part.replicas} - {*part.isrs}}


def elect_preferred(cluster: KafkaCluster, topic: str, partition: int) -> None:
    """A preferred leader election."""
    at = KafkaPartition(topic, partition)

    def elect() -> object:
        answer = _admin(cluster.bootstrap).elect_leaders(ElectionType.PREFERRED, [at]).result(_PATIENCE)
        error = answer[at]
        if error is not None and error.code() != KafkaError.ELECTION_NOT_NEEDED:
            raise KafkaException(error)
        return answer

    asked(elect)


def reassign(cluster: KafkaCluster, topic: str, partition: int, nodes: Sequence[int]) -> None:
    """Give a partition other replicas, and wait until it has them; all brokers must run."""
    with cluster.admin() as admin:
        answer = admin.alter_partition_reassignments({TopicPartition(topic, partition): list(nodes)})
    assert set(answer.values()) == {None}, answer
    wait_until(
        lambda: describe(cluster, topic)[partition].replicas == list(nodes),
        what=f"{topic}-{partition} to be on brokers {nodes}",
    )


def lead(cluster: KafkaCluster, topic: str, partition: int, node: int) -> None:
    """Make ``node``, which has a replica in sync, the leader, by reordering the replicas and a preferred election."""
    nodes = describe(cluster, topic)[partition].replicas
    reassign(cluster, topic, partition, [node, *(other for other in nodes if other != node)])
    elect_preferred(cluster, topic, partition)
    await_leader(cluster, topic, node, partition)


def move_log_dir(cluster: KafkaCluster, topic: str, partition: int, broker: Broker) -> Path:
    """Move a broker's replica to its other log directory, and wait until it is there; its new folder."""
    before = folder(broker, topic, partition)
    target = next(place for place in broker.log_dirs if place != before.parent)
    wanted = {(topic, partition, broker.node_id): str(target)}
    with cluster.admin() as admin:
        answer = admin.alter_replica_log_dirs(wanted)
    assert set(answer.values()) == {NoError}, answer
    wait_until(lambda: (target / before.name).is_dir() and not before.exists(), what=f"{before.name} to be in {target}")
    return target / before.name


def folder(broker: Broker, topic: str, partition: int) -> Path:
    """The partition's directory on a broker's disk."""
    found = [place / f"{topic}-{partition}" for place in broker.log_dirs if (place / f"{topic}-{partition}").is_dir()]
    assert found, f"broker {broker.node_id} has no directory of {topic}-{partition}"
    return found[0]


def bases(place: Path) -> list[int]:
    """Base offsets of a directory's segments; the last is the active one's."""
    return sorted(int(path.name.partition(".")[0]) for path in place.glob("*.log"))


def epochs(place: Path) -> tuple[tuple[int, int], ...]:
    """The lineage on disk."""
    path = place / "leader-epoch-checkpoint"
    return parse_leader_epoch_checkpoint(path.read_text(), str(path)).entries


def topic_id(place: Path) -> str | None:
    """The topic id on disk."""
    path = place / "partition.metadata"
    return parse_partition_metadata(path.read_text(), str(path))
