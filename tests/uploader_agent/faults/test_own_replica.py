"""A replica of our own beside real ones: batch by batch the leader's log up to the high watermark, and its epochs."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from kafka import TopicPartition as KafkaPartition

from tests.support.kafka import KafkaCluster
from tests.support.waiting import wait_until
from tests.uploader_agent.faults.cluster import (
    await_in_sync,
    await_leader,
    create,
    delete,
    epochs,
    folder,
    high_watermark,
    lead,
    leader_of,
    topic_id,
)
from tests.uploader_agent.faults.load import Book, Load, open_transaction, producer, send, under
from tests.uploader_agent.in_process import run_here
from tests.uploader_agent.intake import topic_copy
from tests.uploader_agent.intake.scripted import batches_in, header_of
from tests.uploader_agent.intake.topic_copy import CopyRow, TopicCopy
from tests.uploader_agent.real import SMALL
from tidemark.kafka_log import Lineage, scan_batches
from uploader_agent.intake.brokers import BrokerConnections
from uploader_agent.intake.fetching import FetchLimits

VERSIONS = ["4.3.1", pytest.param("3.9.2", marks=pytest.mark.full)]


@pytest.fixture
def cluster(starts_kafka: None, version: str, request: pytest.FixtureRequest) -> KafkaCluster:
    found: KafkaCluster = request.getfixturevalue("kraft3" if version == "4.3.1" else "zookeeper3")
    return found


def small(cluster: KafkaCluster, **config: str) -> dict[str, str]:
    """A topic's settings for small segments."""
    return {name.replace(".", "_"): value for name, value in SMALL[cluster.version].items()} | config


@contextmanager
def copying(
    cluster: KafkaCluster, topic: str, spool: Path, limits: FetchLimits | None = None, *, follow: bool = False
) -> Iterator[TopicCopy]:
    # Answers that end inside batches, and segments of our own that are not the broker's.
    limits = limits or FetchLimits(answer=100_000, partition=30_000)
    settings = {"bootstrap_servers": cluster.bootstrap.split(",")}
    with (
        closing(BrokerConnections(settings, limits)) as brokers,
        closing(TopicCopy(brokers, topic, spool, segment_bytes=50_000, follow=follow)) as copy,
    ):
        yield copy


def copied(cluster: KafkaCluster, topic: str, spool: Path, limits: FetchLimits | None = None) -> list[CopyRow]:
    with copying(cluster, topic, spool, limits) as copy:
        copy.run(lambda: False)
        return copy.rows()


@contextmanager
def followed(cluster: KafkaCluster, topic: str, spool: Path) -> Iterator[Callable[[], list[CopyRow]]]:
    """A copy that follows its topic while the block runs; the result gives its rows."""
    stop, failed = threading.Event(), list[BaseException]()
    with copying(cluster, topic, spool, follow=True) as copy:

        def run() -> None:
            try:
                copy.run(stop.is_set)
            except BaseException as error:
                failed.append(error)
                raise

        thread = threading.Thread(target=run, name="copy")
        thread.start()
        try:
            yield copy.rows
        finally:
            stop.set()
            thread.join()
        assert not failed


def assert_replica(cluster: KafkaCluster, topic: str, spool: Path, partition: int = 0, *, since: int = 0) -> int:
    """The spool has the leader's batches up to the high watermark, and its epochs; how many batches it has.

    Above ``since`` at least: below a log start of former days another leader may still have what the spool left out.
    """
    mine = spool / f"{topic}-{partition}"
    place = folder(cluster.brokers[leader_of(cluster, topic, partition) - 1], topic, partition)
    high = high_watermark(cluster, topic, partition)
    assert high is not None
    leaders = [raw for raw in batches_in(place) if header_of(raw).next_offset <= high]
    start = max(epochs(place)[0][1], since)
    found = [raw for raw in batches_in(mine) if header_of(raw).next_offset > start]
    assert found == [raw for raw in leaders if header_of(raw).next_offset > start]
    mine_known, known = (
        [(epoch, max(begun, start)) for epoch, begun in Lineage(epochs(at)).since(start).entries]
        for at in (mine, place)
    )
    assert mine_known == known
    assert topic_id(mine) == topic_id(place)
    return len(found)


def send_all_kinds(cluster: KafkaCluster, topic: str) -> None:
    """Batches of all codecs, and transactions that are committed and aborted, in two partitions."""
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        compressed: dict[str, Any] = {"compression.type": codec}
        for partition in (0, 1):
            send(cluster, topic, Book(), 30, partition=partition, size=1400, **compressed)
    client = producer(cluster, **{"transactional.id": f"kinds-{topic}"})
    client.init_transactions(60)
    for number in range(6):
        client.begin_transaction()
        for partition in (0, 1):
            client.produce(topic, b"x" * 500, partition=partition)
        client.flush(30)
        if number % 3:
            client.commit_transaction(60)
        else:
            client.abort_transaction(60)


@pytest.mark.parametrize("version", VERSIONS)
def test_all_kinds_of_batches_elections_and_deleted_records(cluster: KafkaCluster, tmp_path: Path) -> None:
    topic, spool = f"kinds-{cluster.version}", tmp_path / "spool"
    create(cluster, topic, [[1, 2, 3], [2, 3, 1]], **small(cluster))
    send_all_kinds(cluster, topic)
    arguments: list[str | Path] = ["--bootstrap", cluster.bootstrap, "--topic", topic, "--to", spool]
    assert run_here(arguments, tmp_path / "log", program=topic_copy.main) == 0
    rows = [CopyRow(**json.loads(line)) for line in (tmp_path / "log").read_text().splitlines()]
    assert [(row.partition, row.state, row.leader) for row in rows] == [
        (f"{topic}-0", "copied", 1),
        (f"{topic}-1", "copied", 2),
    ]
    assert min(assert_replica(cluster, topic, spool, partition) for partition in (0, 1)) > 20
    with followed(cluster, topic, spool), open_transaction(cluster, topic, Book(), partitions=2):
        for node in (2, 3):
            lead(cluster, topic, 0, node)
            send_all_kinds(cluster, topic)
    copied(cluster, topic, spool)
    assert len(epochs(spool / f"{topic}-0")) == 3
    assert min(assert_replica(cluster, topic, spool, partition) for partition in (0, 1)) > 60
    with cluster.admin() as admin:
        admin.delete_records({KafkaPartition(topic, 0): 333, KafkaPartition(topic, 1): 50})
    for number, place in enumerate((spool, tmp_path / "fresh")):
        send(cluster, topic, Book(), 20, partition=number)
        copied(cluster, topic, place)
        assert min(assert_replica(cluster, topic, place, partition) for partition in (0, 1)) > 20
    assert epochs(tmp_path / "fresh" / f"{topic}-0")[0][1] == 333


@pytest.mark.parametrize("version", VERSIONS)
def test_an_unclean_election(cluster: KafkaCluster, tmp_path: Path) -> None:
    """Broker 1 commits alone, and is copied; broker 2, which lacks that, is elected, and later back again."""
    topic, spool = f"unclean-replica-{cluster.version}", tmp_path / "spool"
    settings = small(cluster, min_insync_replicas="1", unclean_leader_election_enable="true")
    create(cluster, topic, [[1, 2]], **settings)
    one, two = cluster.brokers[:2]
    send(cluster, topic, Book(), 120, one_by_one=True)
    two.kill()
    await_in_sync(cluster, topic, 1)
    with followed(cluster, topic, spool) as rows:
        send(cluster, topic, Book(), 120, one_by_one=True)
        wait_until(lambda: rows()[0].next_offset == 240, what="the first branch to be copied")
        assert assert_replica(cluster, topic, spool) == 240
        dead = batches_in(spool / f"{topic}-0")[120:]
        one.kill()
        two.start()
        await_leader(cluster, topic, 2)
        send(cluster, topic, Book(), 60, one_by_one=True)
        wait_until(lambda: rows()[0].next_offset == 180, what="the second branch to be copied")
    copied(cluster, topic, spool)
    assert assert_replica(cluster, topic, spool) == 180
    assert epochs(spool / f"{topic}-0")[-1][1] == 120
    assert not set(dead) & set(batches_in(spool / f"{topic}-0"))
    one.start()
    await_in_sync(cluster, topic, 2)
    lead(cluster, topic, 0, 1)
    send(cluster, topic, Book(), 10)
    copied(cluster, topic, spool)
    assert_replica(cluster, topic, spool)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_topic_that_is_made_again(cluster: KafkaCluster, tmp_path: Path) -> None:
    topic, spool = f"again-replica-{cluster.version}", tmp_path / "spool"
    create(cluster, topic, [[1, 2, 3]])
    send(cluster, topic, Book(), 100)
    with followed(cluster, topic, spool) as rows:
        wait_until(lambda: rows()[0].next_offset == 100, what="the former topic to be copied")
        assert_replica(cluster, topic, spool)
        kept = batches_in(spool / f"{topic}-0")
        delete(cluster, topic)
        create(cluster, topic, [[1, 2, 3]])
        send(cluster, topic, Book(), 40)
        wait_until(lambda: rows()[0].state == "over", what="the copy to end")
    assert batches_in(spool / f"{topic}-0") == kept
    log = tmp_path / "log"
    arguments: list[str | Path] = ["--bootstrap", cluster.bootstrap, "--topic", topic, "--to", spool]
    assert run_here(arguments, log, program=topic_copy.main) == 1
    assert "it was made again; move the directory away" in log.read_text()
    copied(cluster, topic, tmp_path / "fresh")
    assert_replica(cluster, topic, tmp_path / "fresh")


@pytest.mark.parametrize("version", VERSIONS)
def test_a_batch_of_thirty_megabytes(cluster: KafkaCluster, tmp_path: Path) -> None:
    """It comes whole, however small the answers are; beyond the limit it stops its own partition."""
    topic, spool = f"large-replica-{cluster.version}", tmp_path / "spool"
    create(cluster, topic, [[1], [1]], max_message_bytes="40000000", segment_bytes="100000000")
    for size in (100, 30_000_000, 100):
        for partition in (0, 1):
            value, book = bytes(size if partition == 0 else 100), Book()
            client = producer(cluster, **{"message.max.bytes": 40_000_000})
            client.produce(topic, value, partition=partition, on_delivery=book.note(partition, None, value))
            assert (client.flush(60), book.refused) == (0, 0)
    limited = copied(cluster, topic, spool, FetchLimits(100_000, 30_000, 10_000_000))
    assert [row.state for row in limited] == ["stopped", "copied"]
    assert f"{topic}-0: the answer from offset 1 on has 30" in str(limited[0].why)
    assert [row.state for row in copied(cluster, topic, spool)] == ["copied", "copied"]
    assert [assert_replica(cluster, topic, spool, partition) for partition in (0, 1)] == [3, 3]


@pytest.mark.full
@pytest.mark.parametrize("version", VERSIONS)
def test_a_compacted_log(cluster: KafkaCluster, tmp_path: Path) -> None:
    """What the cleaner has removed before is a hole; a new replica has the log as it is now."""
    topic, spool = f"compacted-replica-{cluster.version}", tmp_path / "spool"
    settings = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0.01", "segment_ms": "2000"}
    create(cluster, topic, [[1, 2, 3]], **small(cluster, **settings))
    for _ in range(3):
        send(cluster, topic, Book(), 300, keys=40)
    place = folder(cluster.brokers[0], topic, 0)
    wait_until(
        lambda: sum(path.stat().st_size for path in place.glob("*.log")) < 900 * 400 // 2,
        what="the cleaner to have compacted",
    )
    lead(cluster, topic, 0, 2)
    send(cluster, topic, Book(), 300, keys=40)
    copied(cluster, topic, spool)
    headers = [header_of(raw) for raw in batches_in(spool / f"{topic}-0")]
    assert any(before.next_offset < after.base_offset for before, after in itertools.pairwise(headers))
    leader = folder(cluster.brokers[1], topic, 0)
    wait_until(
        lambda: cleaned_equal(leader, spool / f"{topic}-0", tmp_path, cluster, topic), what="an equal copy of the log"
    )


def cleaned_equal(leader: Path, mine: Path, root: Path, cluster: KafkaCluster, topic: str) -> bool:
    """True if a new copy has the bytes that the leader has before and after it: the cleaner did not run meanwhile."""
    before = batches_in(leader)
    fresh = root / f"fresh-{len(list(root.iterdir()))}"
    copied(cluster, topic, fresh)
    return before == batches_in(fresh / mine.name) == batches_in(leader) and epochs(fresh / mine.name) == epochs(leader)


@pytest.mark.full
@pytest.mark.parametrize("version", VERSIONS)
def test_a_power_loss_of_the_only_replica(cluster: KafkaCluster, tmp_path: Path) -> None:
    """What unflushed pages took goes from the spool as well: other records are at these offsets now."""
    topic, spool = f"power-replica-{cluster.version}", tmp_path / "spool"
    create(cluster, topic, [[2]], min_insync_replicas="1")
    send(cluster, topic, Book(), 60, one_by_one=True)
    copied(cluster, topic, spool)
    broker = cluster.brokers[1]
    place = folder(broker, topic, 0)
    broker.kill()
    log = place / f"{0:020d}.log"
    [lost] = [header for header in scan_batches([log.read_bytes()], log.name, 0) if header.base_offset == 41]
    with log.open("rb+") as file:
        file.truncate(lost.position + lost.size // 2)
    broker.start()
    await_leader(cluster, topic, 2)
    send(cluster, topic, Book(), 50, one_by_one=True)
    copied(cluster, topic, spool)
    assert assert_replica(cluster, topic, spool) == 91


@pytest.mark.full
@pytest.mark.parametrize("version", VERSIONS)
def test_brokers_that_come_and_go_under_load(cluster: KafkaCluster, tmp_path: Path) -> None:
    topic, spool = f"load-replica-{cluster.version}", tmp_path / "spool"
    create(cluster, topic, [[1, 2, 3], [2, 3, 1], [3, 1, 2]], **small(cluster))
    with followed(cluster, topic, spool), under(Load(cluster, topic, Book(), partitions=3, rate=200, size=3000)):
        for number, broker in enumerate(cluster.brokers):
            if number % 2:
                broker.stop()
            else:
                broker.kill()
            broker.start()
            await_in_sync(cluster, topic, 3)
    copied(cluster, topic, spool)
    assert min(assert_replica(cluster, topic, spool, partition) for partition in range(3)) > 20
