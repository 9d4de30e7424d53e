"""A state table on real Spark and on an S3 server, and in several engines."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest
from deltalake import DeltaTable

from tests.spark.jobs.programs import Programs
from tests.spark.retention.test_s3 import deployed
from tests.spark.state.replay import check, replayed
from tests.spark.state.test_state import produce
from tests.spark.world import World
from tests.support.s3 import OwnBuckets
from tidemark.table.state_table import StateTable
from tidemark_spark.state.run import StateResult


@pytest.mark.essential
def test_the_job_on_spark_and_a_server(
    tmp_path: Path,
    own_buckets: Callable[..., OwnBuckets],
    on_spark: Programs,
    rng: random.Random,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = own_buckets()
    for name, value in server.env().items():
        monkeypatch.setenv(name, value)
    world: World = deployed(server, tmp_path, "state: {}", "raw", "lake")
    for kind in ("rebuild", "merge"):
        for _ in range(3):
            produce(world, rng, count=30, partitions=2)
        world.land()
        done = on_spark.run("tests.spark.state.small_leaves", ["--topics", str(world.topics_file), "--topic", "orders"])
        assert done.code == 0, done.errors[-3000:]
        result = StateResult.from_bytes(done.output.splitlines()[-1].encode(), "output")
        assert (result.status, result.kind) == ("committed", kind)
        check(world)
    wanted = {key: row["kafka_value"] for key, row in replayed(world.rows()).items()}
    url, options = StateTable.open(world.table).url, world.table.delta_options
    rows = DeltaTable(url, storage_options=options).to_pyarrow_table()
    assert dict(zip(rows["kafka_key"].to_pylist(), rows["kafka_value"].to_pylist(), strict=True)) == wanted
    found = duckdb.connect().from_arrow(rows).aggregate("count(*), count(DISTINCT kafka_key)").fetchall()
    assert found == [(len(wanted), len(wanted))]
