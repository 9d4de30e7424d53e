"""The audit of a state table finds each row that a replay does not give, and no other."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.spark.state.replay import advance, expire, state_rows
from tests.spark.state.test_removed import DAY, PAST_T0
from tests.spark.state.test_state import KEYS, produce, put
from tests.spark.world import World, in_process
from tidemark.errors import ContinuityError
from tidemark.formats.table.state_ledger import StateLedger
from tidemark.formats.table.statuses import AUDIT_PARTS, StateAudit
from tidemark.planning.state import state_change
from tidemark.table.state_table import StateTable
from tidemark_spark.cli.state import main
from tidemark_spark.state import run as state_run
from tidemark_spark.state.audit import audit_state


def audited(world: World) -> list[StateAudit]:
    """All parts."""
    return [audit_state(StateTable.open(world.table), part, in_process) for part in range(AUDIT_PARTS)]


@pytest.fixture
def world(tmp_path: Path, rng: random.Random) -> World:
    """A state of several leaves, with moved and deleted keys."""
    world = World(tmp_path, "state: {}")
    for _ in range(3):
        produce(world, rng, count=20, partitions=2)
        world.land()
        advance(world)
    return world


def test_all_parts_together_prove_each_row_once(world: World, rng: random.Random) -> None:
    table = StateTable.open(world.table)
    ledger = table.committed()
    assert ledger is not None
    audits = audited(world)
    assert sum(audit.rows for audit in audits) == ledger.rows > 0
    assert not any(audit.different or audit.unproved for audit in audits)
    assert StateAudit.load(table.store, world.table.keys.state_audit(3)) == audits[3]
    assert not [info for info in table.store.list(world.table.keys.state_folder) if "/runs/" in info.key]
    produce(world, rng, partitions=2)
    world.land()
    assert sum(audit.rows for audit in audited(world)) == ledger.rows, "rows above the vector count for nothing"


def test_nan_is_the_nan_that_the_topics_table_has(tmp_path: Path, rng: random.Random) -> None:
    columns = "[{name: x, type: double}, {name: xs, type: 'list<float>'}]"
    function = "tests.spark.convert.parsing:not_numbers"
    world = World(tmp_path, "state: {}", f"parser: {{kind: function, function: '{function}', columns: {columns}}}")
    produce(world, rng)
    world.land()
    assert advance(world).rows > 0
    assert sum(audit.rows for audit in audited(world)) == len(state_rows(world))
    assert not any(audit.different for audit in audited(world))


def change(world: World, how: Callable[[pa.Table], pa.Table]) -> None:
    """Change the rows of the first leaf that has some, and its ledger with it."""
    table = StateTable.open(world.table)
    ledger = table.committed()
    assert ledger is not None
    leaves = list(ledger.leaves)
    at = next(number for number, leaf in enumerate(leaves) if leaf.rows > 1)
    key = f"{table.root}/{leaves[at].path}"
    rows = how(pq.ParquetFile(pa.BufferReader(table.store.get(key).body)).read())
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink)
    table.store.put(key, sink.getvalue().to_pybytes())
    leaves[at] = leaves[at].model_copy(update={"rows": len(rows)})
    told: StateLedger = ledger.model_copy(update={"leaves": tuple(leaves)})
    table.store.put(world.table.keys.state_ledger(ledger.n, ledger.attempt), told.to_bytes())


def with_column(rows: pa.Table, name: str, first_value: Any) -> pa.Table:
    values = [first_value, *rows.column(name).to_pylist()[1:]]
    at = rows.schema.get_field_index(name)
    return rows.set_column(at, rows.schema.field(at), pa.array(values, rows.schema.field(at).type))


@pytest.mark.parametrize(
    ("rule", "how"),
    [
        ("is missing", lambda rows: rows.slice(1)),
        ("is not the newest record", lambda rows: with_column(rows, "kafka_value", b"another")),
        ("is not the newest record", lambda rows: with_column(rows, "kafka_offset", 1 << 40)),
    ],
)
def test_a_wrong_row_is_found(world: World, rule: str, how: Callable[[pa.Table], pa.Table]) -> None:
    change(world, how)
    found = [finding for audit in audited(world) for finding in audit.findings]
    assert [finding.rule for finding in found] == [rule]


def test_a_key_that_was_deleted_is_found(world: World) -> None:
    put(world, KEYS[0], b"there", time=5000)
    advance(world)
    table = StateTable.open(world.table)
    kept = table.committed()
    put(world, KEYS[0], None, time=6000)
    advance(world)
    newer = table.committed()
    assert kept is not None
    assert newer is not None
    stale = newer.model_copy(update={"leaves": kept.leaves})
    table.store.put(world.table.keys.state_ledger(newer.n, newer.attempt), stale.to_bytes())
    assert [finding.rule for audit in audited(world) for finding in audit.findings] == ["no key has"]


def test_rows_of_expired_dates_are_not_proved(tmp_path: Path, rng: random.Random) -> None:
    """The table has lost their records, which the state outlives; deletions among them as well."""
    world = World(tmp_path, "state: {}", "retention: {table: 30d, apply: true}")
    put(world, b"stays", b"there", time=40 * DAY)
    put(world, b"gone", b"deleted later, as the offset says", time=40 * DAY)
    produce(world, rng, count=20, partitions=2)
    world.land()
    put(world, b"gone", None)
    advance(world)
    rows = len(state_rows(world))
    expire(world, PAST_T0)
    audits = audited(world)
    assert not any(audit.different for audit in audits)
    proved = sum(audit.rows for audit in audits)
    assert proved == 1
    assert sum(audit.unproved for audit in audits) == rows - proved + 1, "and the deleted key"


def test_a_state_that_is_behind_is_not_compared(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    table = StateTable.open(world.table)
    monkeypatch.setattr(
        state_run, "state_change", lambda *given, **options: state_change(*given, **options)._replace(replays=(7,))
    )
    with pytest.raises(ContinuityError, match=r"run state\.py first"):
        audit_state(table, 0, in_process)


def test_the_job_fails_if_rows_differ(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--topics", str(world.topics_file), "--topic", "orders", "--audit"]
    assert main(arguments, in_process) == 0
    change(world, lambda rows: rows.slice(1))
    capsys.readouterr()
    codes = [main([*arguments, "--part", str(part)], in_process) for part in range(AUDIT_PARTS)]
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert sorted(codes) == [0] * (AUDIT_PARTS - 1) + [1]
    assert [audit["different"] for audit in told] == codes
