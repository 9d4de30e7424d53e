"""Clusters of three brokers that never roll a segment at the same offset, and what an operator does to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from kafka import TopicPartition as KafkaPartition
from kafka.admin import NewTopic
from kafka.errors import ElectionNotNeededError, KafkaError

from tests.support.kafka import KafkaCluster, leaders
from tests.support.kafka_broker import Broker, KafkaVersion, connect
from tests.support.waiting import wait_until
from tidemark.records import parse_leader_epoch_checkpoint, parse_partition_metadata

SEGMENT_BYTES: dict[KafkaVersion, tuple[int, int, int]] = {
    "4.3.1": (1 << 20, 1_200_000, 1_500_000),  # it takes no less than 1 MiB
    "3.9.2": (200_000, 260_000, 330_000),
}
_COMMON = {
    "auto.leader.rebalance.enable": "false",
    "default.replication.factor": "3",
    "log.cleaner.min.cleanable.ratio": "0.01",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "replica.lag.time.max.ms": "3000",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.replication.factor": "3",
}


def three_brokers(root: Path, version: KafkaVersion) -> KafkaCluster:
    """A cluster that is not started yet; every broker has two log directories and a segment size of its own."""
    sizes = {number: {"log.segment.bytes": str(size)} for number, size in enumerate(SEGMENT_BYTES[version], 1)}
    return KafkaCluster(root, version=version, brokers=3, log_dirs=2, common=_COMMON, per_broker=sizes)


def create(cluster: KafkaCluster, topic: str, replicas: Sequence[Sequence[int]], **config: str) -> None:
    """Create a topic with these replicas by partition, the first of each preferred, and wait until it is led."""
    assignments = {number: list(nodes) for number, nodes in enumerate(replicas)}
    settings = {name.replace("_", "."): value for name, value in config.items()}
    with cluster.admin() as admin:
        admin.create_topics([NewTopic(topic, replica_assignments=assignments, topic_configs=settings)])
    for broker in cluster.brokers:
        if broker.running:
            wait_until(
                lambda at=broker.bootstrap: _count(at, topic) == len(replicas),  # type: ignore[misc]
                timeout=30,
                what=f"{topic} to be led, as broker {broker.node_id} sees it",
            )


def _count(bootstrap: str, topic: str) -> int:
    try:
        return len(leaders(bootstrap, topic))
    except KafkaError:
        return 0  # this broker has not heard of it


def describe(cluster: KafkaCluster, topic: str) -> dict[int, Mapping[str, object]]:
    """By partition what the cluster says: leader, epoch, replicas, in-sync replicas; asked of a running broker."""
    running = next(broker for broker in cluster.brokers if broker.running)
    with connect(running.bootstrap) as admin:
        [found] = admin.describe_topics([topic])
    return {part["partition_index"]: part for part in found["partitions"]}


def leader_of(cluster: KafkaCluster, topic: str, partition: int = 0) -> int:
    """Node id of the leader; -1 if there is none."""
    number = describe(cluster, topic)[partition]["leader_id"]
    assert isinstance(number, int)
    return number


def await_leader(cluster: KafkaCluster, topic: str, node: int, partition: int = 0) -> None:
    """Wait until ``node`` leads."""
    what = f"broker {node} to lead {topic}-{partition}"
    wait_until(lambda: leader_of(cluster, topic, partition) == node, timeout=60, what=what)


def await_in_sync(cluster: KafkaCluster, topic: str, count: int) -> None:
    """Wait until each partition has ``count`` replicas in sync."""

    def synced() -> bool:
        return all(len(part["isr_nodes"]) == count for part in describe(cluster, topic).values())  # type: ignore[arg-type]

    wait_until(synced, timeout=60, what=f"{count} replicas of {topic} in sync")


def elect_preferred(cluster: KafkaCluster, topic: str, partition: int) -> None:
    """A preferred leader election."""
    with cluster.admin() as admin:
        try:
            admin.elect_leaders(0, {topic: [partition]}, timeout_ms=10_000)
        except ElectionNotNeededError:
            return  # it leads already


def reassign(cluster: KafkaCluster, topic: str, partition: int, nodes: Sequence[int]) -> None:
    """Give a partition other replicas, and wait until it has them."""
    with cluster.admin() as admin:
        answer = admin.alter_partition_reassignments({KafkaPartition(topic, partition): list(nodes)})
    assert set(answer.values()) == {None}, answer
    wait_until(
        lambda: describe(cluster, topic)[partition]["replica_nodes"] == list(nodes),
        timeout=60,
        what=f"{topic}-{partition} to be on brokers {nodes}",
    )


def lead(cluster: KafkaCluster, topic: str, partition: int, node: int) -> None:
    """Make ``node``, which has a replica in sync, the leader, by reordering the replicas and a preferred election."""
    nodes = describe(cluster, topic)[partition]["replica_nodes"]
    assert isinstance(nodes, list)
    reassign(cluster, topic, partition, [node, *(other for other in nodes if other != node)])
    elect_preferred(cluster, topic, partition)
    await_leader(cluster, topic, node, partition)


def move_log_dir(cluster: KafkaCluster, topic: str, partition: int, broker: Broker) -> Path:
    """Move a broker's replica to its other log directory, and wait until it is there; its new folder."""
    before = folder(broker, topic, partition)
    target = next(place for place in broker.log_dirs if place != before.parent)
    with cluster.admin() as admin:
        answer = admin.alter_replica_log_dirs({(topic, partition, broker.node_id): str(target)})
    assert answer
    wait_until(
        lambda: (target / before.name).is_dir() and not before.exists(),
        timeout=60,
        what=f"{before.name} to be in {target}",
    )
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
