"""Records that only the state table still has: retention has removed their rows, and raw is gone."""

from __future__ import annotations

import io
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.spark.audit.test_audit import audited
from tests.spark.erasing.test_job import SECRET, ask, job, reported, said
from tests.spark.retention.test_raw import NOW, bases
from tests.spark.retention.test_raw import remove as remove_raw
from tests.spark.run.test_truncation import branch
from tests.spark.state.replay import advance, compare, expire, first
from tests.spark.state.test_removed import DAY, PAST_T0, STATE
from tests.spark.state.test_state import JSON, put, values
from tests.spark.test_vacuum import as_of
from tests.spark.world import World
from tests.support.raw_builder import EPOCH
from tests.tidemark.kafka_log.build import T0, Record, batch
from tidemark.erasure.secret import VARIABLE
from tidemark.formats.table.state_audit import PARTS
from tidemark.table.state_table import StateTable
from tidemark_spark.state.audit import audit_state

RETENTION = "retention: {table: 30d, raw: 30d, apply: true}"


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, SECRET)


@pytest.fixture
def world(tmp_path: Path) -> World:
    """The state alone has 100 keys: ``key-1`` is deleted, and ``key-2`` was in another partition before."""
    world = World(tmp_path, STATE, RETENTION)
    world.raw.segment([batch(0, [Record(number, T0, b"key-%d" % number, b"v" * 64) for number in range(100)])])
    world.land()
    put(world, b"key-1", None, time=1)
    put(world, b"key-2", b"newer", time=1, partition=1)
    outlive(world)
    return world


def outlive(world: World) -> None:
    """Of all records but a new one in each partition, only what the state has is left."""
    for partition in sorted({partition for _, partition in world.raw.partitions}):
        put(world, b"recent", b"there", time=40 * DAY, partition=partition)
    advance(world)
    expire(world, PAST_T0)
    remove_raw(world, NOW + timedelta(days=90))
    assert {row["kafka_key"] for row in world.rows()} == {b"recent"}
    assert len(bases(world)) == 1, "of the newest record"


def stored_keys(world: World) -> set[bytes]:
    """The keys in all files of the lake, live or not, but for evidence."""
    store = world.table.store
    paths = [info.key for info in store.list("") if info.key.endswith(".parquet") and "/_delta_log/" not in info.key]
    files = [pq.ParquetFile(io.BytesIO(store.get(path).body)) for path in paths]
    return {
        key
        for file in files
        if "kafka_key" in file.schema_arrow.names
        for key in file.read(["kafka_key"], use_threads=False).column("kafka_key").to_pylist()
    }


def approved(world: World, *keys: str) -> str:
    name = ask(world, *keys)
    said(world, "approve", name, "--by", "grace", "--records", "9", "--yes", who="grace")
    return name


def state_of(world: World, name: str) -> object:
    found: Any = said(world, "status", name)
    return found[0]["topics"][0]["state"]


def test_keys_in_leaves_and_reserve_are_erased_and_then_only_the_request_is(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    name = approved(world, "key-1", "key-2", "key-3")
    gone = {b"key-1", b"key-2", b"key-3"}
    assert gone <= stored_keys(world)
    assert (b"key-1" in values(world), values(world)[b"key-2"]) == (False, b"newer")
    job(world, "--dry-run", "--json")
    assert [request.records for request in reported(capsys).requests] == [{"state": 4}]
    job(world, "--json")
    report = reported(capsys)
    assert (report.masked, report.rows, report.searched["state"]) == (4, 0, 103)
    job(world)
    assert "may have an erased key until state.py has made the state again" in capsys.readouterr().out
    assert state_of(world, name) == "hidden"
    with as_of(world, timedelta(hours=1)):
        assert advance(world).lost_keys == 3
        job(world)
    assert gone & {*values(world)} == set()
    assert len(values(world)) == 98
    assert state_of(world, name) == "hidden"
    for days in (2, 4):
        with as_of(world, timedelta(days=days)):
            advance(world)
            job(world)
    assert gone & stored_keys(world) == set()
    assert state_of(world, name) == "erased"
    assert audited(world).findings == ()
    for part in range(PARTS):
        assert audit_state(StateTable.open(world.table), part, first, compare).findings == ()
    capsys.readouterr()
    ask(world, "key-1", "key-2", "key-3")
    job(world, "--dry-run", "--json")
    assert [request.records for request in reported(capsys).requests] == [{}]
