"""A state table equals an independent replay of its topic's table, and refuses what it cannot keep true."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.spark.erasing.masked import erase, take_out
from tests.spark.state.replay import LEAF, advance, check, state_rows, status_of
from tests.spark.test_vacuum import as_of
from tests.spark.world import Acting, World, in_process
from tests.tidemark.kafka_log.build import T0, Record, batch
from tidemark.decode import rowhash
from tidemark.errors import ConfigError, ContinuityError, FormatError, PublishError, StateStopped, StoreError
from tidemark.formats.table.state_ledger import StateLedger, range_of
from tidemark.formats.table.statuses import MirrorState, MirrorStatus
from tidemark.planning import plan_rebuild, plan_replay, write_plan
from tidemark.planning.maintenance.compaction import plan_compaction
from tidemark.planning.maintenance.vacuum import RUN_OVER, TOMBSTONES
from tidemark.store.local import LocalStore
from tidemark.table.delta_table import open_topic_table
from tidemark.table.state_table import StateTable
from tidemark.topics import load_topics
from tidemark_spark.jobs.running import run_job
from tidemark_spark.run.driver import run
from tidemark_spark.run.vacuum import vacuum
from tidemark_spark.state import first_round, leaf_files
from tidemark_spark.state.first_round import last_of_files
from tidemark_spark.state.leaf_files import write_sorted
from tidemark_spark.state.model import SortedRuns, StateJob
from tidemark_spark.state.run import VERSIONS, run_state
from tidemark_spark.state.second_round import merged_leaf, placeholders

KEYS = tuple(b"key-%d" % number for number in range(12))
JSON = (
    "parser: {kind: json, columns: [{name: op, type: string}, {name: id, type: int64, path: after.id}, "
    "{name: name, type: string, path: after.name}]}"
)
AVRO = "parser: {kind: avro, schema: envelope.avsc}"
ENVELOPE = {
    "type": "record",
    "name": "envelope",
    "fields": [
        {"name": "op", "type": "string"},
        {
            "name": "after",
            "type": [
                "null",
                {
                    "type": "record",
                    "name": "person",
                    "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": "string"}],
                },
            ],
        },
    ],
}


def avro(change: dict[str, Any]) -> bytes:
    """An envelope with short texts and small numbers, in Avro's binary form."""
    after = change["after"]
    name = b"" if after is None else str(after["name"]).encode()
    record = b"\0" if after is None else bytes([2, 2 * after["id"], 2 * len(name)]) + name
    return bytes([2]) + str(change["op"]).encode() + record


def produce(world: World, rng: random.Random, count: int = 8, partitions: int = 1) -> None:
    """A segment of upserts and deletions of random keys, with times that do not ascend.

    The last record is an upsert, so that no seed leaves an empty state to a test that is about rows.
    """
    partition = rng.randrange(partitions)
    records = [
        Record(delta, T0 + rng.randrange(1000), rng.choice((*KEYS, None)), rng.choice((b"a", b"b", b"c", None)))
        for delta in range(count - 1)
    ]
    records.append(Record(count - 1, T0 + rng.randrange(1000), rng.choice(KEYS), rng.choice((b"a", b"b", b"c"))))
    world.raw.segment([batch(world.raw.partition(partition).end, records)], partition)


def put(world: World, key: bytes | None, value: bytes | None, time: int = 0, partition: int = 0) -> None:
    """A record, landed."""
    end = world.raw.partition(partition).end
    world.raw.segment([batch(end, [Record(0, T0 + time, key, value)])], partition)
    world.land()


def values(world: World) -> dict[bytes, bytes]:
    return {row["kafka_key"]: row["kafka_value"] for row in state_rows(world)}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, "state: {}")


def test_a_lake_that_has_moved_to_another_prefix_has_its_reserves_there(world: World) -> None:
    for value in (b"a", None):
        put(world, b"gone", value)
    advance(world)
    state = StateTable.open(world.table)
    ledger = state.committed()
    assert ledger
    key, files = world.table.keys.state_ledger(ledger.n, ledger.attempt), state.files(ledger)
    former = world.table.store.get(key).body.replace(b'"reserve":"', b'"reserve":"former/lake/')
    assert b"former" in former
    world.table.store.put(key, former)
    moved = state.committed()
    assert moved == ledger
    assert state.files(moved) == files
    put(world, b"gone", b"older", -1)
    advance(world)
    check(world)


@pytest.mark.parametrize("partitions", [1, 3])
def test_each_run_leaves_what_a_replay_leaves(world: World, rng: random.Random, partitions: int) -> None:
    assert advance(world).status == "empty"
    for _ in range(6):
        for _ in range(rng.randint(1, 3)):
            produce(world, rng, partitions=partitions)
        world.land()
        assert advance(world).status == "committed"
        check(world)
        assert advance(world).status == "empty", "nothing has changed since"
    before = state_rows(world)
    assert advance(world, rebuild=True).kind == "rebuild"
    by_key = sorted(before, key=lambda row: row["kafka_key"])
    assert sorted(state_rows(world), key=lambda row: row["kafka_key"]) == by_key


def test_a_deletion_counts_against_older_records_that_come_later(world: World) -> None:
    put(world, b"k", b"first", time=10)
    put(world, b"k", None, time=20, partition=1)
    assert advance(world).moved_keys == 1
    put(world, b"k", b"late", time=15)
    advance(world)
    assert values(world) == {}
    put(world, b"k", b"new", time=30)
    advance(world)
    assert values(world) == {b"k": b"new"}


def test_a_partitions_last_record_counts_although_its_time_is_older(world: World) -> None:
    """Also after another partition's record had been outranked for a while."""
    put(world, b"k", b"p0, newest", time=30)
    put(world, b"k", b"p1", time=20, partition=1)
    advance(world)
    assert values(world) == {b"k": b"p0, newest"}
    put(world, b"k", b"p0, older time", time=10)
    advance(world)
    assert values(world) == {b"k": b"p1"}
    check(world)


def test_a_new_incarnation_outranks_the_older_one(world: World) -> None:
    put(world, b"k", b"old", time=50)
    put(world, b"only", b"old", time=50)
    advance(world)
    world.raw.recreate("B" * 22)
    put(world, b"k", b"new", time=10)
    advance(world)
    assert values(world) == {b"k": b"new", b"only": b"old"}
    check(world)


def test_two_keys_of_one_hash_are_two_keys(world: World, rng: random.Random, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rowhash, "key_hashes", lambda keys: np.full(len(keys), 7, np.uint64))
    for _ in range(4):
        produce(world, rng, partitions=2)
        world.land()
        advance(world)
        check(world)


def test_leaves_split_as_they_grow_and_join_as_they_shrink(world: World, rng: random.Random) -> None:
    records = [Record(number, T0, b"key-%d" % number, rng.randbytes(64)) for number in range(200)]
    world.raw.segment([batch(0, records)])
    world.land()
    grown = advance(world).leaves
    assert grown > 8
    check(world)
    world.raw.segment([batch(200, [record._replace(value=None) for record in records])])
    world.land()
    advance(world)
    assert values(world) == {}
    table = StateTable.open(world.table)
    ledger = table.committed()
    assert ledger is not None
    spans = sorted(range_of(leaf.prefix) for leaf in ledger.leaves)
    assert spans[0].start == 0
    assert spans[-1].end == 1 << 64
    assert all(one.end == other.start for one, other in pairwise(spans))


def test_a_state_without_any_key_gets_the_next_one(world: World) -> None:
    world.raw.segment([batch(0, [Record(0, T0, None, b"no key")])])
    world.land()
    assert advance(world).rows == 0
    put(world, b"a", b"1")
    advance(world)
    assert values(world) == {b"a": b"1"}


@pytest.mark.parametrize("prefixes", [(), ("0",), ("1", "0"), ("", "0"), ("0", "10"), ("0", "00", "1")])
def test_leaves_that_do_not_divide_all_hashes_are_refused(world: World, prefixes: tuple[str, ...]) -> None:
    put(world, b"a", b"1")
    advance(world)
    ledger = StateTable.open(world.table).committed()
    assert ledger is not None
    told = json.loads(ledger.to_bytes()) | {"leaves": [{"prefix": prefix} for prefix in prefixes]}
    with pytest.raises(FormatError, match="leaves must divide all hashes"):
        StateLedger.from_bytes(json.dumps(told).encode(), "ledger")


def test_only_leaves_with_new_records_are_made(world: World, rng: random.Random) -> None:
    world.raw.segment([batch(0, [Record(number, T0, b"key-%d" % number, rng.randbytes(64)) for number in range(200)])])
    world.land()
    advance(world)
    table = StateTable.open(world.table)
    before = table.committed()
    put(world, b"key-7", b"new")
    advance(world)
    after = table.committed()
    assert before is not None
    assert after is not None
    assert len(before.leaves) > 8
    [made] = {*after.leaves} - {*before.leaves}
    assert {*before.leaves} - {*after.leaves} == {next(leaf for leaf in before.leaves if leaf.prefix == made.prefix)}
    check(world)


@pytest.mark.parametrize("what", ["erased", "rebuilt", "committed"])
def test_a_run_is_stale_if_the_table_or_the_state_has_moved_on(world: World, rng: random.Random, what: str) -> None:
    produce(world, rng)
    world.land()

    def meanwhile() -> None:
        if what == "erased":
            erase(world, [0])
            take_out(world)
        elif what == "rebuilt":
            write_plan(world.table, plan := plan_rebuild(world.table, None))
            assert run(world.table, plan, in_process).status == "landed"
        else:
            assert advance(world).status == "committed"

    before = state_rows(world)
    assert advance(world, meanwhile=meanwhile).status == "stale"
    assert what == "committed" or state_rows(world) == before
    assert advance(world).status == ("empty" if what == "committed" else "committed")
    check(world)


def test_new_rows_meanwhile_do_not_hinder_a_run(world: World, rng: random.Random) -> None:
    produce(world, rng)
    world.land()

    def meanwhile() -> None:
        produce(world, rng)
        world.land()

    assert advance(world, meanwhile=meanwhile).status == "committed"
    assert advance(world).status == "committed"
    check(world)


def test_a_replay_lands_records_below_the_vector(tmp_path: Path) -> None:
    function = (
        "parser: {kind: function, function: 'tests.spark.convert.parsing:%s', columns: [{name: size, type: int32}]}"
    )
    world = World(tmp_path, "state: {}", function % "sizes")
    records = [Record(0, T0, b"a", b"fine!"), Record(1, T0, b"b", b"bad"), Record(2, T0, b"a", b"bad")]
    world.raw.segment([batch(0, records)])
    world.land()
    advance(world)
    assert [(row["kafka_key"], row["size"]) for row in state_rows(world)] == [(b"a", 5)]
    again = World(tmp_path, "state: {}", function % "all_sizes")
    write_plan(again.table, plan := plan_replay(again.table))
    assert run(again.table, plan, in_process).status == "landed"
    assert advance(again).kind == "merge"
    assert sorted((row["kafka_key"], row["size"]) for row in state_rows(again)) == [(b"a", 3), (b"b", 3)]
    check(again)


@pytest.mark.parametrize(("parser", "encoded"), [(JSON, lambda change: json.dumps(change).encode()), (AVRO, avro)])
def test_debeziums_envelope(tmp_path: Path, parser: str, encoded: Callable[[dict[str, Any]], bytes]) -> None:
    (tmp_path / "envelope.avsc").write_text(json.dumps(ENVELOPE))
    world = World(tmp_path, "state: {envelope: debezium}", parser)

    def changes(*rows: tuple[bytes, dict[str, Any] | None]) -> None:
        end = world.raw.partition().end
        records = [
            Record(delta, T0, key, None if value is None else encoded(value)) for delta, (key, value) in enumerate(rows)
        ]
        world.raw.segment([batch(end, records)])
        world.land()
        advance(world)

    ada, bob = {"id": 1, "name": "Ada"}, {"id": 2, "name": "Bob"}
    changes((b"1", {"op": "r", "after": ada}), (b"2", {"op": "c", "after": bob}), (b"9", {"op": "m", "after": None}))
    rows = {row["kafka_key"]: (row["id"], row["name"]) for row in state_rows(world)}
    assert rows == {b"1": (1, "Ada"), b"2": (2, "Bob")}
    changes((b"1", {"op": "u", "after": ada | {"name": "Ada L."}}), (b"2", {"op": "d", "after": None}), (b"2", None))
    assert [row["name"] for row in state_rows(world)] == ["Ada L."]
    changes((b"2", {"op": "c", "after": bob}))
    assert sorted(row["name"] for row in state_rows(world)) == ["Ada L.", "Bob"]


def test_a_truncation_stops_the_state_of_several_partitions_before_it(tmp_path: Path) -> None:
    """It has no key. Nothing that landed after the last commit is in the state, and each run is refused."""
    world = World(tmp_path, "state: {envelope: debezium}", JSON)
    ada = json.dumps({"op": "c", "after": {"id": 1, "name": "Ada"}}).encode()
    put(world, b"1", ada)
    put(world, None, json.dumps({"op": "m"}).encode(), partition=1)
    advance(world)
    before = state_rows(world)
    put(world, b"2", ada)
    put(world, None, json.dumps({"op": "t", "after": None}).encode())
    put(world, b"3", ada)
    for _ in range(2):
        with pytest.raises(StateStopped, match="offset 2 of partition 0, incarnation 0, truncates the source table"):
            advance(world)
        assert state_rows(world) == before
        assert not [info for info in world.table.store.list(world.table.keys.state_folder) if "/runs/" in info.key]
    stopped = status_of(world).stopped
    assert stopped is not None
    assert (stopped.incarnation, stopped.partition, stopped.offset) == (0, 0, 2)
    assert (status_of(world).n, status_of(world).rows) == (1, 1)


def test_values_that_debezium_did_not_know_are_kept_and_counted(tmp_path: Path) -> None:
    world = World(tmp_path, "state: {envelope: debezium}", JSON)

    def change(key: bytes, name: str) -> int:
        put(world, key, json.dumps({"op": "u", "after": {"id": 1, "name": name}}).encode())
        result = advance(world)
        assert result.unavailable == status_of(world).unavailable
        return result.unavailable

    assert change(b"1", "Ada") == 0
    assert change(b"1", "__debezium_unavailable_value") == 1
    assert change(b"2", "__debezium_unavailable_value") == 2
    assert {row["name"] for row in state_rows(world)} == {"__debezium_unavailable_value"}
    assert change(b"1", "Ada") == 1


def test_placeholders_within_lists_and_structs_count() -> None:
    word = "__debezium_unavailable_value"
    rows = pa.table(
        {
            "bytes": pa.array([word.encode(), None]),
            "list": pa.array([[word, "a"], [word]]),
            "struct": pa.array([{"a": word, "n": 1}, None], pa.struct([("a", pa.string()), ("n", pa.int32())])),
        }
    )
    assert placeholders(rows) == 4
    assert placeholders(rows.slice(1)) == 1


def test_records_in_quarantine_are_counted_until_they_are_replayed(tmp_path: Path) -> None:
    """The count is that of the state's commit: it ends when the state has the replayed rows."""
    function = (
        "parser: {kind: function, function: 'tests.spark.convert.parsing:%s', columns: [{name: size, type: int32}]}"
    )
    world = World(tmp_path, "state: {}", function % "sizes")
    world.raw.segment([batch(0, [Record(0, T0, b"a", b"fine!"), Record(1, T0, b"b", b"bad")])])
    world.land()
    assert advance(world).quarantined == status_of(world).quarantined == 1
    again = World(tmp_path, "state: {}", function % "all_sizes")
    write_plan(again.table, plan := plan_replay(again.table))
    assert run(again.table, plan, in_process).status == "landed"
    assert advance(again).quarantined == status_of(again).quarantined == 0


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (("state: {}", "keep: [timestamp, value]"), "state: needs key in keep"),
        (("state: {}", "keep: [key, timestamp]"), "state: needs value in keep"),
        (("state: {table: orders}",), "table orders appears twice"),
    ],
)
def test_settings_that_cannot_give_a_state(tmp_path: Path, lines: Sequence[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        World(tmp_path, *lines)


def test_an_envelope_needs_its_columns(tmp_path: Path) -> None:
    world = World(tmp_path, "state: {envelope: debezium}")
    with pytest.raises(ConfigError, match="needs a parser with a column op"):
        advance(world)


def test_a_leaf_that_has_lost_rows_is_noticed(world: World, rng: random.Random) -> None:
    produce(world, rng)
    world.land()
    advance(world)
    table = StateTable.open(world.table)
    ledger = table.committed()
    assert ledger is not None
    leaf = next(leaf for leaf in ledger.leaves if leaf.path)
    short = pa.BufferOutputStream()
    body = table.store.get(f"{table.root}/{leaf.path}").body
    pq.write_table(pq.read_table(pa.BufferReader(body)).slice(1), short)
    table.store.put(f"{table.root}/{leaf.path}", short.getvalue().to_pybytes())
    end = world.raw.partition().end
    again = [Record(delta, T0, key, b"new") for delta, key in enumerate(KEYS)]
    world.raw.segment([batch(end, again)])
    world.land()
    with pytest.raises(ContinuityError, match="has other rows than its ledger says"):
        advance(world)


def test_what_the_store_keeps_otherwise_is_noticed(
    world: World, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    produce(world, rng)
    world.land()

    def losing(store: Any, key: str, rows: pa.Table) -> Any:
        return write_sorted(store, key, rows.slice(1))

    monkeypatch.setattr(leaf_files, "write_sorted", losing)
    with pytest.raises(ContinuityError, match="other rows are read back"):
        advance(world)
    assert state_rows(world) == []


@pytest.mark.parametrize("landed", [True, False])
def test_a_commit_whose_answer_is_lost(
    world: World, rng: random.Random, monkeypatch: pytest.MonkeyPatch, landed: bool
) -> None:
    produce(world, rng)
    world.land()
    advance(world)
    produce(world, rng)
    world.land()
    real = LocalStore.put

    def lost(self: LocalStore, key: str, *arguments: Any, **options: Any) -> Any:
        if "/_delta_log/" in key and "current" in key:
            if landed:
                real(self, key, *arguments, **options)
            raise StoreError(key, "no answer")
        return real(self, key, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "put", lost)
        if landed:
            assert advance(world).status == "committed"
        else:
            with pytest.raises(PublishError, match="no answer"):
                advance(world)
    advance(world)
    check(world)


def test_files_that_no_recent_commit_names_go(world: World, rng: random.Random) -> None:
    def objects() -> set[str]:
        table = StateTable.open(world.table)
        listed = [*table.store.list(f"{table.root}/"), *table.store.list(world.table.keys.state_folder)]
        return {info.key for info in listed if "/_delta_log/" not in info.key}

    for _ in range(3):
        produce(world, rng, partitions=2)
        world.land()
        advance(world)
    StateTable.open(world.table).store.put(audit := world.table.keys.state_audit(3), b"{}")
    many = objects()
    produce(world, rng)
    world.land()
    with as_of(world, max(VERSIONS, RUN_OVER) + timedelta(minutes=1)):
        advance(world)
    check(world)
    table = StateTable.open(world.table)
    ledger = table.committed()
    assert ledger is not None
    assert len(objects() & many) < len(many)
    assert table.store.get(audit).body == b"{}"
    with as_of(world, 2 * max(VERSIONS, RUN_OVER)):
        put(world, b"x", b"y")
        advance(world)
    check(world)


@pytest.mark.parametrize(("listed", "stay"), [(1, True), (None, False), (99, False)])
def test_files_stay_as_long_as_a_catalog_lists_them(tmp_path: Path, listed: int | None, stay: bool) -> None:
    """But no longer than those of other tables; the catalogs' own metadata stays in any case."""
    catalog = "{name: ice, kind: sql, uri: 'sqlite://', namespace: kafka}"
    world = World(tmp_path, "state: {}")
    world.topics_file.write_text(f"catalogs: [{catalog}]\n" + world.topics_file.read_text())
    world.table = open_topic_table(deployment := load_topics(world.topics_file), deployment.topic("orders"))
    table = StateTable.open(world.table)
    put(world, b"a", b"1")
    advance(world)
    ledger = table.committed()
    assert ledger is not None
    [old] = [leaf.path for leaf in ledger.leaves]
    table.store.put(metadata := f"{table.root}/_iceberg/ice/metadata/v1.metadata.json", b"{}")
    state = {"topic": "orders", "catalog": "ice", "identifier": "kafka.orders_current", "oldest_ledger": listed}
    other = MirrorState(topic="orders", catalog="ice", identifier="kafka.orders", oldest_ledger=1)
    told = (other, MirrorState.model_validate({**state, "state": True}))
    status = MirrorStatus(cluster="east", at=table.store.now(), tables=told)
    table.store.put(world.table.keys.deployment.mirrors, status.to_bytes())

    def is_there(after: timedelta) -> bool:
        with as_of(world, after):
            put(world, b"a", b"2")
            advance(world)
        assert table.store.get(metadata).body == b"{}"
        return any(info.key == f"{table.root}/{old}" for info in table.store.list(f"{table.root}/"))

    assert is_there(timedelta(minutes=1))
    assert is_there(RUN_OVER + VERSIONS + timedelta(hours=1)) is stay
    assert not is_there(TOMBSTONES + RUN_OVER + VERSIONS)


def test_the_tables_own_jobs_leave_the_state_alone(world: World, rng: random.Random) -> None:
    """The daily vacuum and compaction, also long after all of its files were written, and with those of a dead run."""
    for _ in range(3):
        produce(world, rng)
        world.land()
        advance(world)
    table, keys = StateTable.open(world.table), world.table.keys
    table.store.put(f"{table.root}/0-7.parquet", b"of a dead run")
    table.store.put(f"{keys.state_run(7)}0.parquet", b"of a dead run")

    def objects() -> dict[str, str]:
        folders = (f"{table.root}/", keys.state_folder)
        return {info.key: info.etag for folder in folders for info in table.store.list(folder)}

    before = objects()
    write_plan(world.table, plan := plan_compaction(world.table, files=2))
    assert run(world.table, plan, in_process).status == "landed"
    with as_of(world, timedelta(days=30)):
        report = vacuum(world.table)
        assert report.removed
        assert not report.unknown
    assert objects() == before
    with as_of(world, timedelta(days=30)):
        assert advance(world).status == "empty"
        put(world, b"x", b"y")
        advance(world)
        assert not {key for key in objects() if "dead" in str(table.store.get(key).body)}, "a run removes them"
    check(world)


def test_the_job_brings_all_states_to_their_tables(
    world: World, rng: random.Random, capsys: pytest.CaptureFixture[str]
) -> None:
    produce(world, rng)
    world.land()
    capsys.readouterr()
    assert run_job("state", ["--topics", str(world.topics_file)], in_process) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["status"], told["kind"], told["table"]) == ("committed", "rebuild", "orders_current")
    check(world)
    assert run_job("state", ["--topics", str(world.topics_file), "--topic", "orders"], in_process) == 0
    assert json.loads(capsys.readouterr().out)["status"] == "empty"


def test_runs_that_find_no_key_commit_the_vector(tmp_path: Path) -> None:
    world = World(tmp_path, "state: {}")
    put(world, b"a", b"1")
    advance(world)

    @Acting
    def no_second(work: Any, job: StateJob, tasks: Sequence[Any]) -> list[Any]:
        assert work is not merged_leaf or not tasks
        return in_process.on_each(work, job, tasks)

    world.raw.segment([batch(1, [Record(0, T0, None, b"no key")])])
    world.land()
    result = run_state(StateTable.open(world.table), no_second, leaf=LEAF)
    assert (result.status, result.keyless) == ("committed", 1)
    assert advance(world).status == "empty"
    check(world)


def test_many_keys_become_several_runs_of_a_task(
    tmp_path: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state is the same as by a run for all."""
    monkeypatch.setattr(first_round, "_ROWS", 4)
    monkeypatch.setattr(first_round, "_WAITING", 1)
    found: list[SortedRuns] = []

    @Acting
    def kept(work: Any, job: StateJob, tasks: Sequence[Any]) -> list[Any]:
        made = in_process.on_each(work, job, tasks)
        found.extend(made if work is last_of_files else ())
        return made

    world = World(tmp_path, "state: {}")
    for _ in range(3):
        produce(world, rng, count=40)
    world.land()
    monkeypatch.setattr(first_round, "_RUN", 200)
    run_state(StateTable.open(world.table), kept, leaf=LEAF)
    check(world)
    by_many = state_rows(world)
    monkeypatch.setattr(first_round, "_RUN", 1 << 20)
    run_state(StateTable.open(world.table), kept, leaf=LEAF, rebuild=True)
    assert state_rows(world) == by_many
    many, single = found
    assert len(many.files) > 1 == len(single.files)
    assert many.rows > single.rows
    assert many.buckets == single.buckets
