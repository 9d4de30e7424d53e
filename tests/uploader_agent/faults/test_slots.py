"""Slots that fetch from real brokers: they take turns with disk agents, and say what retention has taken from them."""

from __future__ import annotations

import pytest
from kafka import TopicPartition as KafkaPartition

from tests.support.kafka import KafkaCluster
from tests.support.waiting import wait_until
from tests.uploader_agent.faults.cluster import create, high_watermark, lead, topic_id
from tests.uploader_agent.faults.conftest import MakeFleet
from tests.uploader_agent.faults.fleet import Fleet, assert_exact
from tests.uploader_agent.faults.load import Book, Load, open_transaction, send
from tests.uploader_agent.faults.oracle import Expected
from tests.uploader_agent.faults.test_own_replica import small
from tests.uploader_agent.packs import reader
from tidemark.formats.raw.manifest import SegmentManifest
from tidemark.storage import ClusterStore

VERSIONS = ["4.3.1", pytest.param("3.9.2", marks=pytest.mark.full)]
PACKED = {"freshness": {".*": "3s"}}


@pytest.fixture
def cluster(starts_kafka: None, version: str, request: pytest.FixtureRequest) -> KafkaCluster:
    found: KafkaCluster = request.getfixturevalue("kraft3" if version == "4.3.1" else "zookeeper3")
    return found


def packed_end(fleet: Fleet, topic: str) -> int:
    """The highest end of a topic's ranges that a head names."""
    heads = reader.heads(ClusterStore(fleet.store, fleet.control))
    return max((entry.tail_end for head in heads for entry in head.entries if entry.topic == topic), default=0)


def manifests(fleet: Fleet, topic: str, partition: int = 0) -> list[SegmentManifest]:
    keys = fleet.reader.keys(topic, topic_id(fleet.log(topic, partition)), partition)
    names = [info.key for info in fleet.store.list(keys.folder) if ".manifest.json" in info.key]
    return [SegmentManifest.from_bytes(fleet.store.get(name).body, name) for name in names]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("version", VERSIONS)
def test_disk_agents_and_slots_take_turns_on_a_running_topic(
    version: str, cluster: KafkaCluster, make_fleet: MakeFleet, full: bool
) -> None:
    """From disks to slots and back, amid transactions, with an election in each turn: nothing is lost or twice."""
    topic, book = f"turns-{version}", Book()
    create(cluster, topic, [[1, 2, 3], [2, 3, 1]], **small(cluster))
    disks = make_fleet(cluster, topic, [topic], **PACKED)
    slots = make_fleet(cluster, topic, [topic], slots=2, fetch_segment="50KiB", **PACKED)
    turns = [(disks, 2), (slots, 3), (disks, 1), (slots, 2), (disks, 3)]
    load = Load(cluster, topic, book, partitions=2, rate=100, size=1000, transactional=f"load-{topic}")
    load.start()
    try:
        for fleet, node in turns if full else turns[:3]:
            with fleet.running():
                take_turn(fleet, disks, topic, node)
                fleet.stop()
    finally:
        load.stop()
    with disks.running():
        disks.await_rotated(topic, 2)
        disks.settle()
    assert_exact(disks.judge(topic, book, partitions=2), f"turns of disks and slots with {version}")
    assert {manifest.origin for number in (0, 1) for manifest in manifests(disks, topic, number)} == {"disk", "fetch"}


def take_turn(fleet: Fleet, disks: Fleet, topic: str, node: int) -> None:
    """Let a fleet pack, and seal under a new leader."""
    packed = packed_end(disks, topic)
    wait_until(lambda: packed_end(disks, topic) > packed, what="this fleet to pack")
    lead(disks.cluster, topic, 0, node)
    sealed = disks.next_offset(topic)
    wait_until(lambda: disks.next_offset(topic) > sealed, what="this fleet to seal")


@pytest.mark.parametrize("version", VERSIONS)
def test_what_retention_has_taken_is_a_gap_and_what_was_fetched_is_not(
    version: str, cluster: KafkaCluster, make_fleet: MakeFleet
) -> None:
    """A slot is away while records are deleted, with a transaction open across them."""
    topic, book = f"taken-{version}", Book()
    create(cluster, topic, [[1, 2, 3]], **small(cluster))
    slots = make_fleet(cluster, topic, [topic], slots=1, fetch_segment="50KiB", **PACKED)
    send(cluster, topic, book, 300, one_by_one=True)
    with open_transaction(cluster, topic, book, partitions=1):
        slots.settle()
        had = high_watermark(cluster, topic, 0)
        send(cluster, topic, book, 200, one_by_one=True)
        with cluster.admin() as admin:
            admin.delete_records({KafkaPartition(topic, 0): 450})
        send(cluster, topic, book, 300, one_by_one=True)
    slots.settle()
    assert had is not None
    due = Expected(gaps=((had, 450, "deleted_before_upload"),))
    assert_exact(
        slots.judge(topic, book, expected=due, disk=False),
        f"records deleted below 450, of which {had} had been fetched",
    )
