"""Records that only the state table still has: retention has removed their rows, and raw is gone."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.spark.audit.test_audit import audited
from tests.spark.cli.programs import Programs
from tests.spark.conftest import ERASURE_SECRET
from tests.spark.erasing.test_job import SECRET, ask, job, reported, said
from tests.spark.retention.test_raw import NOW, bases
from tests.spark.retention.test_raw import remove as remove_raw
from tests.spark.run.test_truncation import branch
from tests.spark.state.replay import advance, expire
from tests.spark.state.test_removed import DAY, PAST_T0, STATE
from tests.spark.state.test_state import AVRO, ENVELOPE, JSON, avro, put, values
from tests.spark.test_vacuum import as_of
from tests.spark.world import World, in_process
from tests.support.raw_builder import EPOCH
from tests.tidemark.kafka_log.build import T0, Record, batch
from tidemark.cli.continuity import continuity_of
from tidemark.erasure.reports import ErasureReport
from tidemark.erasure.secret import VARIABLE
from tidemark.formats.table.statuses import AUDIT_PARTS
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


def write(world: World, key: bytes, value: bytes, time: int = 0, partition: int = 0) -> None:
    """A record of the partition's present leader, landed."""
    known = world.raw.partition(partition)
    record = Record(0, T0 + time, key, value)
    world.raw.segment([batch(known.end, [record], leader_epoch=known.leader_epoch)], partition)
    world.land()


def outlive(world: World, value: bytes = b"there") -> None:
    """Of all records but those of a later date, only what the state has is left."""
    for partition in sorted({partition for _, partition in world.raw.partitions}):
        write(world, b"recent", value, 40 * DAY, partition)
    advance(world)
    expire(world, PAST_T0)
    assert {row["kafka_key"] for row in world.rows()} <= {b"recent", b"both"}
    remove_raw(world, NOW + timedelta(days=90))
    assert len(bases(world)) == 1, "of the last segment"


def stored_keys(world: World) -> set[bytes | None]:
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


def found(world: World, capsys: pytest.CaptureFixture[str], *words: str, given: str) -> tuple[dict[str, int], int]:
    """The records by place that a dry run finds for a request of one value, and what it could not search."""
    capsys.readouterr()
    made = said(world, "request", "--topic", "orders", "--reason", "DSR-1", "--by", "ada", *words, given=given)
    job(world, "--dry-run", "--json")
    report = reported(capsys)
    said(world, "withdraw", str(made["id"]), "--by", "ada", "--reason", "it was to count")
    return report.requests[0].records, report.unsearchable


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
    assert continuity_of(world.table)["sound"]
    for part in range(AUDIT_PARTS):
        assert audit_state(StateTable.open(world.table), part, in_process).findings == ()
    capsys.readouterr()
    ask(world, "key-1", "key-2", "key-3")
    job(world, "--dry-run", "--json")
    assert [request.records for request in reported(capsys).requests] == [{}]


def test_a_pass_on_spark_finds_them_beside_those_of_the_table(
    world: World, on_spark: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, ERASURE_SECRET)
    name = approved(world, "key-1", "key-2", "key-3", "recent")
    done = on_spark.run("tidemark_spark.cli.erase", ["--topics", str(world.topics_file), "--json"])
    assert done.code == 0, done.errors[-3000:]
    report = ErasureReport.from_bytes(done.output.splitlines()[-1].encode(), "output")
    [outcome] = report.requests
    assert (outcome.id, outcome.status, outcome.records) == (name, "erased", {"state": 4, "table": 2})
    assert (report.masked, report.rows, report.searched["state"]) == (6, 2, 103)
    assert world.rows() == []
    with as_of(world, timedelta(hours=1)):
        advance(world)
    assert len(values(world)) == 97


def test_a_record_that_the_table_has_as_well_counts_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Compaction has moved the start of its epoch in the lineage, which so has another epoch there than the file."""
    world = World(tmp_path, STATE, RETENTION)
    branch(world, (EPOCH, 0), (EPOCH + 2, 5))
    records = [Record(0, T0, b"past", b"1"), Record(1, T0 + 40 * DAY, b"both", b"2"), Record(2, T0, b"last", b"3")]
    world.raw.segment([batch(0, records, leader_epoch=EPOCH + 2)], next_offset=9, compacted=True)
    world.land()
    outlive(world)
    assert found(world, capsys, given="past") == ({"state": 1}, 0)
    assert found(world, capsys, given="both") == ({"table": 1}, 0)


def test_a_record_of_a_dead_branch_masks_none_of_the_new(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    put(world, b"dead", b"cut", time=40 * DAY)
    advance(world)
    world.raw.partition().end = end = world.raw.partition().end - 1
    branch(world, (EPOCH, 0), (EPOCH + 2, end))
    write(world, b"other", b"of the same offset")
    write(world, b"recent", b"there", 40 * DAY)
    expire(world, PAST_T0)
    remove_raw(world, NOW + timedelta(days=200))
    assert bases(world).keys() == {end + 1}
    assert {row["kafka_offset"] for row in world.rows() if row["kafka_key"] == b"recent"} == {1, end - 1, end + 1}
    assert b"dead" in values(world), "its offset has expired"
    assert found(world, capsys, given="dead") == ({}, 0)
    advance(world)
    assert b"dead" not in values(world)


@pytest.mark.parametrize(
    ("settings", "parser", "encoded", "column"),
    [
        ("", JSON, lambda change: json.dumps(change).encode(), "name"),
        (", key: [id]", AVRO, lambda change: avro(change)[:2] + b"\0" + avro(change)[2:], "after.name"),
    ],
)
def test_a_column_is_searched_where_the_state_has_it(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    settings: str,
    parser: str,
    encoded: Callable[[dict[str, Any]], bytes],
    column: str,
) -> None:
    fields: Any = ENVELOPE["fields"]
    op, after = fields
    before, after = {"name": "before", "type": after["type"]}, {"name": "after", "type": ["null", "person"]}
    (tmp_path / "envelope.avsc").write_text(json.dumps({**ENVELOPE, "fields": [op, before, after]}))
    world = World(tmp_path, f"state: {{envelope: debezium{settings}}}", RETENTION, parser)
    for number, name in enumerate(("Ada", "Bob")):
        put(world, b"k%d" % number, encoded({"op": "c", "after": {"id": number, "name": name}}))
    outlive(world, encoded({"op": "c", "after": {"id": 9, "name": "Cy"}}))
    assert found(world, capsys, "--column", column, given="Ada") == ({"state": 1}, 0)
    assert found(world, capsys, given="k1") == ({"state": 1}, 0), "the key stays in the state in any case"
    assert found(world, capsys, "--column", "op", given="d") == ({}, 2), "the state lacks it"


def test_a_null_of_a_record_that_was_read_is_no_value_that_could_not_be_searched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In raw, for rows of files that lack the column, and in the state. Records that no parser read count."""
    columns = "columns: [{name: id, type: int64}%s]"
    world = World(tmp_path, STATE, RETENTION, f"parser: {{kind: json, {columns % ''}}}")
    values = (b'{"id":1,"name":"Ada"}', b'{"id":2}', None, b"no json", b'{"id":3,"name":null}', b'{"id":4,"name":7}')
    world.raw.segment([batch(0, [Record(at, T0, b"k%d" % at, value) for at, value in enumerate(values)])])
    world.land()
    raw, named = world.raw, columns % ", {name: name, type: string}"
    world = World(tmp_path, STATE, RETENTION, f"parser: {{kind: json, {named}}}")
    assert found(world, capsys, "--column", "name", given="Ada") == ({"raw": 1}, 2), "no json, and a misfit"
    world = World(tmp_path, STATE, RETENTION, f"parser: {{kind: json, misfits: land, {named}}}")
    assert found(world, capsys, "--column", "name", given="Ada") == ({"raw": 1}, 2)
    world.raw = raw
    outlive(world, b'{"id":9,"name":"Cy"}')
    assert found(world, capsys, "--column", "name", given="Cy") == ({"table": 1}, 0), "the state has nulls"
