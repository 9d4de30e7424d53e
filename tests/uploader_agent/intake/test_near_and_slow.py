"""Near replicas and quotas of real brokers: two racks, of which the copy's own has a follower only."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Producer
from kafka.protocol.admin import AlterClientQuotasRequest

from tests.support.kafka import KafkaCluster
from tests.support.waiting import wait_until
from tests.uploader_agent.faults.cluster import create, folder, lead
from tests.uploader_agent.intake.scripted import batches_in
from tests.uploader_agent.intake.topic_copy import TopicCopy
from uploader_agent.intake.brokers import BrokerConnections
from uploader_agent.intake.fetch_connection import FETCHES
from uploader_agent.intake.fetching import FetchLimits, Wanted

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def racks(starts_kafka: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """Broker 1 in rack a, broker 2 in rack b; each names the near replica, and a frozen one stays in sync."""
    selector = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
    common = {"replica.selector.class": selector, "replica.lag.time.max.ms": "60000", "min.insync.replicas": "1"}
    racks = {1: {"broker.rack": "a"}, 2: {"broker.rack": "b"}}
    with KafkaCluster(tmp_path_factory.mktemp("racks"), brokers=2, common=common, per_broker=racks) as cluster:
        yield cluster


class Asked(BrokerConnections):
    """Notes which brokers are asked to fetch."""

    def __init__(self, cluster: KafkaCluster, rack: str = "") -> None:
        limits = FetchLimits(answer=100_000, partition=50_000)
        # Not of both: one stands still, and is out of the replicas in sync before it is given up.
        super().__init__({"bootstrap_servers": [cluster.brokers[0].bootstrap]}, limits, rack)
        self.asked: list[int] = []

    def send(self, broker: int, wanted: list[Wanted]) -> None:  # type: ignore[override]
        self.asked.append(broker)
        super().send(broker, wanted)


def produce(cluster: KafkaCluster, topic: str, count: int, *, acks: str = "all") -> None:
    client = Producer({"bootstrap.servers": cluster.brokers[0].bootstrap, "acks": acks, "batch.num.messages": 10})
    for _ in range(count):
        client.produce(topic, bytes(1000))
    assert client.flush(60) == 0


def test_a_near_replica_and_one_that_stands_still(racks: KafkaCluster, tmp_path: Path) -> None:
    create(racks, "near", [[1, 2]])
    lead(racks, "near", 0, 1)
    produce(racks, "near", 1000)
    place = folder(racks.brokers[0], "near", 0)
    with closing(Asked(racks, "b")) as brokers, closing(TopicCopy(brokers, "near", tmp_path)) as copy:
        wait_until(lambda: len(batches_in(folder(racks.brokers[1], "near", 0))) == len(batches_in(place)), what="both")
        copy.run(lambda: False)
        assert copy.rows()[0].state == "copied"
        assert brokers.asked.count(2) > 10
        assert brokers.asked.count(1) < brokers.asked.count(2)
    assert batches_in(tmp_path / "near-0") == batches_in(place)
    racks.brokers[1].process.send(signal.SIGSTOP)
    try:
        produce(racks, "near", 100, acks="1")
        with closing(Asked(racks, "b")) as brokers, closing(TopicCopy(brokers, "near", tmp_path)) as copy:
            copy.run(lambda: False)
            assert copy.rows()[0].next_offset == 1000, "the high watermark waits for the follower"
    finally:
        racks.brokers[1].process.send(signal.SIGCONT)
    wait_until(lambda: len(batches_in(folder(racks.brokers[1], "near", 0))) == len(batches_in(place)), what="both")
    with closing(Asked(racks, "b")) as brokers, closing(TopicCopy(brokers, "near", tmp_path)) as copy:
        copy.run(lambda: False)
    assert batches_in(tmp_path / "near-0") == batches_in(place)


def test_a_quota_slows_the_copy(racks: KafkaCluster, tmp_path: Path) -> None:
    create(racks, "slow", [[1]])
    produce(racks, "slow", 3000)
    set_quota(racks, 200_000.0)
    try:
        with closing(Asked(racks)) as brokers, closing(TopicCopy(brokers, "slow", tmp_path)) as copy:
            copy.run(lambda: False)
            assert copy.rows()[0].state == "copied"
            assert copy.fetcher.throttled > 0
    finally:
        set_quota(racks, None)
    assert batches_in(tmp_path / "slow-0") == batches_in(folder(racks.brokers[0], "slow", 0))


def set_quota(cluster: KafkaCluster, rate: float | None) -> None:
    """Bytes a second for the client id of Fetch alone; None removes the quota."""
    entry = AlterClientQuotasRequest.EntryData
    operation = entry.OpData(key="consumer_byte_rate", value=rate or 0.0, remove=rate is None)
    entity = entry.EntityData(entity_type="client-id", entity_name=FETCHES)
    request = AlterClientQuotasRequest(entries=[entry(entity=[entity], ops=[operation])], validate_only=False)
    with cluster.admin() as admin:
        answer = admin._manager.run(admin._manager.send, request)
    assert {found.error_code for found in answer.entries} == {0}
