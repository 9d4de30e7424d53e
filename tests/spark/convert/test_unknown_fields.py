"""Fields that no column takes, from the records to the result of the run that lands them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.spark.convert.test_parsers import ID, again, json_parser, records
from tests.spark.inline import Inline
from tests.spark.live.live_world import LiveWorld
from tests.spark.world import World, in_process, never
from tests.tidemark.kafka_log.build import T0, batch
from tests.tidemark.parsers.test_avro import V1, V2, encoded, framed
from tidemark.formats.table.plan import MOST_UNKNOWN, RunResult
from tidemark.parsers.unknown_fields import OTHERS
from tidemark.planning import plan_compaction, plan_rebuild, plan_repair, plan_replay
from tidemark.raw import byte_ranges
from tidemark_spark.cli import ingest, land_live
from tidemark_spark.run.driver import run

DAY = 86_400_000
GOOD = b'{"id":1,"user":{"name":"a","vip":true},"x":1}'
PLAIN = b'{"id":2}'
BAD = b'{"id":"1","x":1}'
USER = "{name: name, type: string, path: user.name}"


def uploaded(root: Path) -> World:
    """Two partitions of two dates: three good rows, one of the second date, and a refused one."""
    world = World(root, json_parser(ID, USER))
    world.raw.segment([batch(0, records(GOOD, PLAIN, BAD))])
    world.raw.segment([batch(0, records(GOOD, GOOD, None, at=[T0, T0 + DAY, T0]), "zstd")], 1)
    world.raw.publish()
    return world


def stored(world: World, attempt: int) -> RunResult:
    return RunResult.load(world.table.store, world.table.keys.result(attempt))


def killed(*_: object) -> Any:
    raise KeyboardInterrupt


def test_a_runs_result_has_the_counts_of_all_its_tasks(tmp_path: Path) -> None:
    world = uploaded(tmp_path)
    result = world.land()
    assert result.unknown == {"user.vip": 3, "x": 3}
    assert stored(world, result.attempt).unknown == result.unknown


def test_the_command_line_prints_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = uploaded(tmp_path)
    assert ingest.main(["--topics", str(world.topics_file), "--topic", "orders"], Inline()) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["unknown"] == {"user.vip": 3, "x": 3}


def test_a_retry_gives_the_same_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a run that died before its commit, and after one that died before its result, of which they are lost."""
    world = uploaded(tmp_path)
    plan = world.plan()
    with monkeypatch.context() as patch:
        patch.setattr("tidemark_spark.run.driver.publish", killed)
        with pytest.raises(KeyboardInterrupt):
            run(world.table, plan, in_process)
    first = run(world.table, plan, in_process)
    assert first.unknown == {"user.vip": 3, "x": 3}
    assert run(world.table, plan, never).unknown == first.unknown
    world.table.store.delete(world.table.keys.result(plan.attempt))
    later = run(world.table, plan, never)
    assert (later.status, later.rows, later.unknown) == ("landed", first.rows, None)


def test_rows_of_a_task_that_does_not_count_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(byte_ranges, "TARGET_BYTES", 100)
    world = World(tmp_path, json_parser(ID, USER))
    world.raw.segment([batch(0, records(GOOD)), batch(5, records(GOOD))])
    world.raw.segment([batch(6, records(GOOD))])
    world.raw.publish()
    plan = world.plan()
    assert len(plan.tasks) == 2
    result = run(world.table, plan, in_process)
    assert (result.gaps, result.unknown) == (((0, 0, 1, 5),), {"user.vip": 1, "x": 1})


def test_runs_that_parse_count_again_and_a_compaction_does_not(tmp_path: Path) -> None:
    """A rebuild of one date reads rows of another that lie between its own, and counts these as well."""
    world = uploaded(tmp_path)
    world.land()
    rebuilt = again(world, plan_rebuild(world.table, ["2026-02-02"]))
    assert (rebuilt.rows, rebuilt.unknown) == (4, {"user.vip": 3, "x": 3})
    DeltaTable(world.table.url).delete("dt = '2026-02-02'")
    repaired = again(world, plan_repair(world.table))
    assert (repaired.rows, repaired.unknown) == (4, {"user.vip": 2, "x": 2})
    mended = World(tmp_path, json_parser("{name: id, type: int64, path: none}", USER))
    mended.raw = world.raw
    assert again(mended, plan_replay(mended.table)).unknown == {"id": 1, "x": 1}
    world.raw.segment([batch(3, records(GOOD))])
    mended.land()
    compacted = again(mended, plan_compaction(mended.table, files=2))
    assert (compacted.status, compacted.unknown) == ("landed", {})


def test_nothing_is_known_of_a_run_that_lands_nothing(tmp_path: Path) -> None:
    world = uploaded(tmp_path)
    world.land()
    empty = world.land()
    assert (empty.status, empty.unknown) == ("empty", None)


def test_schemas_that_have_more_fields_than_the_tables(tmp_path: Path) -> None:
    (tmp_path / "ids").mkdir()
    (tmp_path / "orders.avsc").write_text(json.dumps(V2))
    for number, schema in ((1, V1), (2, V2)):
        (tmp_path / "ids" / f"{number}.avsc").write_text(json.dumps(schema))
    world = World(tmp_path, "parser: {kind: avro, schema: orders.avsc, framing: confluent, schemas: ids}")
    older = [framed(1, encoded(V1, {"a": number, "gone": "x"})) for number in range(3)]
    newer = [framed(2, encoded(V2, {"a": 1, "b": None}))] * 3
    world.raw.segment([batch(0, records(*older, *newer)), batch(6, records(*older), "zstd")])
    assert world.land().unknown == {"gone": 6}


def test_a_result_keeps_the_names_of_most_rows(tmp_path: Path) -> None:
    world = World(tmp_path, json_parser(ID))
    values = [b'{"id":1,"k%04d":1,"zz":1}' % (at // 2) for at in range(2 * MOST_UNKNOWN + 10)]
    world.raw.segment([batch(0, records(*values))])
    found = world.land().unknown
    assert found is not None
    assert found == {"zz": len(values), **{f"k{at:04}": 2 for at in range(MOST_UNKNOWN - 1)}, OTHERS: 12}
    assert next(iter(found)) == "zz"


def test_a_live_landing_counts_too(tmp_path: Path) -> None:
    live = LiveWorld(tmp_path / "live", "orders", more=[json_parser(ID, USER)])
    orders = live.topics["orders"]
    orders.raw.segment([batch(0, records(GOOD, PLAIN))])
    [due] = live.due().topics
    assert land_live.main(["--topics", str(live.topics_file), "--cluster", "east"], Inline()) == 0
    result = RunResult.load(orders.table.store, orders.table.keys.result(due.attempt))
    assert (result.status, result.unknown) == ("landed", {"user.vip": 1, "x": 1})
