from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.plugins.world import CLUSTER, World, entry, row
from tidemark.errors import AccessDenied, UnknownOutcome
from tidemark.formats.scan_status import ScanStatus
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
    assert (source.lake, source.status) == ("s3://lake", f"tables/_tidemark/_scan/{CLUSTER}.json")
