"""A topic's layout of files changes no row: landed, compacted, made again and audited as with any other."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.spark.audit.test_audit import audited
from tests.spark.compaction.test_compaction import delta_rows, merge, paths, piecemeal
from tests.spark.rebuild.rebuilds import changed, compared
from tests.spark.run.test_runs import rebuild
from tests.spark.world import World, in_process
from tests.tidemark.kafka_log.build import simple
from tidemark.errors import ConfigError
from tidemark.planning import write_plan
from tidemark_spark.run.driver import run

OTHER = "parquet: {compression: lz4, sort: [kafka_value], bloom: [kafka_key]}"


def test_a_table_of_another_layout_has_the_same_rows(tmp_path: Path) -> None:
    world, usual = World(tmp_path / "other", OTHER), World(tmp_path / "usual")
    for one in (world, usual):
        piecemeal(one)
    expected = delta_rows(usual)
    assert delta_rows(world) == expected
    [file, *_] = [pq.ParquetFile(f"{tmp_path}/other/lake/orders/{path}") for path in paths(world)]
    assert file.metadata.row_group(0).sorting_columns
    assert merge(world).status == "landed"
    assert delta_rows(world) == expected
    assert audited(world).findings == ()
    [dt, *_] = sorted(one for one in world.ledger.dates)
    assert compared(world, dt).differences == ()
    assert rebuild(world, dt).status == "landed"
    assert delta_rows(world) == expected
    world.check()


def test_a_retry_writes_what_its_plan_says_whatever_the_topics_file_says_by_then(tmp_path: Path) -> None:
    world = World(tmp_path)
    piecemeal(world, 1)
    files = {*paths(world)}
    world.raw.segment([simple(world.raw.partition().end)])
    world.raw.publish()
    plan = world.plan(attempt=77)
    write_plan(world.table, plan)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tidemark_spark.run.driver.publish", _killed)
        with pytest.raises(InterruptedError):
            run(world.table, plan, in_process)
    world = changed(world, OTHER)
    assert run(world.table, plan, in_process).status == "landed"
    new = [path for path in paths(world) if path not in files]
    kinds = {
        pq.ParquetFile(f"{tmp_path}/lake/orders/{path}").metadata.row_group(0).column(0).compression for path in new
    }
    assert kinds == {"ZSTD"}
    world.check()


def test_a_column_that_the_table_lacks_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    world = World(tmp_path, "parquet: {sort: [nowhere]}")
    with pytest.raises(ConfigError, match=r"parquet.sort: nowhere is not a column of the table"):
        piecemeal(world, 1)
    assert not list((tmp_path / "lake").rglob("*.parquet"))


def _killed(*_: object) -> None:
    raise InterruptedError
