"""A bucket that fails or hangs, and what health says of it: others go on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from tests.support.waiting import HUNG, wait_until
from tests.uploader_agent.fakes import ID, T, WatchedStore, World, records
from tests.uploader_agent.packs.packing import append
from tests.uploader_agent.test_run import running, watermark_is
from tests.uploader_agent.tested_agent import TestedAgent
from tidemark.errors import AccessDenied
from tidemark.formats.keys import TopicPartition
from tidemark.formats.raw.watermark_index import DamagedHead, WatermarkIndex
from tidemark.raw.heads import read_head
from tidemark.storage import ClusterStore
from tidemark.store import LocalStore
from uploader_agent.broker.admin import Led
from uploader_agent.disk.watcher import DirectoryWatcher
from uploader_agent.packing import packer

APART = TopicPartition("payments", 0)
SETTINGS = {
    "freshness": {".*": "3s"},
    "scan_interval": "50ms",
    "metadata_interval": "50ms",
    "index_interval": "50ms",
    "index_idle_interval": "50ms",
}


@pytest.fixture
def apart(world: World, tmp_path: Path) -> WatchedStore:
    """Another bucket, which has a topic of its own."""
    store = WatchedStore(LocalStore(tmp_path / "apart"))
    world.others[store.url] = store
    for at in (T, APART):
        world.disk.partition(at).segment(0, records(0, 30))
        world.metadata.leads[at] = Led(3, ID)
        world.metadata.high[at] = 30
    return store


@contextmanager
def two_buckets(world: World, apart: WatchedStore, **settings: object) -> Iterator[TestedAgent]:
    """A running agent that packs in both."""
    raw = {"url": world.store.url, "topics": {APART.topic: {"url": apart.url}}}
    with running(world, DirectoryWatcher(), **SETTINGS | settings, raw=raw) as agent:
        yield agent


def packed(world: World, store: WatchedStore, end: int) -> bool:
    """Whether the head in a bucket names something up to ``end``."""
    found = read_head(ClusterStore(store.inner, world.control), 1)
    return found is not None and max((one.tail_end for one in found.value.entries), default=0) == end


def grow(world: World, at: TopicPartition, end: int) -> None:
    partition = world.disk.partition(at)
    append(partition, 0, records(end - 10, end))
    world.metadata.high[at] = end


def refuse(operation: str, key: str) -> None:
    raise AccessDenied(key, f"told so, of a {operation}")


def test_a_bucket_that_refuses_all_holds_up_no_other(world: World, apart: WatchedStore) -> None:
    apart.before = refuse
    with two_buckets(world, apart, stuck_after="100ms") as agent:
        for end in (30, 40, 50):
            if end > 30:
                grow(world, T, end)
            wait_until(lambda end=end: packed(world, world.store, end), what=f"{end} to be packed")  # type: ignore[misc]
        wait_until(lambda: "payments" in str(agent.health.trouble()), what="the trouble to be told")
        assert "AccessDenied" in str(agent.health.trouble())
        apart.before = lambda _operation, _key: None
        wait_until(lambda: packed(world, apart, 30), what="the other bucket to be packed")
        wait_until(lambda: agent.health.trouble() is None, what="health")


def test_a_bucket_that_hangs_holds_up_no_other(world: World, apart: WatchedStore) -> None:
    goes_on = threading.Event()

    def hang(_operation: str, key: str) -> None:
        if key.endswith(".pack") or "_heads" in key:
            goes_on.wait(HUNG)

    apart.before = hang
    with two_buckets(world, apart, stuck_after="100ms") as agent:
        try:
            for end in (30, 40, 50):
                if end > 30:
                    grow(world, T, end)
                wait_until(lambda end=end: packed(world, world.store, end), what=f"{end} to be packed")  # type: ignore[misc]
            wait_until(lambda: f"beside {apart.url}/_heads" in str(agent.health.trouble()), what="the trouble")
            assert "1 partitions wait to be packed" in str(agent.health.trouble())
            wait_until(lambda: stalled_for(agent) > 0, what="the gauge")
        finally:
            goes_on.set()
        wait_until(lambda: packed(world, apart, 30), what="the other bucket to be packed")
        wait_until(lambda: agent.health.trouble() is None, what="health")


def test_tails_are_sealed_in_time_whatever_another_bucket_does(
    world: World, apart: WatchedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new process knows by the head since when they are packed."""
    with two_buckets(world, apart):
        wait_until(lambda: packed(world, world.store, 30), what="a pack")
        wait_until(lambda: world.control.index(1) in world.store.puts, what="an index")
    monkeypatch.setattr(packer, "MOST_UNSEALED_AGE", timedelta(0))
    apart.before = refuse
    with two_buckets(world, apart):
        world.store.await_put(lambda: watermark_is(world, 30))


def test_the_index_tells_of_a_damaged_head(world: World) -> None:
    world.disk.partition().segment(0, records(0, 30))
    world.metadata.default_high = 30
    head, index = world.control.head(1), world.control.index(1)

    def told() -> tuple[DamagedHead, ...]:
        return WatermarkIndex.from_bytes(world.store.inner.get(index).body, index).damaged_heads

    with running(world, DirectoryWatcher(), **SETTINGS):
        wait_until(lambda: packed(world, world.store, 30), what="a pack")
        world.store.await_put(lambda: index in world.store.puts)
        assert told() == ()
        world.store.inner.put(head, b"garbage")
        wait_until(lambda: any(one.made_at for one in told()), what="the damage to be told")
        assert packed(world, world.store, 30), "it is made again"
    [found] = told()
    assert found.key == f"{world.store.url}/{head}"
    assert found.kept is not None
    assert world.store.inner.get(found.kept).body == b"garbage"


def stalled_for(agent: TestedAgent) -> float:
    """What the gauge says when it is measured."""
    agent._monitor.measure()
    return agent.metrics.registry.get_sample_value("tidemark_agent_packs_stalled_seconds") or 0.0


def _pack_refused(operation: str, key: str) -> None:
    if operation == "put" and key.endswith(".pack"):
        refuse(operation, key)


def _head_refused(operation: str, key: str) -> None:
    if operation == "put" and "_heads" in key:
        refuse(operation, key)


@pytest.mark.parametrize("before", [_pack_refused, _head_refused, refuse], ids=["packs", "heads", "all"])
def test_an_agent_that_only_packs_is_not_healthy_while_its_store_refuses(
    world: World, before: Callable[[str, str], None]
) -> None:
    world.disk.partition().segment(0, records(0, 30))
    world.metadata.default_high = 30
    with running(world, DirectoryWatcher(), **SETTINGS, stuck_after="100ms") as agent:
        wait_until(lambda: packed(world, world.store, 30), what="a pack")
        wait_until(lambda: agent.queue.unfinished() == 0, what="no job")
        assert agent.health.trouble() is None
        world.store.before = before
        append(world.disk.partition(), 0, records(30, 50))
        world.metadata.default_high = 50
        wait_until(lambda: "wait to be packed" in str(agent.health.trouble()), what="the trouble")
        assert agent.queue.unfinished() == 0, "no job waits"
        world.store.before = lambda _operation, _key: None
        wait_until(lambda: packed(world, world.store, 50), what="the rest to be packed")
        wait_until(lambda: agent.health.trouble() is None, what="health")


def test_an_idle_agent_is_healthy(world: World) -> None:
    """Whatever happened to what is not its own any more."""
    world.disk.partition().segment(0, records(0, 30))
    world.metadata.default_high = 30
    world.store.before = _pack_refused
    with running(world, DirectoryWatcher(), **SETTINGS, stuck_after="100ms") as agent:
        wait_until(lambda: "wait to be packed" in str(agent.health.trouble()), what="the trouble")
        world.metadata.leads = {}
        wait_until(lambda: agent.health.trouble() is None, what="health")
