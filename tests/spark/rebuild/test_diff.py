"""Rows as they are beside those that raw gives now: each planted difference is found, and nothing is written."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.spark.audit.test_audit import file_of, rewrite
from tests.spark.convert.test_parsers import function_parser, json_parser, records
from tests.spark.rebuild.rebuilds import (
    DAYS,
    changed,
    compared,
    failing,
    objects,
)
from tests.spark.run.test_runs import DAY
from tests.spark.world import World
from tests.tidemark.kafka_log.build import T0, batch, marker, simple, transactional, with_records
from tidemark.backfill.report_tables import of_comparison


@pytest.fixture
def landed(tmp_path: Path) -> World:
    """Two partitions with rows of three dates, an aborted transaction and quarantined rows; what follows has landed."""
    world = World(tmp_path, json_parser("{name: id, type: int32}", "{name: tags, type: 'list<string>'}"))
    for partition in range(2):
        values = [b'{"id":%d,"tags":["a","b"]}' % i for i in range(8)]
        times = [T0 + i % 3 * DAY for i in range(8)]
        segment = [batch(0, records(*values, b"{", at=[*times, T0])), transactional(9, 7, 3)]
        world.raw.segment([*segment, marker(12, 7, commit=False)], partition, aborted=[(7, 9, 12)])
        world.raw.segment([batch(13, records(*values, at=times)), with_records(simple(21), b"\xff" * 40)], partition)
    world.land()
    return world


def set_values(world: World, dt: str, name: str, change: Callable[[list[Any]], None]) -> int:
    """Change values of a column in the file of a date; returns the offset of its second row."""
    file = file_of(world, dt)

    def planted(rows: pa.Table) -> pa.Table:
        values = rows[name].to_pylist()
        change(values)
        return rows.set_column(rows.schema.get_field_index(name), name, pa.array(values, rows.schema.field(name).type))

    rewrite(world, file, planted)
    return int(world.read(file.path)["kafka_offset"][1].as_py())


def test_a_comparison_of_the_same_settings_finds_nothing_and_writes_nothing(landed: World) -> None:
    stored = objects(landed)
    found = compared(landed)
    assert (found.differences, found.rows) == ((), 32)
    assert of_comparison(found).note == "32 rows were compared with what raw gives now, and are the same."
    assert compared(landed, DAYS[2]).rows == 12
    wide = changed(landed, json_parser("{name: id, type: int64}", "{name: tags, type: 'list<string>'}"))
    assert compared(wide).differences == ()  # the same numbers, by a longer type
    assert objects(landed) == stored


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("id", None),
        ("tags", ["a", "c"]),
        ("kafka_value", b""),
        ("kafka_key", None),
        ("kafka_headers", []),
        ("kafka_leader_epoch", 9),
        ("kafka_timestamp", None),
    ],
)
def test_a_comparison_finds_one_value_of_one_column(landed: World, name: str, value: Any) -> None:
    def other(values: list[Any]) -> None:
        values[1] = value

    offset = set_values(landed, DAYS[2], name, other)
    found = compared(landed)
    [one] = found.differences
    assert (one.partition, one.dt, one.kind, one.changed) == (0, DAYS[2], "landed", {name: 1})
    assert (one.only_before, one.only_after, one.offsets) == (0, 0, {"changed": (offset,)})
    [row] = of_comparison(found).rows
    assert row[-2:] == (f"1 in {name}", f"changed: {offset}")


def test_a_comparison_finds_a_row_that_is_missing_or_double_or_of_another_date(landed: World) -> None:
    file = file_of(landed, DAYS[1], 1)
    sound = landed.read(file.path)
    offset = sound["kafka_offset"][2].as_py()
    rewrite(landed, file, lambda rows: pa.concat_tables([rows.slice(0, 2), rows.slice(3)]))
    [one] = compared(landed).differences
    assert (one.partition, one.dt, one.only_before, one.only_after) == (1, DAYS[1], 0, 1)
    assert one.offsets == {"only_after": (offset,)}
    rewrite(landed, file, lambda _: pa.concat_tables([sound.slice(0, 3), sound.slice(2)]))
    [one] = compared(landed).differences
    assert (one.only_before, one.only_after, one.offsets) == (1, 0, {"only_before": (offset,)})
    rewrite(landed, file, lambda _: sound)
    assert compared(landed).differences == ()
    there = file_of(landed, DAYS[3], 1)
    rewrite(landed, file, lambda rows: pa.concat_tables([rows.slice(0, 2), rows.slice(3)]))
    rewrite(landed, there, lambda rows: pa.concat_tables([rows, sound.slice(2, 1)]).sort_by("kafka_offset"))
    found = [(one.dt, one.only_before, one.only_after) for one in compared(landed).differences]
    assert found == [(DAYS[1], 0, 1), (DAYS[3], 1, 0)]


def test_a_comparison_finds_a_refused_row_that_quarantine_lacks(landed: World) -> None:
    [path] = {row["file"] for row in landed.holding() if row["class"] == "quarantined" and row["dt"]} - {
        row["file"] for row in landed.holding() if row["partition"] == 1
    }
    key = f"{landed.table.keys.quarantine}/{path}"
    rows = landed.read(path, landed.table.keys.quarantine)
    sink = io.BytesIO()
    pq.write_table(rows.slice(1), sink)
    landed.table.store.put(key, sink.getvalue())
    [one] = compared(landed).differences
    assert (one.kind, one.partition, one.dt, one.only_after, one.offsets) == (
        "quarantined",
        0,
        DAYS[1],
        1,
        {"only_after": (8,)},
    )


def test_a_comparison_of_generations_tells_what_another_parser_would_make_of_the_rows(tmp_path: Path) -> None:
    strict = World(tmp_path, function_parser("sizes"))
    strict.raw.segment([batch(0, records(b"a", b"", b"abc", b"abcd", b"", at=[T0, T0, T0, T0 + DAY, T0 + DAY]))])
    strict.land()
    lenient = changed(strict, function_parser("all_sizes"))
    stored = objects(lenient)
    assert [
        (one.dt, one.kind, one.before, one.after, one.only_before, one.only_after)
        for one in compared(lenient).differences
    ] == [
        (DAYS[1], "filtered", 1, 0, 1, 0),
        (DAYS[1], "landed", 1, 3, 0, 2),
        (DAYS[1], "quarantined", 1, 0, 1, 0),
        (DAYS[2], "filtered", 1, 0, 1, 0),
        (DAYS[2], "landed", 1, 2, 0, 1),
    ]
    assert objects(lenient) == stored
    bare = changed(strict)
    assert [one.changed for one in compared(bare).differences if one.changed] == [{"size": 1}, {"size": 1}]


def test_a_comparison_finds_rows_that_a_worse_decoder_would_lose(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.raw.segment([simple(0), simple(3)])
    world.land()
    monkeypatch.setattr("tidemark.decode.decode_batches", failing)
    told = {(one.dt, one.kind): (one.only_before, one.only_after, one.offsets) for one in compared(world).differences}
    assert told == {
        ("", "quarantined"): (0, 3, {"only_after": (3,)}),
        (DAYS[1], "landed"): (3, 0, {"only_before": (3, 4, 5)}),
    }
