"""A column becomes wider when all dates are rebuilt, in one commit; nothing else changes a type."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import pytest
from deltalake import DeltaTable

from tests.spark.convert.test_parsers import again, column, json_parser, records
from tests.spark.world import Acting, World, in_process, never
from tests.tidemark.kafka_log.build import T0, batch
from tidemark.errors import ConfigError
from tidemark.formats.table.plan import SegmentTask
from tidemark.planning import plan_rebuild, write_plan
from tidemark.table.topic_columns import is_wider
from tidemark_spark.model import Job, Outcome
from tidemark_spark.run import commit, delta_log
from tidemark_spark.run.driver import run

DAY = 86_400_000
NARROW = json_parser(
    "{name: id, type: int32}",
    "{name: x, type: float}",
    "{name: n, type: 'list<int32>'}",
    "{name: d, type: 'decimal(5,2)'}",
)
WIDE = NARROW.replace("int32", "int64").replace("float", "double").replace("5,2", "9,3")
VALUES = (b'{"id":1,"x":0.1,"n":[1],"d":1.25}', b'{"id":8589934592,"x":2}', b'{"id":3,"d":1.125}', b"{")


@pytest.mark.parametrize(
    ("before", "after", "wider"),
    [
        ("byte", "long", True),
        ("integer", "short", False),
        ("float", "double", True),
        ("integer", "double", False),
        ("date", "timestamp", False),
        ("string", "binary", False),
        ("decimal(9,2)", "decimal(9,2)", True),
        ("decimal(9,2)", "decimal(11,4)", True),
        ("decimal(9,2)", "decimal(10,4)", False),
        ("decimal(9,2)", "decimal(9,1)", False),
        ("decimal(9,2)", "double", False),
        ({"type": "array", "elementType": "integer"}, {"type": "array", "elementType": "long"}, True),
        ({"type": "array", "elementType": "long"}, {"type": "array", "elementType": "integer"}, False),
        ({"type": "array", "elementType": "long"}, "long", False),
        (
            {"type": "struct", "fields": [{"name": "a", "type": "float"}]},
            {"type": "struct", "fields": [{"name": "a", "type": "double"}]},
            True,
        ),
        (
            {"type": "struct", "fields": [{"name": "a", "type": "float"}]},
            {"type": "struct", "fields": [{"name": "b", "type": "float"}]},
            False,
        ),
    ],
)
def test_what_is_wider(before: Any, after: Any, wider: bool) -> None:
    assert is_wider(before, after) is wider


@pytest.fixture
def worlds(tmp_path: Path) -> tuple[World, World]:
    """A table whose rows of two dates were landed by narrow types, and the world of the wider ones."""
    narrow = World(tmp_path, NARROW)
    narrow.raw.segment([batch(0, records(*VALUES, at=[T0, T0, T0 + DAY, T0]))])
    narrow.land()
    assert column(narrow, "id") == {0: 1}
    wide = World(tmp_path, WIDE)
    wide.raw = narrow.raw
    return narrow, wide


def types(world: World) -> dict[str, str]:
    return {one.name: str(one.type) for one in DeltaTable(world.table.url).schema().fields}


def test_all_dates_rebuilt_make_columns_wider_in_one_commit(worlds: tuple[World, World]) -> None:
    narrow, wide = worlds
    version = DeltaTable(wide.table.url).version()
    before = types(wide)
    result = again(wide, plan_rebuild(wide.table, None))
    assert (result.status, result.rows, result.dates) == ("landed", 3, ("2026-02-02", "2026-02-03"))
    assert DeltaTable(wide.table.url).version() == version + 1
    found = types(wide)
    assert [found[name] for name in ("id", "x", "d")] == [
        f'PrimitiveType("{one}")' for one in ("long", "double", "decimal(9,3)")
    ]
    assert {name for name in found if found[name] != before[name]} == {"id", "x", "n", "d"}
    table = DeltaTable(wide.table.url).to_pyarrow_table().sort_by("kafka_offset")
    assert table.column("id").to_pylist() == [1, 8589934592, 3]
    assert table.column("x").to_pylist() == [0.1, 2.0, None]
    files = [f"{wide.table.url}/{one}".removeprefix("file://") for one in _live(wide)]
    [(total,)] = duckdb.read_parquet(files).aggregate("sum(d)").fetchall()
    assert str(total) == "2.375"
    before_them = DeltaTable(wide.table.url, version=version).to_pyarrow_table()
    assert str(before_them.schema.field("id").type) == "int32"  # a reader of the past sees the past
    wide.raw.segment([batch(4, records(b'{"id":4}'))])
    assert wide.land().rows == 1
    narrow.raw.segment([batch(5, records(b'{"id":5}'))])
    with pytest.raises(ConfigError, match="column id is long in the table, and integer by the parser"):
        narrow.land()


def _live(world: World) -> list[str]:
    actions = DeltaTable(world.table.url).get_add_actions(flatten=True)
    return [str(one) for one in actions.column(actions.schema.names.index("path")).to_pylist()]


def test_wider_columns_are_refused_before_anything_is_written_unless_all_dates_are_rebuilt(
    worlds: tuple[World, World],
) -> None:
    _, wide = worlds
    wide.raw.segment([batch(4, records(b'{"id":4}'))])
    wide.raw.publish()
    stored = {one.key for one in wide.table.store.list("")}

    for plan in (wide.plan(attempt=1), plan_rebuild(wide.table, ["2026-02-02", "2026-02-03"])):
        with pytest.raises(ConfigError, match=r"made wider when all dates are rebuilt: rebuild.py --all"):
            run(wide.table, plan, never)
    told = wide.table.keys.deployment.unread("orders")
    assert {one.key for one in wide.table.store.list("")} - stored == {wide.table.keys.attempt(1), told}


def test_rows_of_the_narrow_type_that_land_meanwhile_make_the_rebuild_stale(worlds: tuple[World, World]) -> None:
    narrow, wide = worlds
    plan = plan_rebuild(wide.table, None)
    write_plan(wide.table, plan)

    @Acting
    def overtaken(work: Any, job: Job, tasks: Sequence[SegmentTask]) -> list[Outcome]:
        narrow.raw.segment([batch(4, records(b'{"id":4}'))])
        assert narrow.land().rows == 1
        return in_process.on_each(work, job, tasks)

    assert run(wide.table, plan, overtaken).status == "stale"
    narrow.check()
    assert column(narrow, "id") == {0: 1, 4: 4}
    assert again(wide, plan_rebuild(wide.table, None)).rows == 4


def test_a_lost_reply_to_the_widening_commit_does_no_harm(
    worlds: tuple[World, World], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, wide = worlds
    real = delta_log.commit

    def losing(*arguments: Any) -> None:
        real(*arguments)
        raise OSError("planted: the reply was lost")

    monkeypatch.setattr(commit, "commit", losing)
    assert again(wide, plan_rebuild(wide.table, None)).status == "landed"
    assert column(wide, "id") == {0: 1, 1: 8589934592, 2: 3}
