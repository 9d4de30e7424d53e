"""Leaders change under load, by every way there is; replicas roll at different offsets, for certain."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.support.kafka import KafkaCluster
from tests.support.waiting import wait_until
from tests.uploader_agent.faults.cluster import (
    await_in_sync,
    await_leader,
    bases,
    create,
    elect_preferred,
    epochs,
    folder,
    lead,
    reassign,
    topic_id,
)
from tests.uploader_agent.faults.conftest import MakeFleet
from tests.uploader_agent.faults.fleet import Fleet, assert_exact
from tests.uploader_agent.faults.load import Book, Load, open_transaction, send, under
from tests.uploader_agent.faults.oracle import Truth
from tidemark.formats.keys import PartitionKeys
from tidemark.formats.raw.manifest import SegmentManifest
from tidemark.formats.raw.watermark import Watermark


@pytest.mark.full
@pytest.mark.parametrize("version", ["3.9.2", "4.3.1"])
def test_leaders_change_under_load(
    version: str, request: pytest.FixtureRequest, make_fleet: MakeFleet, full: bool
) -> None:
    """Preferred election, a broker stopped and started, a new broker; a transaction stays open all the while."""
    cluster: KafkaCluster = request.getfixturevalue("kraft3" if version == "4.3.1" else "zookeeper3")
    topic, book = f"led-{version}", Book()
    create(cluster, topic, [[1, 2], [2, 3]], min_insync_replicas="1")
    fleet = make_fleet(cluster, f"led-{version}", [topic])
    load, tried = Load(cluster, topic, book, partitions=2, rate=200, size=12_000 if version == "4.3.1" else 3000), []
    with fleet.running():
        with open_transaction(cluster, topic, book, partitions=2), under(load):
            for _ in range(3 if full else 1):
                fleet.await_writer(topic, 1)
                lead(cluster, topic, 0, 2)
                fleet.await_writer(topic, 2)
                tried.append("preferred election")
                cluster.brokers[1].stop()
                await_leader(cluster, topic, 1)
                fleet.await_writer(topic, 1)
                cluster.brokers[1].start()
                await_in_sync(cluster, topic, 2)
                tried.append("broker stopped and started")
                reassign(cluster, topic, 0, [3, 1])
                elect_preferred(cluster, topic, 0)
                await_leader(cluster, topic, 3)
                fleet.await_writer(topic, 3)
                tried.append("moved to a new broker")
                reassign(cluster, topic, 0, [1, 2])
                elect_preferred(cluster, topic, 0)
                await_leader(cluster, topic, 1)
        fleet.await_rotated(topic, 2)
        check_situation(fleet, topic)
        fleet.settle()
    assert_exact(fleet.judge(topic, book, 2), f"{version}: {', '.join(tried)}; {book.acknowledged} acknowledged")


def check_situation(fleet: Fleet, topic: str) -> None:
    """Several leaders have uploaded, and their replicas rolled at other offsets: else the test has shown nothing."""
    manifests = stored(fleet, keys_of(fleet, topic))
    assert len({one.broker for one in manifests}) >= 3, "fewer than three brokers have uploaded"
    rolled = set(bases(folder(fleet.leader(topic).broker, topic, 0)))
    assert [one for one in manifests if one.base_offset not in rolled], "the replicas rolled at the same offsets"
    assert len(manifests[-1].lineage) >= 4


def keys_of(fleet: Fleet, topic: str) -> PartitionKeys:
    place = folder(fleet.leader(topic).broker, topic, 0)
    return fleet.reader.keys(topic, topic_id(place), 0)


def stored(fleet: Fleet, keys: PartitionKeys) -> list[SegmentManifest]:
    names = [info.key for info in fleet.store.list(keys.folder) if ".manifest.json" in info.key]
    return [SegmentManifest.from_bytes(fleet.store.get(name).body, name) for name in names]


@pytest.mark.parametrize(
    ("when", "suffix"), [("before", ".manifest.json"), pytest.param("before", "offset.wm", marks=pytest.mark.full)]
)
def test_old_leader_that_still_believes(kraft3: KafkaCluster, make_fleet: MakeFleet, when: str, suffix: str) -> None:
    """Its agent is frozen behind the fence, with its last write in hand, and goes on when another leads since long."""
    name = f"believes-{suffix.strip('.').replace('.', '-')}"
    book, cluster = Book(), kraft3
    create(cluster, name, [[1, 2, 3]], internal_segment_bytes="32768")
    fleet = make_fleet(cluster, name, [name], nodes=[1, 2])
    old = fleet.agents[1]
    with fleet.running():
        send(cluster, name, book, 100)
        fleet.await_rotated(name)
        old.stop()
        old.start(
            plan=old.plan(number="SIGSTOP", when=when, suffix=suffix, n=2), metadata_interval="1h", scan_interval="1h"
        )
        send(cluster, name, book, 400)
        wait_until(lambda: old.frozen, what="the agent of the old leader to freeze")
        lead(cluster, name, 0, 2)
        send(cluster, name, book, 400)
        fleet.await_rotated(name)
        before = watermark_of(fleet, name)
        assert before.broker == 2
        old.send(signal.SIGCONT)
        wait_until(lambda: "leadership_lost" in old.text(), what="the old leader's agent to be fenced")
        after = watermark_of(fleet, name)
        assert after.order >= before.order
        assert after.broker == 2
        send(cluster, name, book, 100)
        fleet.await_rotated(name)
        fleet.settle()
    assert_exact(fleet.judge(name, book), f"frozen {when} PUT of {suffix}")


def watermark_of(fleet: Fleet, topic: str) -> Watermark:
    found = fleet.reader.watermark(keys_of(fleet, topic))
    assert found is not None
    return found[1]


class Branches:
    """A partition on brokers 1 and 2 of equal boundaries, of which each writes on without the other."""

    COUNT = 120
    """Records of equal size by branch; with 400 bytes each and segments of 16 KiB these are several segments."""

    def __init__(self, cluster: KafkaCluster, fleet: Fleet, topic: str) -> None:
        self.cluster, self.fleet, self.topic = cluster, fleet, topic
        self.common, self.first, self.second = Book(), Book(), Book()
        self.one, self.two = cluster.brokers[0], cluster.brokers[1]
        create(
            cluster,
            topic,
            [[1, 2]],
            internal_segment_bytes="16384",
            min_insync_replicas="1",
            unclean_leader_election_enable="true",
        )

    def write(self, book: Book, count: int = COUNT) -> None:
        """One record to a batch, so that replicas roll where their leader does."""
        send(self.cluster, self.topic, book, count, one_by_one=True)
        self.fleet.await_rotated(self.topic, by_leader=True)

    def part(self) -> None:
        """Both have ``common``; broker 1 alone has ``first``, and broker 2, elected uncleanly, ``second``."""
        self.write(self.common)
        assert bases(self.place(1)) == bases(self.place(2)), "the replicas did not roll at the same offsets"
        self.two.kill()
        await_in_sync(self.cluster, self.topic, 1)
        self.write(self.first)
        self.on_first = {path.name: path.read_bytes() for path in sorted(self.place(1).glob("*.log"))}
        self.one.kill()
        self.two.start()
        await_leader(self.cluster, self.topic, 2)
        self.write(self.second)
        self.on_second = {path.name: path.read_bytes() for path in sorted(self.place(2).glob("*.log"))}
        cut = self.common.truth(0).end
        lineage = epochs(self.place(2))
        assert (0, 0) in lineage
        assert lineage[-1][1] == cut, f"broker 2 was not elected at {cut}: {lineage}"
        assert epochs(self.place(1)) != lineage
        self.both = [
            name
            for name in self.on_first.keys() & self.on_second.keys()
            if self.on_first[name] != self.on_second[name] and int(name[:20]) != bases(self.place(1))[-1]
        ]
        assert self.both, "no segment of the two branches has the same base"

    def place(self, node: int) -> Path:
        return folder(self.cluster.brokers[node - 1], self.topic, 0)

    def truth(self, *books: Book) -> Book:
        """A book with what these books know together."""
        joined = Book()
        known: Truth = joined.truth(0)
        for book in books:
            truth = book.truth(0)
            assert not known.acknowledged.keys() & truth.acknowledged.keys()
            known.acknowledged |= truth.acknowledged
            known.sent |= truth.sent
        return joined

    def kept(self, contents: dict[str, bytes]) -> None:
        """What was uploaded of the branch is in the store as it was."""
        folder = keys_of(self.fleet, self.topic).folder
        stored = {info.key: self.fleet.store.get(info.key).body for info in self.fleet.store.list(folder)}
        bodies = set(stored.values())
        assert [name for name in self.both if contents[name] in bodies], f"none of {self.both} is in {sorted(stored)}"


@pytest.mark.full
def test_unclean_election_with_truncation(kraft3: KafkaCluster, make_fleet: MakeFleet) -> None:
    """The former leader comes back as a follower, and its disk is cut in place."""
    fleet = make_fleet(kraft3, "unclean", ["unclean"], nodes=[1, 2])
    with fleet.running():
        branches = Branches(kraft3, fleet, "unclean")
        branches.part()
        branches.one.start()
        await_in_sync(kraft3, "unclean", 2)
        assert epochs(branches.place(1)) == epochs(branches.place(2)), "broker 1 did not follow"
        lead(kraft3, "unclean", 0, 1)
        branches.write(branches.second)
        fleet.settle()
    cut, end = branches.common.truth(0).end, branches.first.truth(0).end
    assert cut in [start for _, start in watermark_of(fleet, "unclean").lineage]
    branches.kept(branches.on_first)
    truth = branches.truth(branches.common, branches.second)
    assert_exact(fleet.judge("unclean", truth), f"unclean election that cut [{cut}, {end})")


def test_unclean_elections_that_return_to_the_older_branch(
    kraft3: KafkaCluster, make_fleet: MakeFleet, full: bool
) -> None:
    """The highest epoch does not win: what broker 1 wrote under epoch 0 is live again, and broker 2's is dead."""
    if not full:
        pytest.skip("long: `make test-full` runs it")
    fleet, last = make_fleet(kraft3, "returns", ["returns"], nodes=[1, 2]), Book()
    with fleet.running():
        branches = Branches(kraft3, fleet, "returns")
        branches.part()
        branches.two.kill()
        branches.one.start()
        await_leader(kraft3, "returns", 1)
        branches.write(last)
        lineage = epochs(branches.place(1))
        assert lineage[0] == (0, 0)
        assert len(lineage) == 2, f"broker 1 did not keep its branch: {lineage}"
        assert lineage[1] == (lineage[1][0], branches.first.truth(0).end)
        branches.two.start()
        await_in_sync(kraft3, "returns", 2)
        fleet.settle()
    cut = branches.common.truth(0).end
    assert cut not in [start for _, start in watermark_of(fleet, "returns").lineage], "that branch is dead"
    branches.kept(branches.on_first)
    branches.kept(branches.on_second)
    truth = branches.truth(branches.common, branches.first, last)
    lost = branches.second.acknowledged
    assert_exact(fleet.judge("returns", truth), f"two unclean elections at {cut}; {lost} records of the dead branch")
