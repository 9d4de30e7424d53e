"""Catalogs list a state table as it is: each of its commits replaces files, and old snapshots go before their files."""

from __future__ import annotations

import json
import random
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyiceberg.table import Table

from tests.spark.mirror.catalogs import reader, settings_of
from tests.spark.state.replay import advance, state_rows
from tests.spark.state.test_state import produce, put
from tests.spark.test_vacuum import as_of
from tests.spark.world import World
from tests.tidemark.kafka_log.build import T0, Record, batch
from tidemark.errors import ConfigError
from tidemark.formats.table.statuses import MirrorState
from tidemark.planning.maintenance.vacuum import RUN_OVER
from tidemark.table.delta_table import open_topic_table
from tidemark.table.state_table import StateTable
from tidemark.topics import load_topics
from tidemark_spark.jobs.mirror import mirror_cluster
from tidemark_spark.mirror import mirror as mirror_module

pytestmark = [pytest.mark.usefixtures("kind"), pytest.mark.sampled(1)]
VERSIONS = timedelta(days=1)
HOUR = timedelta(hours=1)


def with_catalog(folder: Path, *settings: str) -> World:
    world = World(folder, *settings)
    catalog = json.loads(settings_of(world).model_dump_json(exclude_none=True))
    line = f"catalogs: [{json.dumps(catalog)}]\n"
    world.topics_file.write_text(line + world.topics_file.read_text())
    world.table = open_topic_table(deployment := load_topics(world.topics_file), deployment.topic("orders"))
    return world


@pytest.fixture
def world(tmp_path: Path) -> World:
    return with_catalog(tmp_path, "state: {}")


def iceberg(world: World) -> Table:
    return reader(settings_of(world)).load_table("kafka.orders_current")


def by_key(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: bytes(row["kafka_key"]))


def listed(world: World) -> MirrorState:
    """List all tables, and hold what the catalog has against the Delta log and the state's own files."""
    states = {state.state: state for state in mirror_cluster(world.table.deployment, "east").tables}
    assert not [state.error for state in states.values() if state.error]
    assert states[False].identifier == "kafka.orders"
    state, table = states[True], iceberg(world)
    delta = DeltaTable(StateTable.open(world.table).url)
    assert state.identifier == "kafka.orders_current"
    assert (state.delta_version, len(table.inspect.files())) == (delta.version(), delta.get_add_actions().num_rows)
    assert by_key(table.scan().to_arrow().to_pylist()) == by_key(state_rows(world))
    assert not table.spec().fields
    return state


def test_each_commit_is_a_snapshot_of_the_rows_that_count(world: World, rng: random.Random) -> None:
    for n in range(1, 5):
        produce(world, rng, count=30)
        world.land()
        advance(world)
        assert (listed(world).ledger_n, len(iceberg(world).snapshots())) == (n, n)
    advance(world, rebuild=True)
    assert listed(world).ledger_n == 5
    deletions = [Record(number, T0, b"key-%d" % number, None) for number in range(12)]
    world.raw.segment([batch(world.raw.partition().end, deletions)])
    world.land()
    assert advance(world).rows == 0
    assert listed(world).ledger_n == 6, "also when no row is left"


def test_commits_that_the_log_has_forgotten_are_listed_as_one(
    world: World, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        produce(world, rng)
        world.land()
        advance(world)
    listed(world)
    for _ in range(3):
        produce(world, rng)
        world.land()
        advance(world)
    monkeypatch.setattr(mirror_module, "versions_from", lambda *_: None)
    assert listed(world).ledger_n == 6
    assert len(iceberg(world).snapshots()) == 2


def test_files_that_another_program_removed_are_not_listed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for key in (b"a", b"b"):
        put(world, key, b"1")
        advance(world)
    listed(world)
    table = StateTable.open(world.table)
    DeltaTable(table.url).delete("kafka_offset = 0")
    monkeypatch.setattr(mirror_module, "versions_from", lambda *_: None)
    [state] = [state for state in mirror_cluster(world.table.deployment, "east").tables if state.state]
    assert state.failing_since is not None
    assert "other files than its ledger says" in state.error
    assert len(iceberg(world).scan().to_arrow()) == 2


def test_new_columns_are_added(tmp_path: Path) -> None:
    parser = "parser: {kind: json, columns: [{name: id, type: int64}%s]}"
    world = with_catalog(tmp_path, "state: {}", parser % "")
    put(world, b"a", b'{"id": 1, "to": ["Wien"]}')
    advance(world)
    listed(world)
    more = "{name: id, type: int64}, {name: to, type: 'list<string>'}"
    world.topics_file.write_text(world.topics_file.read_text().replace("{name: id, type: int64}", more))
    world.table = open_topic_table(deployment := load_topics(world.topics_file), deployment.topic("orders"))
    put(world, b"b", b'{"id": 2, "to": ["Graz"]}')
    assert advance(world).kind == "rebuild"
    listed(world)
    names = ["kafka_key", "kafka_incarnation", "kafka_partition", "kafka_offset", "kafka_timestamp", "id", "to"]
    assert [field.name for field in iceberg(world).schema().fields] == names
    assert [row["to"] for row in by_key(iceberg(world).scan().to_arrow().to_pylist())] == [None, ["Graz"]]


def test_snapshots_go_with_the_versions_of_the_state(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror_module, "_SLACK", 1)
    for value in (b"1", b"2", b"3"):
        put(world, b"a", value)
        advance(world)
        listed(world)
    with as_of(world, VERSIONS - HOUR):
        assert listed(world).oldest_ledger == 1
    with as_of(world, VERSIONS + HOUR):
        assert listed(world).oldest_ledger == 3
    with as_of(world, VERSIONS + RUN_OVER):
        put(world, b"a", b"4")
        advance(world)
        listed(world)


def test_two_tables_of_one_name_in_a_catalog_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="two tables would have the name orders_x there"):
        with_catalog(tmp_path, "table: orders-x", "state: {table: orders_x}")
