"""A power loss takes unflushed pages from the only replica: the log goes on elsewhere, under a later epoch.

The simulation breaks this rule of Kafka's by its mutant "epochs stay after a loss of power". Kafka acknowledges records
that are not on the disk yet. With one replica nobody else has them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.kafka import KafkaCluster
from tests.support.waiting import wait_until
from tests.uploader_agent.faults.cluster import await_leader, create, epochs, folder, high_watermark
from tests.uploader_agent.faults.conftest import MakeFleet
from tests.uploader_agent.faults.load import Book, send
from tests.uploader_agent.faults.test_packs import Tails
from tidemark.errors import NotFound
from tidemark.kafka_log import scan_batches
from tidemark.storage import PartitionStore
from uploader_agent.stored import watermark

NODE = 2
"""The only replica's broker; another one answers meanwhile."""


@pytest.mark.parametrize(
    "stored", ["packed", *(pytest.param(one, marks=pytest.mark.full) for one in ("quiet", "sealed"))]
)
@pytest.mark.parametrize("version", ["4.3.1", pytest.param("3.9.2", marks=pytest.mark.full)])
def test_what_a_power_loss_took_is_of_a_dead_branch(
    version: str, stored: str, request: pytest.FixtureRequest, make_fleet: MakeFleet
) -> None:
    """What was stored before is cut off as soon as the leader is back, and other records take the same offsets."""
    cluster: KafkaCluster = request.getfixturevalue("kraft3" if version == "4.3.1" else "zookeeper3")
    topic = f"power-{stored}-{version}"
    create(cluster, topic, [[NODE]], min_insync_replicas="1", segment_bytes=str(1 << 30))
    settings = {"freshness": {".*": "3s"}} if stored == "packed" else {"tail_after": "1s"}
    fleet = make_fleet(cluster, topic, [topic], nodes=[NODE], scan_interval="1s", **settings)
    agent, broker = fleet.agents[NODE], cluster.brokers[NODE - 1]
    place = folder(broker, topic, 0)
    with fleet.running():
        _append(cluster, topic, 60)
        tails = Tails(fleet, topic, NODE)
        wait_until(lambda: _is_planned(tails, 60), what=f"60 offsets to be {stored}")
        before = epochs(place)
        dead = tails.on_disk(60)
        agent.kill()
        if stored == "sealed":
            assert agent.upload_all() == 0
        broker.kill()
        cut = _lose_unflushed(place / f"{0:020d}.log", 41)
        broker.start()
        await_leader(cluster, topic, NODE)
        agent.start()
        wait_until(lambda: _lineage(tails)[-1][1] == cut, what="a claim that tells of the cut")
        assert tails.planned(1 << 40) == tails.on_disk(1 << 40), "the dead branch is cut off before an append"
        _append(cluster, topic, 50)
        end = high_watermark(cluster, topic, 0)
        assert end == cut + 50
        wait_until(lambda: _is_planned(tails, end), what=f"what took their place to be {stored}")
    (old, _), (new, start) = before[-1], epochs(place)[-1]
    assert (new > old, start) == (True, cut), "one offset and one epoch must not name two records"
    assert _lineage(tails) == epochs(place)
    assert tails.planned(end)[: len(dead)] != dead, "other records are at the offsets that were lost"


def _append(cluster: KafkaCluster, topic: str, count: int) -> None:
    """Records in batches of one, all acknowledged."""
    send(cluster, topic, Book(), count, one_by_one=True)


def _lose_unflushed(log: Path, lost: int) -> int:
    """Cut the log within the batch that has the offset ``lost``, as of pages that were not written; its new end."""
    for header in scan_batches([log.read_bytes()], log.name, 0, allow_partial_tail=True):
        if header.next_offset > lost:
            with log.open("rb+") as file:
                file.truncate(header.position + header.size // 2)
            return header.base_offset
    raise AssertionError(f"{log} has no offset {lost}")


def _is_planned(tails: Tails, end: int) -> bool:
    """Whether readers find all that the leader's disk has below ``end``."""
    try:
        return tails.planned(end) == tails.on_disk(end)
    except NotFound:
        return False  # the agent has not seen the topic yet


def _lineage(tails: Tails) -> tuple[tuple[int, int], ...]:
    found = watermark.read(PartitionStore(tails._fleet.store, tails.keys))
    assert found is not None
    return found.watermark.lineage
