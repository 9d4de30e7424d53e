"""A start with an index of one's own: what it settles is not looked at, and what it does not settle is."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.support.waiting import wait_until
from tests.uploader_agent.fakes import ID, T, World, records
from tests.uploader_agent.test_run import NEVER, running, watermark_is
from tidemark.formats.keys import TopicPartition
from tidemark.formats.raw.watermark_index import WatermarkIndex
from uploader_agent.broker.admin import Led
from uploader_agent.disk.watcher import DirectoryWatcher, Watcher

QUIET = {"scan_interval": NEVER, "metadata_interval": NEVER}


def index(world: World) -> WatermarkIndex:
    key = world.control.index(1)
    return WatermarkIndex.from_bytes(world.store.inner.get(key).body, key)


@pytest.fixture
def requests(world: World) -> list[str]:
    """What is asked of the store."""
    made: list[str] = []
    world.store.before = lambda operation, key: made.append(f"{operation} {key}")
    return made


def settled(world: World, requests: list[str], *ats: TopicPartition, **settings: Any) -> bool:
    """Whether a new agent leaves the partitions' part of the store alone."""
    requests.clear()
    with running(world, Watcher(), **QUIET, **settings) as agent:
        wait_until(lambda: agent.health.ready, what="ready")
        wait_until(lambda: all(agent.leadership.partitions[at].offsets for at in ats), what="offsets")
        wait_until(lambda: not agent.queue.unfinished(), what="nothing to do")
    return not any(world.keys(at).folder in request for at in ats for request in requests)


def test_idle_partitions_cost_one_get(world: World, requests: list[str]) -> None:
    ats = [TopicPartition("orders", number) for number in range(20)]
    world.metadata.leads = {at: Led(3, ID) for at in ats}
    world.metadata.default_high = 100
    for at in ats:
        world.disk.partition(at).fill(0, end=100)
    world.once()
    before = index(world)
    assert settled(world, requests, *ats)
    key = world.control.index(1)
    own = {f"get {key}", f"put {key}", f"head {key}", f"get {world.control.broker_gaps(1)}"}
    own |= {f"get {world.control.head(1)}", f"list {world.control.packs(1)}"}
    assert set(requests) <= own
    assert requests.count(f"get {key}") == 1
    after = index(world)
    assert [one.model_copy(update={"observed_at": None}) for one in after.entries] == [
        one.model_copy(update={"observed_at": None}) for one in before.entries
    ], "the index stays complete"
    assert all(new.observed_at >= old.observed_at for new, old in zip(after.entries, before.entries, strict=True))


def test_a_partition_known_by_its_index_goes_on_when_something_is_to_be_done(world: World, requests: list[str]) -> None:
    partition = world.disk.partition().fill(0, end=100)
    world.metadata.default_high = 100
    world.once()
    with running(world, DirectoryWatcher(), **QUIET) as agent:
        wait_until(lambda: agent.health.ready, what="ready")
        remote = agent.leadership.partitions[T].remote.log
        assert remote.known
        assert not remote.surveyed
        assert remote.bytes_per_offset, "as the former index says"
        world.metadata.default_high = 200
        partition.segment(100, records(100, 200)).roll(200)
        world.store.await_put(lambda: watermark_is(world, 200))
    [entry] = index(world).entries
    assert (entry.next_offset, entry.uploaded_end) == (200, 200)


def rotate(world: World) -> None:
    folder = world.disk.log_dirs[0] / str(T)
    (folder / f"{200:020d}.log").write_bytes(b"")


def elect(world: World) -> None:
    world.metadata.leads = {T: Led(4, ID)}


def retain(world: World) -> None:
    folder = world.disk.log_dirs[0] / str(T)
    for base in (0, 100):
        (folder / f"{base:020d}.log").rename(folder / f"{base:020d}.log.deleted")
    (folder / f"{300:020d}.log").write_bytes(b"")


@pytest.mark.parametrize("change", [rotate, elect, retain])
def test_what_has_changed_is_surveyed(world: World, requests: list[str], change: Any) -> None:
    world.disk.partition().fill(0, end=100).segment(100, records(100, 200))
    world.metadata.default_high = 200
    world.once()
    assert settled(world, requests, T), "the seed: without a change it is not"
    change(world)
    world.metadata.default_high = 300
    assert not settled(world, requests, T)


def test_a_gap_is_never_settled(world: World, requests: list[str]) -> None:
    """Somebody may have filled or acknowledged it meanwhile."""
    partition = world.disk.partition().fill(0, 100, end=200)
    world.once()
    partition.roll(300)
    partition.segment(200, records(200, 300)).roll(400)
    for base in (0, 100, 200):
        partition.log(base).unlink()
    partition.segment(300, records(300, 400))
    world.once()
    assert world.watermark()[1].gaps
    assert not settled(world, requests, T)


def test_other_endpoints_settle_nothing(world: World, requests: list[str]) -> None:
    world.disk.partition().fill(0, end=100)
    world.once()
    raw = {"url": world.store.url, "topics": {"orders": {"entropy_bits": 3}}}
    requests.clear()
    with running(world, Watcher(), raw=raw, **QUIET):
        world.store.await_put(lambda: any("offset.wm" in put and put.startswith("0") for put in world.store.puts))


def test_a_tail_that_was_uploaded(world: World, requests: list[str]) -> None:
    """The rest of an idle partition is sealed: it is settled, and stays so when it is rotated at that end."""
    partition = world.disk.partition().segment(0, records(0, 50))
    os.utime(partition.log(0), (1e9, 1e9))
    world.metadata.default_high = 50
    world.once(tail_after="1s")
    assert world.manifest(0).next_offset == 50
    assert settled(world, requests, T, tail_after="1s")
    partition.roll(50)
    assert settled(world, requests, T, tail_after="1s")


def test_a_damaged_index_settles_nothing(world: World) -> None:
    world.disk.partition().fill(0, end=100)
    world.store.inner.put(world.control.index(1), b"{")
    with running(world, Watcher(), **QUIET):
        world.store.await_put(lambda: watermark_is(world, 100))
