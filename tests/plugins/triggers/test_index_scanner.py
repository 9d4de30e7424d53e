from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.plugins.world import CLUSTER, LONG_AGO, World, entry, row
from tidemark.errors import AccessDenied, UnknownOutcome
from tidemark.formats.raw.head import Head, HeadEntry
from tidemark.formats.raw.pack import RangePointer
from tidemark.formats.raw.watermark_index import IndexEntry
from tidemark.formats.table.statuses import ScanStatus
from tidemark.store import Store, StoreOptions, open_store
from tidemark.store.base import Fetched, ObjectInfo
from tidemark_airflow.triggers.index_scanner import IndexScanner, Scan, Source
from tidemark_airflow.triggers.readiness import WatermarkRow


class Counting:
    """A store that counts what is read, and fails as it is told to."""

    def __init__(self, store: Store) -> None:
        self.url = store.url
        self.store = store
        self.reads: Counter[str] = Counter()
        self.lists = 0
        self.failure: Exception | None = None

    def get(self, key: str, *, limit: int | None = None) -> Fetched:
        self.reads[key] += 1
        return self.store.get(key, limit=limit)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        self.lists += 1
        if self.failure:
            raise self.failure
        return self.store.list(prefix)


@pytest.fixture
def store(world: World) -> Counting:
    return Counting(world.raw)


@pytest.fixture
def scanner(world: World, store: Counting) -> IndexScanner:
    deployment = world.deployment

    def open_one(url: str, options: StoreOptions) -> Store:
        if url != store.url:
            return open_store(url, options)
        return store  # type: ignore[return-value] # as much of a store as a scan uses

    return IndexScanner(Source.of(deployment, CLUSTER, 1), open_one)


def offsets(scan: Scan, topic: str = "orders") -> dict[int, int]:
    return {mark.partition: mark.next_offset for mark in map(WatermarkRow._make, scan.topics.get(topic, ()))}


def test_only_changed_indexes_are_read(world: World, store: Counting, scanner: IndexScanner) -> None:
    world.put_index(entry(next_offset=1), broker=1)
    world.put_index(entry(partition=1, next_offset=1), broker=2)
    first = scanner.scan()
    assert scanner.scan() is first
    world.put_index(entry(partition=1, next_offset=2), broker=2)

    assert offsets(scanner.scan()) == {0: 1, 1: 2}
    assert store.reads == {world.control.index(1): 1, world.control.index(2): 2}


def test_the_newest_leader_of_the_newest_incarnation_counts(world: World, scanner: IndexScanner) -> None:
    world.put_index(entry(next_offset=50, epoch=3), broker=1)
    world.put_index(entry(next_offset=40, epoch=4), broker=2)
    assert offsets(scanner.scan()) == {0: 40}

    world.put_index(entry(next_offset=5, epoch=0, incarnation=1), broker=3)
    assert offsets(scanner.scan()) == {0: 5}


def test_an_index_that_is_removed_no_longer_counts(world: World, scanner: IndexScanner) -> None:
    world.put_index(entry(next_offset=1))
    scanner.scan()
    world.raw.delete(world.control.index(1))

    assert offsets(scanner.scan()) == {}


def test_an_index_that_does_not_parse_leaves_the_last_good_one(
    world: World, store: Counting, scanner: IndexScanner, caplog: pytest.LogCaptureFixture
) -> None:
    world.put_index(entry(next_offset=1), broker=1)
    world.put_index(entry(partition=1, next_offset=1), broker=2)
    scanner.scan()
    world.raw.put(world.control.index(1), b"{}")
    world.put_index(entry(partition=1, next_offset=2), broker=2)

    scan = [scanner.scan() for _ in range(3)][-1]

    assert offsets(scan) == {0: 1, 1: 2}
    assert scan.failing_since is None
    assert store.reads[world.control.index(1)] == 2
    assert sum("cannot be read" in record.message for record in caplog.records) == 1


@pytest.mark.parametrize("failure", [UnknownOutcome("k", "no answer"), AccessDenied("k", "no"), PermissionError("no")])
def test_a_store_that_fails_is_told_of_and_tried_again_more_slowly(
    world: World, store: Counting, scanner: IndexScanner, failure: Exception
) -> None:
    world.put_index(entry(next_offset=1))
    scanner.scan()
    store.failure = failure
    found = [(scanner.scan(), scanner.pause) for _ in range(12)]
    scan, pauses = found[-1][0], [pause for _, pause in found]

    assert offsets(scan) == {0: 1}
    assert str(failure) in scan.failure
    assert pauses[:3] == [2, 4, 8]
    assert pauses[-1] == 60
    since = scan.failing_since
    assert since is not None
    assert scanner.scan().failing_since == since

    store.failure = None
    world.put_index(entry(next_offset=2))
    assert scanner.scan() == Scan({"orders": (row(next_offset=2),)})
    assert scanner.pause == 1


def test_a_topic_is_the_same_object_until_an_index_that_names_it_changes(world: World, scanner: IndexScanner) -> None:
    world.put_index(entry(next_offset=1), entry("clicks", next_offset=1), broker=1)
    world.put_index(entry(partition=1, next_offset=1), broker=2)
    first = scanner.scan().topics
    world.put_index(entry(partition=1, next_offset=2), broker=2)
    second = scanner.scan().topics

    assert second["clicks"] is first["clicks"]
    assert second["orders"] is not first["orders"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of what Airflow left to be collected
def test_the_garbage_collector_passes_over_what_is_kept(world: World, scanner: IndexScanner) -> None:
    world.put_index(*(entry(partition=n, next_offset=n) for n in range(50)))
    kept = scanner.scan().topics["orders"]
    gc.collect()  # the rows
    gc.collect()  # what has them

    assert len(kept) == 50
    assert not any(gc.is_tracked(one) for one in (*kept, kept))


def status(world: World) -> ScanStatus:
    deployment = world.deployment
    key = deployment.deployment_keys(CLUSTER).scan
    return ScanStatus.from_bytes(open_store(deployment.lake_store).get(key).body, key)


def test_how_it_fares_is_written_at_once_when_it_changes(world: World, store: Counting, scanner: IndexScanner) -> None:
    world.put_index(entry(next_offset=1))
    scanner.scan()
    first = status(world)
    assert (first.listed, first.read, first.failing_since) == (1, 1, None)

    scanner.scan()
    assert status(world) == first  # once a minute is enough while nothing changes
    store.failure = UnknownOutcome("k", "no answer")
    scan = scanner.scan()
    failing = status(world)
    assert (failing.failing_since, failing.failures) == (scan.failing_since, 1)
    assert "no answer" in failing.error

    store.failure = None
    scanner.scan()
    assert status(world).failing_since is None
    assert status(world).error == ""


def test_the_triggerers_capacity_is_written(
    world: World, scanner: IndexScanner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__TRIGGERER__CAPACITY", "7")
    world.put_index(entry(next_offset=1))
    scanner.scan()
    assert status(world).capacity == 7


def test_it_goes_on_where_its_status_cannot_be_written(world: World, caplog: pytest.LogCaptureFixture) -> None:
    scanner = IndexScanner(Source.of(world.deployment, CLUSTER, 1))
    (world.root / "lake" / "_tidemark").write_text("no folder")
    world.put_index(entry(next_offset=1))

    assert offsets(scanner.scan()) == {0: 1}
    assert "not written" in caplog.text


def test_all_topics_of_a_cluster_have_one_source(world: World) -> None:
    world.write_topics(
        cluster=CLUSTER,
        raw={"url": "s3://raw/prefix", "topics": {"big": {"url": "s3://big"}}},
        lake="s3://lake/tables",
        topics=[{"topic": "big"}, {"topic": "orders"}],
    )
    source = Source.of(world.deployment, CLUSTER, 1)

    assert (source.store, source.folder) == ("s3://raw", f"prefix/_watermarks/{CLUSTER}/")
    assert (source.lake, source.keys.scan) == ("s3://lake", f"tables/_tidemark/_scan/{CLUSTER}.json")


HEAD_ID = "9qjWLzpzSeKF3tvzv1l6bQ"


def put_head(
    world: World,
    end: int,
    *,
    epoch: int = 0,
    topic_id: str = HEAD_ID,
    broker: int = 1,
    topic: str = "orders",
    store: Store | None = None,
) -> None:
    """What ``broker`` has packed of partition 0 and not sealed."""
    last = RangePointer(pack=f"{broker}/{'0' * 32}.pack", position=4096, length=100)
    tail = HeadEntry(
        topic=topic,
        topic_id=topic_id,
        partition=0,
        epoch=epoch,
        lineage=((epoch, 0),),
        tail_end=end,
        last=last,
        high_watermark=end,
        observed_at=LONG_AGO,
        oldest_unstored=0,
    )
    head = Head(cluster=CLUSTER, broker=broker, agent="test", written_at=LONG_AGO, entries=(tail,))
    (store or world.raw).put(world.control.head(broker), head.to_bytes())


def led(next_offset: int, **more: Any) -> IndexEntry:
    return entry(next_offset=next_offset).model_copy(update={"topic_id": HEAD_ID, **more})


def test_the_newest_of_index_and_head_counts(world: World, store: Counting, scanner: IndexScanner) -> None:
    world.put_index(led(10))
    put_head(world, 15)
    assert offsets(scanner.scan()) == {0: 15}
    put_head(world, 20)
    assert offsets(scanner.scan()) == {0: 20}

    world.put_index(led(10, tail_end=25))
    assert offsets(scanner.scan()) == {0: 25}
    world.put_index(led(30))
    assert offsets(scanner.scan()) == {0: 30}
    scanner.scan()
    assert store.reads[world.control.head(1)] == 2


def test_a_head_of_a_later_leader_counts_and_one_of_a_former_leader_does_not(
    world: World, scanner: IndexScanner
) -> None:
    world.put_index(led(50, leader_epoch=3))
    put_head(world, 60, epoch=2, broker=2)
    assert offsets(scanner.scan()) == {0: 50}

    put_head(world, 40, epoch=4, broker=3)
    [mark] = map(WatermarkRow._make, scanner.scan().topics["orders"])
    assert (mark.leader_epoch, mark.next_offset, mark.incarnation) == (4, 40, 0)


def test_a_head_of_a_topic_that_was_deleted_does_not_count(world: World, scanner: IndexScanner) -> None:
    world.put_index(led(5, incarnation=1))
    put_head(world, 60, topic_id="A" * 22)

    assert offsets(scanner.scan()) == {0: 5}


def test_a_head_that_goes_counts_no_longer(world: World, scanner: IndexScanner) -> None:
    world.put_index(led(10))
    put_head(world, 15)
    scanner.scan()
    world.raw.delete(world.control.head(1))

    assert offsets(scanner.scan()) == {0: 10}


def test_a_head_under_another_brokers_key_does_not_count(world: World, scanner: IndexScanner) -> None:
    world.put_index(led(10))
    put_head(world, 15)
    body = world.raw.get(world.control.head(1)).body
    world.raw.delete(world.control.head(1))
    world.raw.put(world.control.head(2), body)

    assert offsets(scanner.scan()) == {0: 10}


@pytest.fixture
def apart(world: World) -> Store:
    """The bucket of the topic ``clicks``, which is kept apart from ``orders``; both have a freshness."""
    url = f"file://{world.root}/apart"
    world.write_topics(
        cluster=CLUSTER,
        raw={"url": f"file://{world.root}/raw", "topics": {"clicks": {"url": url}, "idle": {"url": f"{url}-idle"}}},
        lake=f"file://{world.root}/lake",
        topics=[{"topic": "orders", "freshness": "10s"}, {"topic": "clicks", "freshness": "10s"}, {"topic": "idle"}],
    )
    return open_store(url)


def test_heads_of_each_bucket_that_has_topics_with_a_freshness_are_read(world: World, apart: Store) -> None:
    source = Source.of(world.deployment, CLUSTER, 1)
    assert [one.store for one in source.heads] == [world.raw.url, apart.url]
    scanner = IndexScanner(source)
    clicks = led(10).model_copy(update={"topic": "clicks"})
    world.put_index(led(10), clicks)
    put_head(world, 15)
    put_head(world, 40, topic="clicks", store=apart)
    scan = scanner.scan()
    assert (offsets(scan), offsets(scan, "clicks")) == ({0: 15}, {0: 40})
    put_head(world, 50, topic="clicks", store=apart)
    again = scanner.scan()
    assert offsets(again, "clicks") == {0: 50}
    assert again.topics["orders"] is scan.topics["orders"], "nothing of it has changed"


def test_a_bucket_that_fails_costs_its_own_topics_what_heads_say(world: World, apart: Store) -> None:
    failing = Counting(apart)

    def open_one(url: str, options: StoreOptions) -> Store:
        return failing if url == apart.url else open_store(url, options)  # type: ignore[return-value] # see above

    scanner = IndexScanner(Source.of(world.deployment, CLUSTER, 1), open_one)
    world.put_index(led(10), led(10).model_copy(update={"topic": "clicks"}))
    put_head(world, 40, topic="clicks", store=apart)
    scanner.scan()
    failing.failure = UnknownOutcome("_heads/", "no answer")
    put_head(world, 15)
    put_head(world, 50, topic="clicks", store=apart)
    scan = scanner.scan()
    assert (offsets(scan), offsets(scan, "clicks"), scan.failing_since) == ({0: 15}, {0: 40}, None)
    failing.failure = None
    assert offsets(scanner.scan(), "clicks") == {0: 50}
