"""From a damaged pack or head to the incident that tells of it, and to its end."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import pytest

from tests.spark.world import World, in_process
from tests.support.live_end import Packer
from tests.tidemark.kafka_log.build import marker, simple, transactional
from tidemark.errors import ConfigError
from tidemark.formats.table.statuses import MOST_MESSAGES, UnreadStatus
from tidemark.inspection.made_parsers import compare_with_tables, make_parsers
from tidemark.monitoring import messages
from tidemark.monitoring.incident_store import watch
from tidemark.monitoring.incidents import Incident
from tidemark.planning import plan_compaction
from tidemark.planning.unread_status import record_unread, recording_failure
from tidemark.table.delta_table import open_topic_table
from tidemark.timestamps import utc_now
from tidemark.topics import load_topics
from tidemark_spark.run.driver import run

MINUTE = timedelta(minutes=1)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, "freshness: 60s")


@pytest.fixture
def packer(world: World) -> Packer:
    return Packer(world.raw)


def looked(world: World, at: datetime) -> list[Incident]:
    """The incidents of the kind after a look."""
    found = watch(world.table.deployment, "east", at)
    return [one for one in found.incidents if one.kind == "unread"]


def stored(world: World) -> UnreadStatus:
    return UnreadStatus.load(world.table.store, world.table.keys.deployment.unread("orders"))


def test_a_damaged_pack_is_an_incident_until_its_bytes_are_sealed_and_landed(world: World, packer: Packer) -> None:
    world.raw.segment([simple(0)])
    data = simple(3)
    packed = packer.pack([data])
    body = world.raw.store.get(packed.key).body
    world.raw.store.put(packed.key, body.replace(b'"partition":0', b'"partition":9'))
    assert world.land().rows == 3
    now = utc_now()
    assert looked(world, now) == [], "a damaged head is replaced before two minutes have passed"
    [incident] = looked(world, now + 2 * MINUTE)
    assert (incident.key, incident.topic, incident.open) == ("unread/east/orders", "orders", True)
    assert packed.key in incident.text
    [message] = messages.due([incident], "mail", now)
    assert messages.subject(message) == "Tidemark: opened: east/orders: a part of raw cannot be read"
    assert "the agent has sealed it" in messages.text(message)

    world.raw.segment([data], parts=[packed.part])
    packer.drop()
    assert world.land().unread == ()
    assert world.offsets() == list(range(6))
    [closed] = looked(world, now + 4 * MINUTE)
    assert (closed.open, closed.opened_at) == (False, incident.opened_at)


def test_a_batch_that_a_task_finds_damaged_is_told_too_although_nothing_lands(world: World, packer: Packer) -> None:
    packed = packer.pack([simple(0)])
    body = bytearray(world.raw.store.get(packed.key).body)
    body[70] ^= 1
    world.raw.store.put(packed.key, bytes(body))
    world.raw.publish()
    for _ in range(2):
        assert run(world.table, world.plan(), in_process).rows == 0
    assert "checksum" in stored(world).messages[0]
    now = utc_now()
    looked(world, now)
    assert [one.open for one in looked(world, now + 2 * MINUTE)] == [True]


@pytest.mark.parametrize("damage", ["missing", "other", "torn"])
def test_a_partition_waits_for_the_list_of_its_aborted_transactions(world: World, damage: str) -> None:
    """A missing ``.txnindex``, another than its manifest describes, or none of Kafka's: the others land."""
    aborted = [transactional(0, 7, 2), marker(2, 7, commit=False)]
    key = world.raw.segment(aborted, aborted=[(7, 0, 2)])
    world.raw.segment([simple(0, 4)], 1)
    world.raw.publish()
    index = f"{key.removesuffix('log')}txnindex"
    body = world.raw.store.get(index).body
    if damage == "missing":
        world.raw.store.delete(index)
    else:
        world.raw.store.put(index, body[:-1] if damage == "torn" else body[:-1] + b"!")
    result = world.land()
    assert result.rows == 4
    [message] = result.unread
    assert message.startswith(f"{index}: ")
    assert "tidemark-agent reupload" in message
    now = utc_now()
    looked(world, now)
    [incident] = looked(world, now + 2 * MINUTE)
    assert incident.open
    [told] = messages.due([incident], "mail", now)
    assert "`tidemark-agent reupload orders PARTITION` on a replica makes a `.txnindex` again" in messages.text(told)
    assert "the agent has sealed it" not in messages.text(told)
    world.raw.store.put(index, body)
    assert world.land().unread == ()
    world.check()
    assert [one.open for one in looked(world, now + 4 * MINUTE)] == [False]


def test_a_run_that_reads_no_live_end_says_nothing_of_it(world: World, packer: Packer) -> None:
    world.raw.segment([simple(0)])
    packer.pack([simple(3)])
    world.raw.store.put(packer.control.head(1), b"{}")
    world.land()
    run(world.table, plan_compaction(world.table), in_process)
    assert stored(world).objects == ["_heads/east/1.json"]
    packer.put_head()
    world.land()
    assert (stored(world).messages, stored(world).count) == ((), 0)


def test_the_last_plan_counts_and_what_is_known_is_not_written_again(world: World) -> None:
    table, now = world.table, utc_now()
    record_unread(table, now, [])
    assert [one.key for one in table.store.list("_tidemark/_unread/")] == [], "nothing was ever unread"
    record_unread(table, now, ["b: x", "a: y", "b: x"])
    first = table.store.head(table.keys.deployment.unread("orders")).etag
    record_unread(table, now + MINUTE, ["b: x", "a: y"])
    assert table.store.head(table.keys.deployment.unread("orders")).etag == first
    assert (stored(world).objects, stored(world).count) == (["a", "b"], 2)
    record_unread(table, now - MINUTE, [])
    assert stored(world).count == 2, "a slow run knew less"
    record_unread(table, now + 2 * MINUTE, ["a: y"])
    assert (stored(world).objects, stored(world).since) == (["a"], now)
    record_unread(table, now + 3 * MINUTE, [])
    record_unread(table, now + 4 * MINUTE, ["c: z"])
    assert stored(world).since == now + 4 * MINUTE
    record_unread(table, now + 5 * MINUTE, [f"{number}: z" for number in range(1000)])
    assert (len(stored(world).messages), stored(world).count) == (MOST_MESSAGES, 1000)


def test_a_damaged_record_of_it_is_replaced(world: World) -> None:
    key = world.table.keys.deployment.unread("orders")
    world.table.store.put(key, b"{ nothing")
    record_unread(world.table, utc_now(), [])
    assert stored(world).messages == ()


@pytest.mark.parametrize("fails", [False, True])
def test_a_record_of_a_later_format_stays(world: World, *, fails: bool) -> None:
    key, now = world.table.keys.deployment.unread("orders"), utc_now()
    record_unread(world.table, now, ["a: x"])
    later = world.table.store.get(key).body.replace(b'"format":1', b'"format":99')
    world.table.store.put(key, later)
    if fails:
        with pytest.raises(ConfigError, match="the run's own error"), recording_failure(world.table):
            raise ConfigError("topics.yaml", [("topics", "the run's own error")])
    else:
        record_unread(world.table, now + MINUTE, [])
    assert world.table.store.get(key).body == later


def test_a_topic_that_is_late_quotes_the_error_of_its_last_run(tmp_path: Path) -> None:
    """A column's type was widened in the topics file: only a rebuild of the whole table makes it wider."""
    world = World(tmp_path, "freshness: 60s", "parser: {kind: json, columns: [{name: id, type: int32}]}")

    def configure(before: str, after: str) -> None:
        world.topics_file.write_text(world.topics_file.read_text().replace(before, after))
        world.table = open_topic_table(deployment := load_topics(world.topics_file), deployment.topic("orders"))

    world.raw.segment([simple(0)])
    world.land()
    configure("int32", "int64")
    world.raw.segment([simple(3)])
    with pytest.raises(ConfigError, match="column id is integer in the table, and long by the parser"):
        world.land()
    made = make_parsers(world.table.deployment, offline=True)
    assert made.problems == []
    [(field, rule)] = compare_with_tables(world.table.deployment, made.sound).problems
    assert field == "topics.0.parser"
    assert "column id is integer in the table, and long by the parser: it is made wider when all dates" in rule
    now = utc_now()

    def late(at: datetime) -> list[Incident]:
        found = watch(world.table.deployment, "east", at)
        return [incident for incident in found.incidents if incident.kind == "late" and incident.open]

    late(now)
    [incident] = late(now + 30 * MINUTE)
    assert "the last run failed at" in incident.likely
    assert "column id is integer in the table, and long by the parser" in incident.likely
    configure("int64", "int32")
    world.land()
    assert stored(world).failure == ""
    assert late(now + 31 * MINUTE) == []
