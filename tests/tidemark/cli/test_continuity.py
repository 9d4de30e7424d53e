"""``tidemark continuity``: each class, what holds a partition, and sums that planted faults break."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.spark.state.replay import advance
from tests.spark.world import World, in_process
from tests.support.raw_builder import EPOCH
from tests.tidemark.cli.test_cli import call
from tests.tidemark.kafka_log.build import T0, Record, batch, marker, simple, transactional
from tidemark.formats.table.ledger import Ledger
from tidemark.formats.table.statuses import AUDIT_PARTS, StateStatus
from tidemark.table.evidence import evidence_key, read_evidence
from tidemark.table.state_table import StateTable
from tidemark_spark.state.audit import audit_state


def report(world: World, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, dict[str, Any]]:
    """(exit code, the report)."""
    code, output, _ = call(capsys, "continuity", "orders", "--topics", world.topics_file, "-o", "json", *more)
    return code, json.loads(output)


def classed(found: dict[str, Any], partition: int = 0) -> dict[str, int]:
    """The classes of a partition that have offsets."""
    return {name: count for name, count in found["partitions"][partition]["classes"].items() if count}


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A table of two partitions, of which one has all that is good."""
    world = World(tmp_path)
    world.raw.partition().start_offset = world.raw.partition().end = 5
    world.raw.segment([simple(5), transactional(8, 7, 2), batch(10, [Record(0, -1), Record(1, T0)])])
    world.raw.segment([marker(12, 7, commit=False), simple(13)], aborted=[(7, 8, 12)])
    world.raw.segment([simple(0), transactional(3, 9, 2)], 1)
    world.land()
    return world


def test_every_class_is_counted_and_the_sums_agree(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = report(world, capsys)
    assert (code, found["sound"], found["rows"], found["landed"]) == (0, True, 10, 10)
    assert classed(found) == {
        "deleted_before_upload": 5,
        "landed": 7,
        "quarantined": 1,
        "aborted": 2,
        "transaction_marker": 1,
    }
    first, second = found["partitions"]
    assert (first["start_offset"], first["next_offset"], first["covered"], first["classed"]) == (5, 16, 16, 16)
    assert (first["state"], second["state"], found["state"]) == ("complete", "held", "held")
    assert [one["producer_id"] for one in second["held_by"]] == [9]


def test_the_text_is_a_table(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    code, output, _ = call(capsys, "continuity", "orders", "--topics", world.topics_file, "--dt", "2026-02-02")
    lines = output.splitlines()
    assert code == 0
    assert lines[0].endswith(f"10 rows in {world.table.url}")
    assert lines[1] == "Held (1 in quarantine): an open transaction holds a partition; 2 offsets behind"
    assert [line.split() for line in lines[2:5]] == [
        [
            *("partition", "start", "next"),
            *("landed", "quarantined", "transaction_marker", "aborted", "deleted_before_upload", "lag", "state"),
        ],
        ["0/0", "5", "16", "7", "1", "1", "2", "5", "0", "complete"],
        ["0/1", "0", "3", "3", "0", "0", "0", "0", "2", "held"],
    ]
    assert len({len(line) for line in lines[2:5]}) == 1
    assert lines[5:] == [
        "0/1: held by the open transaction of producer 9 from 3",
        "2026-02-02: 10 landed, 0 quarantined, 0 filtered",
    ]


def test_lost_and_corrupt_offsets_fail(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.raw.segment([simple(20)], base=20)
    world.raw.partition().next_offset = 16
    world.raw.partition().gaps = [world.raw.gap(16, 19), world.raw.gap(19, 20, "corrupt")]
    world.land()
    code, found = report(world, capsys)
    first = found["partitions"][0]
    assert (code, first["state"], first["lost"], first["corrupt"], first["balanced"]) == (1, "gap", 3, 1, True)
    assert [gap["reason"] for gap in first["gaps"]] == ["unknown", "corrupt"]
    _, output, _ = call(capsys, "continuity", "orders", "--topics", world.topics_file)
    assert "0/0: gap 16 to 19: unknown, since 2026-" in output
    assert output.splitlines()[1].startswith("GAP (1 in quarantine): offsets are missing")
    assert "4 offsets missing" in output.splitlines()[1]


def test_what_kafka_s_remote_tier_has_is_in_no_class_and_not_lost(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.raw.segment([simple(20)], base=20)
    known = world.raw.partition()
    known.next_offset, known.gaps, known.remote_tier = 16, [world.raw.gap(16, 20, "remote_tier")], ((2, 5),)
    world.raw.publish()
    code, found = report(world, capsys)
    first = found["partitions"][0]
    assert (code, first["state"], found["state"]) == (1, "attention", "attention")
    assert (first["lost"], first["corrupt"], first["remote_tier"], first["balanced"]) == (0, 0, 7, True)
    assert classed(found)["deleted_before_upload"] == 2, "0 and 1, which nobody has"
    world.land()
    assert report(world, capsys)[1]["partitions"][0]["remote_tier"] == 7
    _, output, _ = call(capsys, "continuity", "orders", "--topics", world.topics_file)
    assert "0/0: gap 16 to 20: remote_tier, since 2026-" in output
    assert "7 offsets only in Kafka's remote tier" in output.splitlines()[1]
    assert "missing" not in output.splitlines()[1]
    _, output, _ = call(capsys, "status", "orders", "--topics", world.topics_file)
    assert "    2 to 5: remote_tier, below its first offset in the store" in output
    assert "    gap 16 to 20: remote_tier" in output


def test_truncated_offsets_stand_beside_the_sum(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    known = world.raw.partition()
    known.leader_epoch, known.next_offset = 5, 13
    known.lineage = ((EPOCH, 0), (5, 13))
    world.land()
    code, found = report(world, capsys)
    assert (code, found["partitions"][0]["state"], found["partitions"][0]["leaving"]) == (1, "gap", 3)
    known.next_offset = None
    world.raw.segment([simple(13, 1, leader_epoch=5)], base=13)
    world.land()
    code, found = report(world, capsys)
    first = found["partitions"][0]
    assert (code, first["truncated"], first["covered"], first["classed"]) == (0, 3, 14, 14)


def test_the_rows_of_a_date_are_told_by_partition(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    _, found = report(world, capsys, "--dt", "2026-02-02", "--dt", "2031-01-01")
    one, none = found["dates"]
    assert [(part["partition"], part["landed"]) for part in one["partitions"]] == [(0, 7), (1, 3)]
    assert (one["rows"], one["balanced"], none["rows"], none["partitions"]) == (10, True, 0, [])
    assert call(capsys, "continuity", "orders", "--topics", world.topics_file, "--dt", "today")[0] == 2


def test_evidence_that_is_missing_or_short_fails(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    attempt = world.ledger.attempt
    whole = read_evidence(world.table, attempt)
    _put(
        world,
        attempt,
        pa.Table.from_pylist([row for row in whole.to_pylist() if row["class"] != "aborted"], schema=whole.schema),
    )
    code, found = report(world, capsys)
    assert (code, found["partitions"][0]["state"], found["partitions"][0]["classed"]) == (1, "unequal", 14)
    _put(world, attempt, pa.concat_tables([whole, whole.slice(0, 1)]))
    assert report(world, capsys)[0] == 1
    world.table.store.delete(evidence_key(world.table, attempt))
    code, found = report(world, capsys)
    assert (code, found["missing_evidence"], found["landed"]) == (1, [attempt], 0)
    output = call(capsys, "continuity", "orders", "--topics", world.topics_file)[1]
    assert f"evidence of attempt {attempt} is missing" in output
    assert "0/0: 16 offsets are covered, and 0 have a class" in output


def _put(world: World, attempt: int, table: pa.Table) -> None:
    sink = io.BytesIO()
    pq.write_table(table, sink)
    world.table.store.put(evidence_key(world.table, attempt), sink.getvalue())


def test_evidence_of_an_attempt_that_did_not_land_does_not_count(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    _put(world, 1, read_evidence(world.table, world.ledger.attempt))
    assert report(world, capsys)[0] == 0


def test_a_date_whose_rows_are_not_the_ledgers_fails(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    ledger = world.ledger
    wrong = {"2026-02-02": ledger.dates["2026-02-02"].model_copy(update={"rows": 9})}
    key = world.table.keys.ledger(ledger.n, ledger.attempt)
    world.table.store.put(key, Ledger.to_bytes(ledger.model_copy(update={"dates": wrong})))
    assert report(world, capsys)[0] == 0
    code, found = report(world, capsys, "--dt", "2026-02-02")
    assert (code, found["dates"][0]["balanced"]) == (1, False)


def test_a_table_that_is_not_there_yet_says_what_waits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = World(tmp_path)
    world.raw.segment([simple(0)])
    world.raw.publish()
    code, found = report(world, capsys)
    [only] = found["partitions"]
    assert (code, found["state"], found["rows"], only["next_offset"], only["lag"]) == (0, "behind", 0, 0, 3)
    assert found["verdict"] == "Behind: offsets wait to be landed; 3 offsets behind"


def test_a_state_table_is_told_with_its_doubts_and_the_age_of_its_proof(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = World(tmp_path, "state: {}")
    world.raw.segment([batch(0, [Record(0, T0, b"a", b"1"), Record(1, T0, b"b", b"2")])])
    world.land()
    assert report(world, capsys)[1]["state_table"] is None
    advance(world)
    told = report(world, capsys)[1]["state_table"]
    assert (told["table"], told["n"], told["of"], told["rows"], told["proved_at"]) == ("orders_current", 1, 1, 2, None)
    assert (told["moved_keys"], told["quarantined"], told["unavailable"], told["uncertain"]) == (0, 0, 0, 0)
    audits = [audit_state(StateTable.open(world.table), part, in_process) for part in range(AUDIT_PARTS)]
    key = world.table.keys.deployment.state_status("orders")
    status = StateStatus.load(world.table.store, key)
    assert report(world, capsys)[1]["state_table"]["proved_at"] == audits[0].at.isoformat()
    world.table.store.put(key, status.model_copy(update={"moved_keys": 2, "quarantined": 3}).to_bytes())
    _, text, _ = call(capsys, "continuity", "orders", "--topics", world.topics_file)
    [line] = [line for line in text.splitlines() if line.startswith("orders_current")]
    assert line.startswith("orders_current: commit 1 of ledger 1, 2 rows; keys that moved between partitions: 2; ")
    assert "records in quarantine: 3; every key was audited since 20" in line
