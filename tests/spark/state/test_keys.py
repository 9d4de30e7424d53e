"""States by other keys, orders and envelopes: the rows, the view of them, and what is refused."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.spark.state.replay import advance, check, identity, state_rows, status_of
from tests.spark.state.test_state import AVRO, ENVELOPE, JSON
from tests.spark.state.test_view import NAMES, printed, seen
from tests.spark.test_vacuum import as_of
from tests.spark.world import World, in_process
from tests.tidemark.kafka_log.build import T0, Record, batch
from tidemark.errors import ConfigError, StateStopped
from tidemark.formats.table.statuses import AUDIT_PARTS
from tidemark.planning.state import is_due
from tidemark.table.state_table import StateTable
from tidemark_spark.cli.state import main
from tidemark_spark.run.driver import run
from tidemark_spark.state import record_columns
from tidemark_spark.state.audit import audit_state
from tidemark_spark.state.run import VERSIONS

MAXWELL = (
    "parser: {kind: json, columns: [{name: type, type: string}, {name: xid, type: int64}, "
    "{name: id, type: int64, path: data.id}, {name: name, type: string, path: data.name}]}"
)
PLAIN = (
    "parser: {kind: json, columns: [{name: country, type: string}, {name: id, type: int32}, {name: v, type: int64}]}"
)


def land(world: World, *changes: tuple[bytes | None, Any], partition: int = 0, time: int = 0) -> None:
    """A segment of records with values as JSON, or none."""
    records = [
        Record(delta, T0 + time, key, None if value is None else json.dumps(value).encode())
        for delta, (key, value) in enumerate(changes)
    ]
    world.raw.segment([batch(world.raw.partition(partition).end, records)], partition)
    world.land()


def audited(world: World) -> bool:
    table = StateTable.open(world.table)
    audits = [audit_state(table, part, in_process) for part in range(AUDIT_PARTS)]
    return sum(audit.rows for audit in audits) > 0 and not any(audit.different for audit in audits)


def proved(world: World) -> None:
    """The state equals the replay, the view the state, and the audit finds nothing."""
    check(world)
    state = world.table.topic.state
    assert state is not None
    assert audited(world)
    shown = {identity(row, state): row for row in seen(world, printed(world, "duckdb", *NAMES))}
    assert shown == {identity(row, state): row for row in state_rows(world)}


def test_keys_without_confluents_frame(tmp_path: Path) -> None:
    world = World(tmp_path, "state: {framing: confluent}")
    frames = [b"\0\0\0\0\7", b"\0\0\0\0\x08"]
    land(world, (frames[0] + b"ada", 1), (frames[0] + b"bob", 1), (b"eve!!", 1))
    advance(world)
    land(world, (frames[1] + b"ada", 2), (frames[1] + b"bob", None))
    query = printed(world, "duckdb", *NAMES)
    wanted = [(frames[1] + b"ada", b"2"), (b"eve!!", b"1")]
    assert sorted((row["kafka_key"], row["kafka_value"]) for row in seen(world, query)) == wanted
    advance(world)
    assert sorted((row["kafka_key"], row["kafka_value"]) for row in state_rows(world)) == wanted
    proved(world)


def test_keys_of_several_columns(tmp_path: Path) -> None:
    world = World(tmp_path, "state: {key: [country, id]}", PLAIN)
    land(world, (None, {"country": "a", "id": 11, "v": 1}), (b"x", {"country": "a1", "id": 1, "v": 2}))
    assert advance(world).keyless == 0
    land(world, (b"y", {"country": "a", "id": 11, "v": 3}), (b"y", {"country": "a", "v": 4}))
    assert advance(world).keyless == 1
    rows = sorted((row["country"], row["id"], row["v"]) for row in state_rows(world))
    assert rows == [("a", 11, 3), ("a1", 1, 2)]
    proved(world)
    land(world, (b"y", None))
    with pytest.raises(
        StateStopped, match=r"offset 4 of partition 0.*deletes its key, and has no country, id; the state"
    ):
        advance(world)


def test_an_order_of_a_column_decides_over_offset_time_and_partition(tmp_path: Path) -> None:
    world = World(tmp_path, "state: {order: v}", PLAIN)
    land(world, (b"k", {"v": 7, "id": 1}), (b"k", {"v": 5, "id": 2}), (b"none", {"id": 3}), time=5)
    advance(world)
    land(world, (b"k", {"v": 6, "id": 4}), (b"none", {"v": -1, "id": 5}), partition=1, time=9)
    land(world, (b"none", {"id": 6}), time=20)
    assert advance(world).moved_keys == 0, "the order tells"
    assert {row["kafka_key"]: row["id"] for row in state_rows(world)} == {b"k": 1, b"none": 5}
    land(world, (b"k", {"v": 7, "id": 8}), partition=1, time=3)
    assert advance(world).moved_keys == 1, "now only the clocks do"
    assert {row["kafka_key"]: row["id"] for row in state_rows(world)}[b"k"] == 1
    proved(world)
    world.raw.recreate("B" * 22)
    land(world, (b"k", {"v": 6, "id": 9}), (b"none", {"v": -1, "id": 10}))
    advance(world)
    assert {row["kafka_key"]: row["id"] for row in state_rows(world)} == {b"k": 1, b"none": 10}
    proved(world)
    land(world, (b"k", None))
    with pytest.raises(StateStopped, match="deletes its key, and has no v;"):
        advance(world)


def test_keys_that_an_older_record_outranks_are_counted(tmp_path: Path, rng: random.Random) -> None:
    """However the records came. The count ends once a later record has the greatest order again."""
    world = World(tmp_path, "state: {order: v}", PLAIN)
    land(world, *((b"k%d" % at, {"v": 100 + at, "id": at}) for at in range(8)))
    assert advance(world).outranked_keys == 0
    land(
        world, (b"k1", {"v": 1, "id": 9}), (b"k2", {"v": 2}), (b"k2", {"v": 3}), (b"k3", {"v": 50}), partition=1, time=9
    )
    assert advance(world).outranked_keys == 0, "the order of partitions is what the settings are for"
    land(world, (b"k1", {"v": 5}), (b"k2", {"id": 1}), (b"k4", {"v": 104}), (b"k5", {"v": 1}), (b"k5", {"v": 300}))
    assert advance(world).outranked_keys == status_of(world).outranked_keys == 2
    assert advance(world, rebuild=True).outranked_keys == 2
    proved(world)
    land(world, (b"k1", {"v": 101, "id": 7}))
    assert advance(world).outranked_keys == 1, "of equal orders the offset decides"
    world.raw.recreate("B" * 22)
    land(world, *((b"k%d" % at, {"v": rng.randrange(9), "id": at}) for at in (2, 3, 6)))
    assert advance(world).outranked_keys == 3
    proved(world)


def test_maxwells_envelope(tmp_path: Path) -> None:
    world = World(tmp_path, "state: {envelope: maxwell, key: id, order: xid}", MAXWELL)

    def change(word: str, number: int, name: str, xid: int | None) -> tuple[bytes, Any]:
        return b"k", {"type": word, "xid": xid, "data": {"id": number, "name": name}}

    land(
        world, change("insert", 1, "Ada", 1), change("insert", 2, "Bob", 2), change("bootstrap-insert", 1, "old", None)
    )
    advance(world)
    land(world, change("delete", 2, "Bob", 3), change("bootstrap-start", 9, "no row", None), (b"k", None))
    land(world, change("update", 1, "Ada L.", 4), change("insert", 2, "sent twice", 2), change("table-alter", 8, "", 9))
    wanted = [(1, "Ada L.")]
    assert [(row["id"], row["name"]) for row in seen(world, printed(world, "duckdb", *NAMES))] == wanted
    advance(world)
    assert [(row["id"], row["name"]) for row in state_rows(world)] == wanted
    proved(world)


def test_debeziums_rows_by_a_column_of_the_row(tmp_path: Path) -> None:
    """A deletion has its key in ``before``; where it does not, the state stops."""
    person = ENVELOPE["fields"][1]["type"][1]  # type: ignore[index]
    fields = [
        ENVELOPE["fields"][0],
        *({"name": name, "type": ["null", person if name == "before" else "person"]} for name in ("before", "after")),
    ]
    source = {
        "name": "source",
        "type": {"type": "record", "name": "source", "fields": [{"name": "lsn", "type": "long"}]},
    }
    (tmp_path / "envelope.avsc").write_text(json.dumps({**ENVELOPE, "fields": [*fields, source]}))
    world = World(tmp_path, "state: {envelope: debezium, key: [id], order: [source.lsn]}", AVRO)

    def row(name: str | None) -> bytes:
        return b"\0" if name is None else bytes([2, 2, 2 * len(name)]) + name.encode()

    def change(op: str, before: str | None, after: str | None, lsn: int) -> Record:
        return Record(0, T0, b"k", b"\2" + op.encode() + row(before) + row(after) + bytes([2 * lsn]))

    def put(*changes: Record) -> None:
        records = [change._replace(delta=delta) for delta, change in enumerate(changes)]
        world.raw.segment([batch(world.raw.partition().end, records)])
        world.land()

    put(change("c", None, "Ada", 5), change("u", "Ada", "older", 4))
    advance(world)
    assert [(row["id"], row["name"], row["source_lsn"]) for row in state_rows(world)] == [(1, "Ada", 5)]
    put(change("d", "Ada", None, 6), Record(0, T0, b"k", None))
    assert seen(world, printed(world, "duckdb", *NAMES)) == []
    advance(world)
    assert state_rows(world) == []
    put(change("c", None, "Bob", 7))
    advance(world)
    assert audited(world)
    put(change("d", None, None, 8))
    with pytest.raises(StateStopped, match="deletes its key, and has no id;"):
        advance(world)


BEFORE = JSON.replace("{name: id,", "{name: former, type: int64, path: [before, id]}, {name: id,")


def test_a_json_deletion_has_its_key_in_the_row_before(tmp_path: Path) -> None:
    """By a column with the path of the key's in ``before``, which the state does not show."""
    world = World(tmp_path, "state: {envelope: debezium, key: [id]}", BEFORE)
    row = {"id": 1, "name": "Ada"}
    land(world, (b"a", {"op": "c", "after": row}), (b"b", {"op": "c", "after": row | {"id": 2}}))
    advance(world)
    land(world, (b"a", {"op": "d", "before": row, "after": None}), (b"a", None))
    assert [row["id"] for row in seen(world, printed(world, "duckdb", *NAMES))] == [2]
    advance(world)
    assert [(row["id"], row["name"]) for row in state_rows(world)] == [(2, "Ada")]
    assert "former" not in state_rows(world)[0]
    assert audited(world)


@pytest.mark.parametrize(
    ("lines", "rule"),
    [
        (("state: {key: []}",), "state: key: must be kafka_key, or name one column at least"),
        (("state: {key: id, framing: confluent}", PLAIN), "framing: stands before kafka_key, and key names id"),
        (("state: {order: [v, v]}", PLAIN), "order: names a column twice: v, v"),
        (("state: {every: 10m}",), r"state\.every.*1 hour|every"),
        (("state: {envelope: canal}",), "envelope"),
    ],
)
def test_settings_that_are_refused(tmp_path: Path, lines: Sequence[str], rule: str) -> None:
    with pytest.raises(ConfigError, match=rule):
        World(tmp_path, *lines)


@pytest.mark.parametrize(
    ("lines", "rule"),
    [
        (
            ("state: {key: [country, nr]}", PLAIN),
            r"state\.key: nr is not a column of the state, which has kafka_key, .*v",
        ),
        (
            ("state: {order: [source.lsn]}", PLAIN),
            r"state\.order: source\.lsn: there is no column source of the parser's",
        ),
        (("state: {envelope: maxwell}", PLAIN), "maxwell needs a parser with a column type"),
        (("state: {key: after, envelope: debezium}", JSON), "after is not a column"),
        (
            ("state: {key: [id], envelope: debezium}", JSON),
            r"key: id lies in after, which is null in a deletion: .* another column of the type int64 .* before\.id",
        ),
        (
            ("state: {key: [id], envelope: debezium}", BEFORE.replace("former, type: int64", "former, type: string")),
            "type",
        ),
        (("state: {key: v}", PLAIN.replace("int64", "double")), "v is a double, by which rows cannot be told apart"),
    ],
)
def test_columns_that_cannot_serve(tmp_path: Path, lines: Sequence[str], rule: str) -> None:
    with pytest.raises(ConfigError, match=rule):
        advance(World(tmp_path, *lines))


def test_a_key_that_the_row_before_lacks_is_refused(tmp_path: Path) -> None:
    (tmp_path / "envelope.avsc").write_text(json.dumps(ENVELOPE))
    with pytest.raises(ConfigError, match=r"key: id lies in after, .* the parser makes no field id of before"):
        advance(World(tmp_path, "state: {key: [id], envelope: debezium}", AVRO))


def test_a_change_of_the_key_makes_the_state_again(tmp_path: Path) -> None:
    world = World(tmp_path, "state: {}", PLAIN)
    land(world, (b"a", {"country": "x", "id": 1, "v": 1}), (b"b", {"country": "x", "id": 1, "v": 2}))
    advance(world)
    other = World(tmp_path, "state: {key: id}", PLAIN)
    result = advance(other)
    assert (result.kind, result.why, result.rows) == ("rebuild", "the topic's settings have changed", 1)


def test_the_hourly_run_passes_over_a_topic_until_every_has_passed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = World(tmp_path, "state: {every: 6h}")
    land(world, (b"a", 1))
    due = ["--topics", str(world.topics_file), "--topic", "orders", "--due"]

    def ran(after: timedelta, *arguments: str) -> bool:
        capsys.readouterr()
        with as_of(world, after):
            assert main(list(arguments), in_process) == 0
        return "committed" in capsys.readouterr().out

    assert ran(timedelta(0), *due)
    land(world, (b"a", 2))
    assert not ran(timedelta(hours=4, minutes=58), *due)
    assert ran(timedelta(hours=5, minutes=2), *due), "the next run would be too late"
    land(world, (b"a", 3))
    assert ran(timedelta(hours=5, minutes=3), *due[:-1]), "by hand at any time"
    committed_at = status_of(world).committed_at
    assert committed_at is not None
    soon = committed_at + timedelta(seconds=1)
    assert not is_due(world.table, soon)
    assert is_due(World(tmp_path, "state: {every: 1h}").table, soon), "an hourly state is due in each run"
    assert is_due(World(tmp_path, "state: {every: 6h, table: renamed}").table, soon)


def test_files_with_an_erased_key_go_after_versions_although_nothing_lands(tmp_path: Path) -> None:
    world = World(tmp_path, "state: {}")
    land(world, (b"a", 1))
    advance(world)
    table = StateTable.open(world.table)

    def names() -> set[str]:
        return {info.key for info in table.store.list(f"{table.root}/") if info.key.endswith(".parquet")}

    old = names()
    land(world, (b"a", 2))
    advance(world)
    for after, stays in ((VERSIONS - timedelta(hours=1), True), (VERSIONS + timedelta(hours=1), False)):
        with as_of(world, after):
            assert advance(world).status == "empty"
        assert (old <= names()) is stays
    check(world)


NO_OPERATION = (
    {"id": 1, "name": "unwrapped"},
    {"status": "BEGIN", "id": "571"},
    {"op": None, "after": None},
    {"op": "x"},
)
"""Values that a topic of changes may have beside its envelopes."""


def test_only_a_record_without_a_value_is_a_tombstone(tmp_path: Path, rng: random.Random) -> None:
    """A row stays, whatever else its topic gets under its key, and what was passed over is counted."""
    world = World(tmp_path, "state: {envelope: debezium}", JSON)
    ada = {"op": "c", "after": {"id": 1, "name": "Ada"}}
    land(world, (b"1", ada), (b"2", ada), (b"3", ada), (b"9", {"op": "m", "after": None}))
    assert advance(world).passed_over == 0
    strange = [(rng.choice((b"1", b"2")), value) for value in (*NO_OPERATION, *NO_OPERATION)]
    land(world, *strange, (b"3", None))
    shown = {row["kafka_key"] for row in seen(world, printed(world, "duckdb", *NAMES))}
    result = advance(world)
    assert result.passed_over == len(strange)
    assert {row["kafka_key"] for row in state_rows(world)} == {b"1", b"2"} == shown
    proved(world)
    land(world, (b"1", None), (b"2", {"op": "d", "after": None}))
    advance(world)
    assert state_rows(world) == []


def test_the_audit_has_a_rule_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that takes records without an operation for deletions is found out."""
    world = World(tmp_path, "state: {envelope: debezium}", JSON)
    land(world, (b"1", {"op": "c", "after": {"id": 1, "name": "Ada"}}), (b"2", {"op": "c", "after": {"id": 2}}))
    land(world, (b"1", {"id": 1, "name": "unwrapped"}))
    with monkeypatch.context() as patch:
        patch.setattr(record_columns, "_is_tombstone", lambda rows, op: rows.column(op).is_null().to_numpy())
        advance(world)
    assert [row["kafka_key"] for row in state_rows(world)] == [b"2"]
    table = StateTable.open(world.table)
    found = [finding for part in range(AUDIT_PARTS) for finding in audit_state(table, part, in_process).findings]
    assert [finding.rule for finding in found] == ["is missing"]


def test_tombstones_are_told_without_values_only_by_a_required_operation(tmp_path: Path) -> None:
    keep = "keep: [key, timestamp]"
    with pytest.raises(ConfigError, match=r"state\.envelope: debezium needs value in keep, or op as a required column"):
        advance(World(tmp_path / "refused", "state: {envelope: debezium}", JSON, keep))
    advance(World(tmp_path / "by_key", "state: {envelope: maxwell, key: id}", MAXWELL, keep))
    world = World(
        tmp_path, "state: {envelope: debezium}", JSON.replace("{name: op,", "{name: op, required: true,"), keep
    )
    changes = [{"op": "c", "after": {"id": 1}}, {"op": "c", "after": {"id": 2}}, {"id": 1}]
    values = [*(json.dumps(change).encode() for change in changes), None]
    keys = (b"1", b"2", b"1", b"2")
    world.raw.segment([batch(0, [Record(at, T0, keys[at], value) for at, value in enumerate(values)])])
    world.raw.publish()
    run(world.table, world.plan(), in_process)
    assert advance(world).quarantined == 1
    assert [row["kafka_key"] for row in state_rows(world)] == [b"1"]
