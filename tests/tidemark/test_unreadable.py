"""An object that cannot be read costs its broker or topic alone, and is named: for each kind and each reader."""

from __future__ import annotations

import importlib
import os
import pkgutil
import random
import tracemalloc
from datetime import timedelta
from pathlib import Path

import pytest

import tidemark
from tests.plugins.world import CLUSTER, World, entry, gap
from tests.spark import world as spark_world
from tests.support.bad_objects import BODIES, HUGE, LATER, refused, spoil
from tests.tidemark.kafka_log.build import simple
from tests.tidemark.remote.world import RemoteStore
from tidemark.errors import FormatError, LaterFormat, StoreError
from tidemark.formats import object_sizes
from tidemark.formats.base import StoredObject, parse_json
from tidemark.formats.keys import ControlKeys
from tidemark.formats.raw import watermark
from tidemark.formats.raw.watermark_index import WatermarkIndex
from tidemark.monitoring.incident_store import read_incidents, watch
from tidemark.monitoring.incidents import Incidents
from tidemark.planning import plan_ingest
from tidemark.raw_topic import RawTopic
from tidemark.remote.topics import RemoteTopics
from tidemark.store import open_store
from tidemark.timestamps import utc_now

MINUTE = timedelta(minutes=1)

__all__ = ["refused"]


def kinds() -> list[type[StoredObject]]:
    """All kinds of stored objects of the package."""
    for module in pkgutil.walk_packages(tidemark.__path__, "tidemark."):
        if not module.name.endswith(("__main__", "notebooks")) and not module.name.startswith("tidemark.consumer"):
            importlib.import_module(module.name)
    return sorted(StoredObject.__subclasses__(), key=lambda one: one.__qualname__)


KINDS = kinds()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__qualname__)
def test_whatever_lies_under_a_key_is_an_object_or_a_format_error(
    tmp_path: Path, kind: type[StoredObject], rng: random.Random, full: bool
) -> None:
    store = open_store(f"file://{tmp_path}")
    for what in BODIES if full else rng.sample([*BODIES], 4):
        spoil(tmp_path, "a/key.json", what)
        with pytest.raises(FormatError, match=r"^a/key\.json: ") as raised:
            kind.load(store, "a/key.json")
        assert len(str(raised.value)) < 2000, what


def test_there_are_as_many_kinds_as_are_known() -> None:
    assert {"WatermarkIndex", "Watermark", "SegmentManifest", "Ledger", "RunPlan"} < {one.__qualname__ for one in KINDS}
    assert len(KINDS) > 20


@pytest.mark.parametrize("what", BODIES)
def test_a_watermark_is_read_or_refused(tmp_path: Path, what: str) -> None:
    for line_1 in (b"", b"0" * 20 + b"\n", b"9" * 20 + b"\n"):
        body = line_1 + BODIES[what]
        if body != b"0" * 20 + b"\n":  # that is Pinterest's own
            with pytest.raises(FormatError, match=r"^a/offset\.wm: "):
                watermark.parse(body, "a/offset.wm")


def test_what_is_too_large_is_refused_before_its_bytes_are_received(tmp_path: Path) -> None:
    spoil(tmp_path, "k", HUGE)
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match=r"has 104857600 bytes, and objects of its kind have at most 16777216"):
            WatermarkIndex.load(open_store(f"file://{tmp_path}"), "k")
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_numbers_have_64_bits_and_lists_end_at_their_first_wrong_item() -> None:
    good = WatermarkIndex(cluster="c", broker=1, agent_version="1", written_at=utc_now(), entries=(entry("a", 0, 5),))
    text = good.to_bytes()
    WatermarkIndex.from_bytes(text.replace(b'"next_offset":5', b'"next_offset":9223372036854775807'), "k")
    for wrong in (b"9223372036854775808", b"-9223372036854775809", b"9" * 4000, b"1e300"):
        with pytest.raises(FormatError, match=r"entries\.0\.next_offset"):
            WatermarkIndex.from_bytes(text.replace(b'"next_offset":5', b'"next_offset":' + wrong), "k")
    with pytest.raises(FormatError, match=r"entries\.0\.bytes_per_offset"):
        WatermarkIndex.from_bytes(text.replace(b'"bytes_per_offset":null', b'"bytes_per_offset":1e999'), "k")
    with pytest.raises(FormatError) as raised:
        WatermarkIndex.from_bytes(b'{"entries":[0,0,0]}', "k")
    assert str(raised.value).count("entries.") == 1


def test_plain_json_is_parsed_or_refused() -> None:
    assert parse_json(b'{"a": [1]}', "k") == {"a": [1]}
    for what in ("deep nesting", "no UTF-8", "nothing", "numbers that are none"):
        with pytest.raises(FormatError, match=r"^k: object: Invalid JSON"):
            parse_json(BODIES[what], "k")


def test_the_limits_leave_room_for_a_large_deployment() -> None:
    """500,000 partitions on 3,000 brokers, were they all led by a hundredth of them."""
    entries = tuple(entry(f"a-topic-of-{number}", 0, 1 << 50, gaps=[gap(0, 5)]) for number in range(500_000 // 30))
    index = WatermarkIndex(cluster="c", broker=1, agent_version="1", written_at=utc_now(), entries=entries)
    assert len(index.to_bytes()) < object_sizes.WATERMARK_INDEX


@pytest.fixture
def world(tmp_path: Path) -> World:
    found = World(tmp_path / "world", "orders", "clicks")
    found.put_index(entry("orders", 0, 100, gaps=[gap(100, 150)]), broker=1)
    found.put_index(entry("orders", 1, 100, gaps=[gap(100, 150)]), entry("clicks", 0, 7, gaps=[gap(7, 9)]), broker=2)
    return found


def open_incidents(world: World, minute: int) -> list[str]:
    return [one.key for one in watch(world.deployment, CLUSTER, utc_now() + minute * MINUTE).incidents if one.open]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("what", BODIES)
def test_the_watch_goes_on_with_the_other_brokers(world: World, what: str) -> None:
    assert len(open_incidents(world, 0)) == 3
    spoil(world.root / "raw", world.control.index(1), what)
    world.put_index(entry("orders", 1, 200), entry("clicks", 0, 9), broker=2)
    open_incidents(world, 1)
    found = [key for key in open_incidents(world, 4) if not key.startswith("agent_gone")]
    unreadable = f"unreadable/{CLUSTER}/{world.control.index(1)}"
    assert found == [f"gap/{CLUSTER}/orders/0-0/100", unreadable], "what the others lead is known, and closes"


def test_a_broker_whose_index_cannot_be_read_stays_gone_and_the_others_do_not(world: World) -> None:
    gone = [f"agent_gone/{CLUSTER}/{broker}" for broker in (1, 2)]
    assert set(gone) < set(open_incidents(world, 60))
    spoil(world.root / "raw", world.control.index(1), "no field")
    later = WatermarkIndex.load(world.raw, world.control.index(2))
    at = utc_now() + 70 * MINUTE
    world.raw.put(world.control.index(2), later.model_copy(update={"written_at": at}).to_bytes())
    os.utime(world.root / "raw" / world.control.index(2), (at.timestamp(), at.timestamp()))  # the store's clock counts
    found = open_incidents(world, 70)
    assert gone[0] in found
    assert gone[1] not in found


def test_the_watch_goes_on_where_the_store_does_not_give_one_index(world: World, refused: set[str]) -> None:
    refused.add(world.control.index(1))
    open_incidents(world, 0)
    found = open_incidents(world, 3)
    assert f"unreadable/{CLUSTER}/{world.control.index(1)}" in found
    assert f"gap/{CLUSTER}/orders/0-1/100" in found
    refused.add(world.control.index(2))
    open_incidents(world, 4)
    assert f"scan/{CLUSTER}" in open_incidents(world, 7), "none can be read: it is the store"


@pytest.mark.sampled(4)
@pytest.mark.parametrize("what", [what for what in BODIES if what != LATER])
def test_the_watch_begins_incidents_again_that_cannot_be_read(world: World, what: str) -> None:
    before = open_incidents(world, 0)
    keys = world.deployment.deployment_keys(CLUSTER)
    root = world.root / "lake"
    for key in (keys.incidents, keys.sightings, keys.scan, keys.samples(utc_now())):
        spoil(root, key, what)
    assert open_incidents(world, 1) == before
    assert isinstance(read_incidents(world.deployment, CLUSTER), Incidents)


def test_the_watch_leaves_incidents_of_a_later_version_alone(world: World) -> None:
    key = world.deployment.deployment_keys(CLUSTER).incidents
    spoil(world.root / "lake", key, LATER)
    with pytest.raises(LaterFormat, match=f"^{key}: has format 3 of Incidents"):
        open_incidents(world, 0)
    assert (world.root / "lake" / key).read_bytes() == BODIES[LATER]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("what", BODIES)
def test_the_planner_goes_on_with_all_partitions(tmp_path: Path, what: str, caplog: pytest.LogCaptureFixture) -> None:
    world = spark_world.World(tmp_path)
    control = ControlKeys("", world.table.topic.cluster)
    world.raw.segment([simple(0)])
    world.raw.publish()
    before = plan_ingest(world.table)
    spoil(tmp_path / "raw", control.index(77), what)
    assert [one.end for one in plan_ingest(world.table).partitions] == [one.end for one in before.partitions] == [3]
    assert control.index(77) in caplog.text


def test_a_partition_that_nobody_tells_of_is_planned_by_its_watermark(tmp_path: Path) -> None:
    world = spark_world.World(tmp_path)
    world.raw.segment([simple(0)])
    world.land()
    world.raw.segment([simple(3)])
    world.raw.publish()
    key = next(info.key for info in world.raw.store.list("_watermarks"))
    spoil(tmp_path / "raw", key, "no field")
    assert [one.end for one in plan_ingest(world.table).partitions] == [6]
    assert RawTopic(world.table).entries == {}


def test_the_planner_says_that_the_store_failed_where_no_index_can_be_read(tmp_path: Path, refused: set[str]) -> None:
    world = spark_world.World(tmp_path)
    world.raw.segment([simple(0)])
    world.raw.publish()
    refused |= {info.key for info in world.raw.store.list("_watermarks")}
    with pytest.raises(StoreError, match="not with this key"):
        plan_ingest(world.table)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("what", BODIES)
def test_the_consumer_goes_on_with_what_was_said_before(tmp_path: Path, what: str) -> None:
    remote = RemoteStore(f"file://{tmp_path}")
    raw = remote.raw()
    raw.segment([simple(0)])
    raw.publish()
    topics = RemoteTopics(remote.storage())
    control = ControlKeys("", "east")
    spoil(tmp_path, control.index(77), what)
    assert topics.partitions_for_topic("orders") == {0}
