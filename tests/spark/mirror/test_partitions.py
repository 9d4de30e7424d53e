"""A table with partitions beside ``dt`` in catalogs: its files lie in the partitions that their folders say."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.spark.compaction.test_compaction import merge
from tests.spark.mirror.catalogs import delta_rows, duck_rows, iceberg, listed
from tests.spark.run.test_partitioning import LISTED, ODD, Sent, settings
from tests.spark.world import World
from tests.tidemark.kafka_log.build import T0, batch
from tidemark.errors import MirrorError
from tidemark.table.delta_table import live_files

HOUR = 3_600_000
pytestmark = [pytest.mark.usefixtures("kind"), pytest.mark.sampled(1)]


def test_each_commit_of_a_partitioned_table_is_listed(tmp_path: Path) -> None:
    """Rows are compared by all readers after each commit, and files are found by any of the columns."""
    world = World(tmp_path, *settings("both"))
    for number in range(3):
        sent = [Sent(T0 + i % 2 * HOUR, (*LISTED, None)[i % 4], None, None) for i in range(8)]
        world.raw.segment([batch(8 * number, [one.record(i) for i, one in enumerate(sent)])])
        world.land()
        listed(world)
    assert merge(world).status == "landed"
    listed(world)
    table, rows = iceberg(world), delta_rows(world)
    assert [(one.name, str(one.transform)) for one in table.spec().fields] == [
        (name, "identity") for name in ("dt", "hour", "country")
    ]
    assert len(duck_rows(world)) == len(rows) == 24
    odd = ODD.replace("'", "''")
    files = len(live_files(DeltaTable(world.table.url)))
    assert files == 4
    for condition, name, value, count in (
        (f"country = '{odd}'", "country", ODD, 1),
        ("country is null", "country", None, 1),
        ("hour = 3", "hour", 3, 2),
        ("country = '01'", "country", "01", 1),
    ):
        scan = table.scan(row_filter=condition)
        assert len(list(scan.plan_files())) == count
        assert len(scan.to_arrow()) == sum(row[name] == value for row in rows) > 0


def test_a_table_that_was_made_again_with_fewer_columns_is_told(tmp_path: Path) -> None:
    world = World(tmp_path, *settings("both"))
    world.raw.segment([batch(0, [Sent(T0, "AT", None, None).record(0)])])
    world.land()
    listed(world)
    other = World(tmp_path, *settings("hour"))
    other.raw = world.raw
    for one in list(world.table.store.list(f"{world.table.keys.root}/_delta_log/")):
        world.table.store.delete(one.key)
    other.land()
    with pytest.raises(MirrorError, match="is partitioned by dt, hour, country there, and by dt, hour in the lake"):
        listed(other)
