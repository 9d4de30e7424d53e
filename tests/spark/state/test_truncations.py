"""Truncations of a source table: followed where the topic has a total order, by the state and by the view of it."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import duckdb
import pytest

from tests.spark.run.test_truncation import branch
from tests.spark.state.replay import advance, check, replayed, state_rows
from tests.spark.state.test_keys import audited, land, proved
from tests.spark.state.test_state import JSON
from tests.spark.state.test_view import NAMES, printed, seen
from tests.spark.world import World
from tests.support.raw_builder import EPOCH
from tests.tidemark.kafka_log.build import T0, Record, batch
from tidemark.errors import StateStopped

ORDERED = JSON.replace("columns: [", "columns: [{name: lsn, type: int64}, ")
TRUNCATE: Any = {"op": "t", "after": None}


def row(number: int, name: str = "Ada", lsn: int = 0) -> tuple[bytes, Any]:
    return b"%d" % number, {"op": "c", "lsn": lsn, "after": {"id": number, "name": name}}


def shown(world: World, query: str = "") -> set[bytes]:
    return {row["kafka_key"] for row in seen(world, query or printed(world, "duckdb", *NAMES))}


def test_a_truncation_of_a_topic_of_one_partition_is_followed(tmp_path: Path, rng: random.Random) -> None:
    """At any place among changes, merged, made again and audited; the view is right before the run and after it."""
    world = World(tmp_path, "state: {envelope: debezium}", JSON)
    land(world, row(1), row(2))
    advance(world)
    query = printed(world, "duckdb", *NAMES)
    for turn in range(3):
        changes: list[tuple[bytes | None, Any]] = [row(rng.randrange(9), f"turn {turn}") for _ in range(6)]
        changes += [(b"%d" % rng.randrange(9), None), (b"%d" % rng.randrange(9), {"op": "d", "after": None})]
        if turn % 2:
            changes.insert(rng.randrange(len(changes) + 1), (None, TRUNCATE))
        changes.append(row(99))
        land(world, *changes)
        wanted = {*replayed(world.rows(), world.table.topic.state)}  # type: ignore[arg-type]
        assert shown(world, query) == shown(world) == wanted
        advance(world)
        proved(world)
        assert shown(world, query) == wanted
    before = sorted(row["kafka_key"] for row in state_rows(world))
    advance(world, rebuild=True)
    assert sorted(row["kafka_key"] for row in state_rows(world)) == before
    assert audited(world)


def test_an_order_decides_what_a_truncation_removes(tmp_path: Path) -> None:
    """Also what lands after it, and lies before it in the order."""
    world = World(tmp_path, "state: {envelope: debezium, order: lsn}", ORDERED)
    land(world, row(1, lsn=5), row(2, lsn=9), row(3, lsn=7))
    advance(world)
    query = printed(world, "duckdb", *NAMES)
    land(world, (None, TRUNCATE | {"lsn": 7}), row(4, lsn=6), row(5, lsn=8))
    for text in (query, printed(world, "duckdb", *NAMES)):
        assert shown(world, text) == {b"2", b"5"}
    advance(world)
    proved(world)
    land(world, row(6, lsn=6), row(7, lsn=7), row(8, lsn=10))
    assert shown(world) == shown(world, query) == {b"2", b"5", b"7", b"8"}
    advance(world)
    proved(world)
    assert shown(world) == {b"2", b"5", b"7", b"8"}
    land(world, (None, TRUNCATE | {"lsn": None}))
    with pytest.raises(StateStopped, match="truncates the source table, and has no lsn"):
        advance(world)
    with pytest.raises(duckdb.Error, match="stops the state"):
        shown(world)


def test_the_view_fails_at_a_truncation_that_the_state_stops_at(tmp_path: Path) -> None:
    """Printed while the topic had one partition, or after it had got another."""
    world = World(tmp_path, "state: {envelope: debezium}", JSON)
    land(world, row(1))
    advance(world)
    query = printed(world, "duckdb", *NAMES)
    land(world, row(2), partition=1)
    land(world, (None, TRUNCATE))
    with pytest.raises(duckdb.Error, match="truncates the table"):
        shown(world, query)
    with pytest.raises(StateStopped, match="offset 1 of partition 0, incarnation 0, truncates"):
        advance(world)
    other = World(tmp_path / "other", "state: {envelope: debezium}", JSON)
    land(other, row(1))
    land(other, row(2), partition=1)
    advance(other)
    land(other, (None, TRUNCATE))
    with pytest.raises(duckdb.Error, match="offset 1 stops the state"):
        shown(other)


def test_the_view_fails_at_a_deletion_that_the_state_stops_at(tmp_path: Path) -> None:
    world = World(tmp_path, "state: {envelope: debezium, order: lsn}", ORDERED)
    land(world, row(1, lsn=1))
    advance(world)
    land(world, (b"1", {"op": "d", "after": None}))
    with pytest.raises(StateStopped, match="deletes its key, and has no lsn"):
        advance(world)
    with pytest.raises(duckdb.Error, match="offset 1 stops the state"):
        shown(world)


def test_partitions_that_are_added_later_come_after_a_truncation(tmp_path: Path) -> None:
    """Also when the state is made again; another truncation stops it."""
    world = World(tmp_path, "state: {envelope: debezium}", JSON)
    land(world, row(1), row(2), (None, TRUNCATE), row(3))
    advance(world)
    land(world, row(4), partition=1)
    advance(world)
    check(world)
    advance(world, rebuild=True)
    proved(world)
    assert shown(world) == {b"3", b"4"}
    land(world, (None, TRUNCATE))
    with pytest.raises(StateStopped, match="offset 4 of partition 0"):
        advance(world)


def test_a_truncation_that_an_unclean_election_cut_off_counts_no_more(tmp_path: Path) -> None:
    world = World(tmp_path, "state: {envelope: debezium}", JSON)
    land(world, *(row(number) for number in range(6)))
    land(world, row(6), (None, TRUNCATE), row(7))
    advance(world)
    assert shown(world) == {b"7"}
    branch(world, (EPOCH, 0), (5, 6))
    values = [json.dumps(row(number)[1]).encode() for number in (8, 9, 8, 9)]
    records = [Record(at, T0, b"%d" % (8 + at % 2), value) for at, value in enumerate(values)]
    world.raw.segment([batch(6, records, leader_epoch=5)], base=6)
    world.land()
    advance(world)
    check(world)
    assert shown(world) == {b"%d" % number for number in (*range(6), 8, 9)}
