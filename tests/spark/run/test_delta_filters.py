"""delta-rs answers each filter on each column, although the Delta log has bounds for three columns only."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable

from tests.spark.compaction.test_compaction import merge
from tests.spark.convert.test_parsers import again, json_parser, records
from tests.spark.world import World, in_process
from tests.tidemark.kafka_log.build import batch
from tidemark.planning import plan_rebuild
from tidemark_spark.mirror.delta_versions import listed_files, versions_from
from tidemark_spark.run import delta_log
from tidemark_spark.run.driver import run

COLUMNS = ("{name: id, type: int32}", "{name: name, type: string}", "{name: at, type: 'list<int32>'}")
IDS = (3, None, 1, 4, 1, None)
Row = dict[str, Any]
ASKED: tuple[tuple[str, Any, Callable[[Row], object]], ...] = (
    ("=", ds.field("id") == 3, lambda row: row["id"] == 3),
    ("!=", ds.field("id") != 3, lambda row: row["id"] not in {None, 3}),
    ("<", ds.field("id") < 3, lambda row: row["id"] is not None and row["id"] < 3),
    (">=", ds.field("id") >= 3, lambda row: row["id"] is not None and row["id"] >= 3),
    ("IN", ds.field("id").isin([1, 4]), lambda row: row["id"] in {1, 4}),
    ("IS NULL", ds.field("id").is_null(), lambda row: row["id"] is None),
    ("IS NOT NULL", ds.field("id").is_valid(), lambda row: row["id"] is not None),
    ("text", ds.field("name") == "n4", lambda row: row["name"] == "n4"),
    (
        "with an offset",
        (ds.field("id") == 1) & (ds.field("kafka_offset") > 2),
        lambda row: row["id"] == 1 and row["kafka_offset"] > 2,
    ),
    ("of the record", ds.field("kafka_timestamp_type") == "create", lambda _row: True),
    ("bounded", ds.field("kafka_offset") == 3, lambda row: row["kafka_offset"] == 3),
    ("time", ds.field("kafka_timestamp").is_null(), lambda row: row["kafka_timestamp"] is None),
    ("no time", ds.field("kafka_timestamp").is_valid(), lambda row: row["kafka_timestamp"] is not None),
)


def check_filters(world: World) -> None:
    """What delta-rs finds by each operator is what Python finds in all rows."""
    delta = DeltaTable(world.table.url)
    rows = delta.to_pyarrow_table().to_pylist()
    assert len(rows) == len(world.rows())
    for name, asked, holds in ASKED:
        found = delta.to_pyarrow_dataset().to_table(filter=asked).to_pylist()
        expected = sorted(row["kafka_offset"] for row in rows if holds(row))
        assert sorted(row["kafka_offset"] for row in found) == expected, name
    assert delta.to_pyarrow_table(filters=[("id", "=", 3)]).num_rows == sum(row["id"] == 3 for row in rows)


def landed(world: World, *firsts: int) -> None:
    """Land six records from each of the offsets on, in runs of their own."""
    for first in firsts:
        values = [json.dumps({"id": one, "name": f"n{first + at}", "at": [one]}).encode() for at, one in enumerate(IDS)]
        world.raw.segment([batch(first, records(*values))])
        world.raw.publish()
        assert run(world.table, world.plan(), in_process).rows == len(IDS)


def test_a_filter_on_a_column_without_bounds_finds_its_rows(tmp_path: Path) -> None:
    world = World(tmp_path, json_parser(*COLUMNS))
    landed(world, 0)
    check_filters(world)
    landed(world, 6, 12)
    assert merge(world).files == 1
    DeltaTable(world.table.url).create_checkpoint()
    check_filters(world)
    wide = World(tmp_path, json_parser(*COLUMNS, "{name: more, type: string}").replace("int32", "int64"))
    wide.raw = world.raw
    again(wide, plan_rebuild(wide.table, None))
    check_filters(wide)


@pytest.mark.parametrize("by", ["landing", "compaction", "rebuild"])
def test_the_next_commit_cures_a_table_that_exists(by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, json_parser(*COLUMNS))
    with monkeypatch.context() as patch:
        patch.setattr(delta_log, "_bounds_property", lambda _columns: {})
        landed(world, 0, 6, 12)
    with pytest.raises(AssertionError):
        check_filters(world)
    if by == "landing":
        landed(world, 18)
    elif by == "compaction":
        merge(world)
    else:
        again(world, plan_rebuild(world.table, None))
    check_filters(world)
    version = DeltaTable(world.table.url).version()
    landed(world, world.next_offset())
    assert DeltaTable(world.table.url).version() == version + 1  # the properties are set once


def test_rows_without_a_time_are_told_from_those_with_one(tmp_path: Path) -> None:
    """A topic may leave out its records' times later: of each file the log says for how many rows."""
    timed = World(tmp_path, json_parser(*COLUMNS))
    landed(timed, 0)
    world = World(tmp_path, "keep: [timestamp_type, key, value, headers, leader_epoch]", json_parser(*COLUMNS))
    world.raw = timed.raw
    landed(world, 6, 12)
    check_filters(world)
    files = listed_files(DeltaTable(world.table.url))
    assert sorted(len(file.bounds) for file in files) == [2, 2, 3]
    assert merge(world).files == 1
    check_filters(world)
    [file] = listed_files(DeltaTable(world.table.url))
    assert [name for name, *_ in file.bounds] == ["kafka_partition", "kafka_offset"]
    [version] = versions_from(world.table, *[DeltaTable(world.table.url).version()] * 2) or []
    assert version.added == (file,)
