"""Tails of real brokers are packed, whoever leads, and whatever happens to the agents meanwhile."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.kafka import KafkaCluster
from tests.support.waiting import wait_until
from tests.uploader_agent.faults.cluster import create, folder, high_watermark, lead, topic_id
from tests.uploader_agent.faults.conftest import MakeFleet
from tests.uploader_agent.faults.fleet import Fleet, assert_exact
from tests.uploader_agent.faults.load import Book, Load, open_transaction, send, under
from tests.uploader_agent.faults.oracle import Expected
from tests.uploader_agent.packs import reader
from tidemark.errors import FormatError
from tidemark.formats.keys import ControlKeys, PartitionKeys
from tidemark.formats.raw.pack import PackedRange
from tidemark.kafka_log import scan_batches
from tidemark.raw.objects import read_manifest
from tidemark.raw.packs import read_footer, read_range_bytes
from tidemark.storage import ClusterStore, PartitionStore


class Tails:
    """What packs hold of partition 0 of a topic, which is the fleet's prefix, too."""

    def __init__(self, fleet: Fleet, topic: str, node: int) -> None:
        self._fleet = fleet
        self._folder = folder(fleet.agents[node].broker, topic, 0)
        self._topic = topic
        self.control = ControlKeys(topic, fleet.cluster.cluster_id)

    @property
    def keys(self) -> PartitionKeys:
        return self._fleet.reader.keys(self._topic, topic_id(self._folder), 0)

    def end(self, broker: int) -> int:
        """The end of what the head of ``broker`` names."""
        found = [one for one in reader.heads(ClusterStore(self._fleet.store, self.control)) if one.broker == broker]
        return max((entry.tail_end for head in found for entry in head.entries), default=0)

    def readable_end(self) -> int:
        """As :meth:`end` of broker 1; -1 while its head is damaged."""
        try:
            return self.end(1)
        except FormatError:
            return -1

    def await_more(self, broker: int, what: str) -> None:
        """Wait until ``broker`` has packed offsets that nobody had packed before."""
        before = max(self.end(node) for node in (1, 2))
        wait_until(lambda: self.end(broker) > before, what=f"broker {broker} to pack {what}")

    def planned(self, high_watermark: int) -> bytes:
        """The batches that a reader finds below a high watermark."""
        pieces = reader.pieces(PartitionStore(self._fleet.store, self.keys))
        return reader.content(self._fleet.store, pieces, high_watermark)

    def on_disk(self, high_watermark: int) -> bytes:
        """The leader's batches below its high watermark."""
        found = b""
        for path in sorted(self._folder.glob("*.log")):
            data = path.read_bytes()
            for header in scan_batches([data], path.name, int(path.stem), allow_partial_tail=True):
                found += data[header.position : header.end] if header.next_offset <= high_watermark else b""
        return found

    def bytes_of(self, packed: PackedRange) -> bytes:
        """The bytes of a range."""
        return read_range_bytes(self._fleet.store, packed)

    def ranges(self) -> list[PackedRange]:
        """All ranges of all packs."""
        packs = self._fleet.store.list(self.control.tails)
        return [one for info in packs for one in read_footer(self._fleet.store, info.key)]


@pytest.mark.parametrize("version", ["4.3.1", pytest.param("3.9.2", marks=pytest.mark.full)])
def test_tails_are_packed_over_elections_and_restarts(
    version: str, request: pytest.FixtureRequest, make_fleet: MakeFleet
) -> None:
    """An agent is stopped over an election, another one is killed; a transaction stays open all the while."""
    cluster: KafkaCluster = request.getfixturevalue("kraft3" if version == "4.3.1" else "zookeeper3")
    topic, book = f"packed-{version}", Book()
    create(cluster, topic, [[1, 2]], segment_bytes=str(1 << 30))
    fleet = make_fleet(cluster, topic, [topic], nodes=[1, 2], freshness={".*": "3s"})
    load = Load(cluster, topic, book, rate=100, size=500, transactional=f"packed-{version}")
    with fleet.running():
        tails = Tails(fleet, topic, 1)
        with open_transaction(cluster, topic, book, partitions=1), under(load):
            tails.await_more(1, "at the start")
            fleet.agents[1].send(signal.SIGSTOP)
            lead(cluster, topic, 0, 2)
            tails.await_more(2, "while the former leader's agent is stopped")
            fleet.agents[1].send(signal.SIGCONT)
            fleet.agents[2].kill()
            fleet.agents[2].start()
            tails.await_more(2, "after it was killed")
            lead(cluster, topic, 0, 1)
            tails.await_more(1, "as the leader again")
        end = high_watermark(cluster, topic, 0)
        assert end is not None
        wait_until(lambda: tails.end(1) >= end, what="all that is committed to be packed")
        assert reader.seals(PartitionStore(fleet.store, tails.keys)) == []
        assert tails.planned(end) == tails.on_disk(end)
    fleet.settle()
    assert tails.planned(end) == tails.on_disk(end)
    sealed = [
        read_manifest(PartitionStore(fleet.store, tails.keys), one.name)
        for one in reader.seals(PartitionStore(fleet.store, tails.keys))
    ]
    parts = sorted({(one.first, one.next, one.crc32c) for seal in sealed if seal for one in seal.manifest.parts})
    ranges = {(one.range.first, one.range.next, one.range.crc32c) for one in tails.ranges()}
    assert {*parts} <= ranges
    assert [first for first, _, _ in parts] == [0, *(end for _, end, _ in parts[:-1])], "whoever packed them"
    assert parts[-1][1] >= end
    assert_exact(fleet.judge(topic, book), f"{version}: {len(ranges)} ranges; {book.acknowledged} acknowledged")


@pytest.mark.parametrize("sealing", [pytest.param(1, id="the broker that packed"), pytest.param(2, id="a new leader")])
def test_what_the_cleaner_has_emptied_is_sealed_from_packs(
    sealing: int, kraft3: KafkaCluster, make_fleet: MakeFleet
) -> None:
    """Nothing is left of what is packed when the agents come back: not a batch that would tell where the run ends."""
    topic, book = f"emptied-{sealing}", Book()
    plain = {
        "enable.idempotence": False
    }  # of an idempotent producer the cleaner leaves the last batch, without records
    cleaned = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0.01", "segment_ms": "2000"}
    create(kraft3, topic, [[1, 2]], **cleaned)
    fleet = make_fleet(kraft3, topic, [topic], nodes=[1, 2], freshness={".*": "3s"})
    tails = Tails(fleet, topic, 1)
    with fleet.running():
        send(kraft3, topic, book, 300, keys=40, **plain)
        end = high_watermark(kraft3, topic, 0)
        assert end == 300
        wait_until(lambda: tails.end(1) >= end, what="all to be packed")
    packed = {key: batch for one in tails.ranges() for key, batch in _batches(tails.bytes_of(one), one.range.first)}
    assert reader.seals(PartitionStore(fleet.store, tails.keys)) == []

    def emptied() -> bool:
        send(kraft3, topic, book, 40, keys=40, **plain)  # Kafka rolls a segment on append only
        places = [folder(broker, topic, 0) for broker in kraft3.brokers[:2]]
        try:
            return not any(base < end for place in places for base in _left(place))
        except FileNotFoundError:  # the cleaner replaces a file while the directory is read
            return False

    wait_until(emptied, what="the cleaner to have emptied what is packed, on both brokers")
    lead(kraft3, topic, 0, sealing)

    def settled() -> bool:  # an agent asks its own broker, which may learn later than others that it leads
        fleet.settle()
        return reader.seals(PartitionStore(fleet.store, tails.keys)) != []

    wait_until(settled, what="the leader's agent to have sealed")
    seals = reader.seals(PartitionStore(fleet.store, tails.keys))
    sealed = {key: batch for seal in seals for key, batch in _batches(fleet.store.get(seal.key).body, seal.base)}
    assert packed.items() <= sealed.items(), "no row lands that raw does not keep"
    assert_exact(fleet.judge(topic, book, expected=Expected(compacted=True)), f"{len(packed)} batches were packed")


def _batches(data: bytes, base: int) -> Iterator[tuple[int, bytes]]:
    """The batches of ``data`` by their base offsets."""
    for header in scan_batches([data], "log", base):
        yield header.base_offset, data[header.position : header.end]


def _left(place: Path) -> Iterator[int]:
    """The base offsets of the batches that a partition's directory has; of none that is written just now."""
    for path in place.glob("*.log"):
        for header in scan_batches([path.read_bytes()], path.name, int(path.stem), allow_partial_tail=True):
            yield header.base_offset


def test_a_damaged_head_is_made_again(kraft3: KafkaCluster, make_fleet: MakeFleet) -> None:
    """By the agent that runs, and by one that starts. Readers find all, and nothing is sealed for it."""
    topic, book = "damaged-head", Book()
    create(kraft3, topic, [[1, 2]], segment_bytes=str(1 << 30))
    fleet = make_fleet(kraft3, topic, [topic], nodes=[1], freshness={".*": "3s"})
    with fleet.running():
        tails, kept = Tails(fleet, topic, 1), list[bytes]()
        head = tails.control.head(1)

        def damage(body: bytes) -> None:
            fleet.store.put(head, body)
            kept.append(body)

        with under(Load(kraft3, topic, book, rate=100, size=500)):
            wait_until(lambda: tails.readable_end() > 0, what="a pack")
            damage(b"garbage")
            end = high_watermark(kraft3, topic, 0) or 0
            wait_until(lambda: tails.readable_end() >= end, what="the head to be made again while the agent runs")
            fleet.agents[1].kill()
            damage(fleet.store.get(head).body.replace(b'"broker":1', b'"broker":2'))
            fleet.agents[1].start()
            end = high_watermark(kraft3, topic, 0) or 0
            wait_until(lambda: tails.readable_end() >= end, what="a new process to make it again")
        last = high_watermark(kraft3, topic, 0)
        assert last is not None
        wait_until(lambda: tails.readable_end() >= last, what="all that is committed to be packed")
        damage(b"")
        wait_until(lambda: tails.readable_end() >= last, what="the head to be made again although nothing is new")
        assert reader.seals(PartitionStore(fleet.store, tails.keys)) == []
        assert tails.planned(last) == tails.on_disk(last)
    found = [fleet.store.get(info.key).body for info in fleet.store.list(f"{topic}/_damaged/")]
    assert sorted(found) == sorted(kept)
    fleet.settle()
    assert_exact(fleet.judge(topic, book), f"a head damaged {len(kept)} times; {book.acknowledged} acknowledged")
