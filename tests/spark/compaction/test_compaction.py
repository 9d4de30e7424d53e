"""A compaction: fewer files, the same rows in each column, and nothing committed where that does not hold."""

from __future__ import annotations

import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

import fastavro
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from tests.spark.audit.test_audit import audited
from tests.spark.convert.test_parsers import function_parser, records
from tests.spark.world import World, in_process
from tests.tidemark.kafka_log.build import T0, Record, batch, marker, transactional
from tidemark.formats.table.plan import RunResult
from tidemark.planning import plan_compaction, plan_replay, write_plan
from tidemark.table.delta_table import live_files
from tidemark_spark.run.driver import run

DAY = 86_400_000
DAYS = ("2026-02-02", "2026-02-03")
FEW = 3
"""So many small files of an open date are merged in tests."""


def piecemeal(world: World, runs: int = 3) -> None:
    """Two partitions and two dates, landed a few rows at a time; with every kind of null and empty."""
    for number in range(runs):
        at = 6 * number
        odd = [
            Record(0, T0, None, b"", [("a", b"1"), ("a", None), ("", b"")]),
            Record(1, T0 + DAY, b"", None),
            Record(2, T0 + number, b"k", b"v%d" % number),
        ]
        world.raw.segment([batch(at, odd), transactional(at + 3, 7, 2), marker(at + 5, 7, commit=True)])
        world.raw.segment([batch(at, odd[::2]), batch(at + 3, odd, "zstd")], 1)
        world.land()


def merge(world: World, *dates: str, files: int = FEW) -> RunResult:
    """Compact, and check that all is exact."""
    plan = plan_compaction(world.table, dates or None, files=files)
    write_plan(world.table, plan)
    return run(world.table, plan, in_process)


def delta_rows(world: World) -> list[dict[str, Any]]:
    """The rows as a reader of the Delta log has them."""
    rows = DeltaTable(world.table.url).to_pyarrow_table().to_pylist()
    return sorted(rows, key=lambda row: (row["kafka_incarnation"], row["kafka_partition"], row["kafka_offset"]))


def paths(world: World) -> list[str]:
    """The live files."""
    return [one.path for one in live_files(DeltaTable(world.table.url))]


def newest_commit(world: World) -> list[dict[str, Any]]:
    """The actions of the newest version."""
    delta = DeltaTable(world.table.url)
    path = Path(world.table.url.removeprefix("file://")) / "_delta_log" / f"{delta.version():020d}.json"
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A topic whose open dates are compacted from three files on."""
    return World(tmp_path)


def test_rows_stay_and_files_become_few_and_sorted(world: World) -> None:
    piecemeal(world)
    before, rows, ledger = paths(world), delta_rows(world), world.ledger
    told = Counter(str(row | {"file": "", "attempt": 0}) for row in world.holding())
    result = merge(world)
    world.check()
    assert (result.status, result.rows, result.files, result.dates) == ("landed", len(rows), 4, ())
    assert delta_rows(world) == rows
    assert (len(before), len(paths(world))) == (12, 4)
    for path in paths(world):
        _, partition, first, last, _ = path.partition("/")[2].split("_")
        found = world.read(path)
        offsets = [int(row["kafka_offset"]) for row in found.to_pylist()]
        assert offsets == sorted(set(offsets))
        assert (offsets[0], offsets[-1]) == (int(first), int(last))
        assert set(found.column("kafka_partition").to_pylist()) == {int(partition)}
    assert Counter(str(row | {"file": "", "attempt": 0}) for row in world.holding()) == told
    after = world.ledger
    assert (after.kind, after.n, after.dates_changed) == ("compact", ledger.n + 1, ())
    assert (after.dates, after.partitions, after.rows) == (ledger.dates, ledger.partitions, ledger.rows)
    assert plan_compaction(world.table, files=FEW).empty


def test_the_commit_says_that_no_data_changed_and_has_the_statistics(world: World) -> None:
    piecemeal(world)
    merge(world)
    actions = newest_commit(world)
    added = [one["add"] for one in actions if "add" in one]
    removed = [one["remove"] for one in actions if "remove" in one]
    assert (len(added), len(removed)) == (4, 12)
    assert {one["dataChange"] for one in (*added, *removed)} == {False}
    [stats] = [json.loads(one["stats"]) for one in added if "dt=2026-02-02/0_0_0_16" in one["path"]]
    assert stats["numRecords"] == 12
    assert stats["minValues"]["kafka_timestamp"] == "2026-02-02T02:40:00.000Z"
    assert (stats["minValues"]["kafka_offset"], stats["maxValues"]["kafka_offset"]) == (0, 16)
    assert stats["maxValues"]["kafka_timestamp"] == "2026-02-02T02:40:00.002Z"
    world.raw.segment([batch(18, [Record(0)])])
    world.land()
    assert {one["add"]["dataChange"] for one in newest_commit(world) if "add" in one} == {True}


def test_the_settings_of_the_file_are_those_of_convert(world: World) -> None:
    piecemeal(world)
    key = f"{world.table.keys.root}/{paths(world)[0]}"
    landed = pq.ParquetFile(io.BytesIO(world.table.store.get(key).body)).metadata.row_group(0)
    merge(world)
    key = f"{world.table.keys.root}/{paths(world)[0]}"
    after = pq.ParquetFile(io.BytesIO(world.table.store.get(key).body)).metadata.row_group(0)
    assert after.num_columns == landed.num_columns
    for number in range(after.num_columns):
        one, other = after.column(number), landed.column(number)
        assert (one.path_in_schema, one.compression, set(one.encodings), one.is_stats_set) == (
            other.path_in_schema,
            other.compression,
            set(other.encodings),
            other.is_stats_set,
        )


def test_the_same_state_gives_the_same_plan(world: World) -> None:
    piecemeal(world)
    plan, other = (plan_compaction(world.table, files=FEW, attempt=5) for _ in range(2))
    assert plan.model_copy(update={"created_at": other.created_at}) == other


def test_rows_that_a_replay_landed_between_others_are_merged_in_order(tmp_path: Path) -> None:
    world = World(tmp_path, function_parser("sizes"))
    values = [b"abc" if i % 3 else b"abcd" for i in range(12)]
    for start in (0, 6):
        world.raw.segment([batch(start, records(*values[start : start + 6]))])
        world.land()
    mended = World(tmp_path, function_parser("all_sizes"))
    mended.raw = world.raw
    plan = plan_replay(mended.table)
    write_plan(mended.table, plan)
    assert run(mended.table, plan, in_process).rows == 8
    assert [path.split("_")[2:4] for path in paths(mended)] == [["0", "3"], ["1", "11"], ["6", "9"]]
    before = delta_rows(mended)
    assert merge(mended).files == 1
    mended.check()
    assert delta_rows(mended) == before
    [path] = paths(mended)
    assert mended.read(path).column("kafka_offset").to_pylist() == list(range(12))


def test_nested_columns_and_one_that_was_added_are_kept(tmp_path: Path) -> None:
    user = {"type": "record", "name": "User", "fields": [{"name": "name", "type": ["null", "string"]}]}
    fields: list[dict[str, Any]] = [
        {"name": "id", "type": "long"},
        {"name": "user", "type": ["null", user], "default": None},
        {"name": "tags", "type": {"type": "array", "items": ["null", "string"]}},
        {"name": "sizes", "type": {"type": "map", "values": "double"}},
    ]
    values: list[dict[str, Any]] = [
        {"id": 1, "user": None, "tags": [], "sizes": {}},
        {"id": 2, "user": {"name": None}, "tags": [None, ""], "sizes": {"a": 0.5, "": float("nan")}},
        {"id": 3, "user": {"name": ""}, "tags": ["x"], "sizes": {"b": -0.0}},
    ]
    world = avro(tmp_path, fields)
    land_avro(world, fields, values[:2])
    more = [*fields, {"name": "note", "type": ["null", "User"], "default": None}]
    world = avro(tmp_path, more, world)
    values = [one | {"note": None} for one in values]
    land_avro(world, more, [values[2]])
    land_avro(world, more, [values[1] | {"note": {"name": "n"}}, values[0]])
    before = delta_rows(world)
    settings = Counter((row["configuration"], row["rows"]) for row in world.holding())
    assert len({one for one, _ in settings}) == 2  # a column was added in between
    assert merge(world).rows == 5
    world.check()
    assert Counter((row["configuration"], row["rows"]) for row in world.holding()) == settings
    assert audited(world).passed
    assert str(delta_rows(world)) == str(before)  # as text, since NaN is not itself
    assert [row["note"] for row in before] == [None, None, None, {"name": "n"}, None]
    [path] = paths(world)
    assert world.read(path).column("note").null_count == 4


def avro(root: Path, fields: list[dict[str, Any]], before: World | None = None) -> World:
    """A topic with this schema, over what ``before`` uploaded."""
    (root / "order.avsc").write_text(json.dumps({"type": "record", "name": "Order", "fields": fields}))
    world = World(root, "parser: {kind: avro, schema: order.avsc}")
    world.raw = before.raw if before else world.raw
    return world


def land_avro(world: World, fields: list[dict[str, Any]], values: list[dict[str, Any]]) -> None:
    """Land a record for each of ``values``."""
    schema = fastavro.parse_schema({"type": "record", "name": "Order", "fields": fields}, named_schemas={})
    found = []
    for value in values:
        sink = io.BytesIO()
        fastavro.schemaless_writer(sink, schema, value)
        found.append(sink.getvalue())
    world.raw.segment([batch(world.raw.partition().end, records(*found))])
    world.land()


def test_columns_that_only_some_files_have_are_null_in_the_others(tmp_path: Path) -> None:
    world = World(tmp_path)
    piecemeal(world, 1)
    fewer = World(tmp_path, "keep: [timestamp, value]")
    fewer.raw = world.raw
    for number in range(2):
        fewer.raw.segment([batch(6 + number, [Record(0, T0, b"k", b"v", [("h", None)])])])
        fewer.raw.publish()
        run(fewer.table, fewer.plan(), in_process)
    before = delta_rows(fewer)
    assert merge(fewer, DAYS[0]).files == 1
    assert delta_rows(fewer) == before
    assert [row["kafka_headers"] for row in before if row["kafka_partition"] == 0][-2:] == [None, None]
    assert any(row["kafka_headers"] == [] for row in before)
