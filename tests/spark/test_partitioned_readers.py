"""A table with partitions beside ``dt``, landed by Spark on a server: every engine finds each row by its folder."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs
import pytest

from demo.accounts import prepare_duckdb
from tests.spark.jobs.programs import Programs
from tests.spark.run.test_partitioning import LISTED, ODD, Sent, settings
from tests.spark.world import World
from tests.support.jars import class_path
from tests.support.paths import ROOT
from tests.support.s3 import S3Server
from tests.support.spark import delta_conf, s3a_conf, spark_submit
from tests.tidemark.kafka_log.build import T0, batch
from tidemark.cli.read_models import files_of

HOUR = 3_600_000
Rows = list[list[Any]]


@pytest.fixture
def landed(
    tmp_path: Path, s3_server: S3Server, on_spark: Programs, monkeypatch: pytest.MonkeyPatch
) -> tuple[World, Rows]:
    """A table that the job on Spark has made, and the offset and partition of each of its rows."""
    for name, value in s3_server.env().items():
        monkeypatch.setenv(name, value)
    world = World(tmp_path, *settings("both"), raw=f"s3://raw/{tmp_path.name}", lake=f"s3://lake/{tmp_path.name}")
    sent = [Sent(T0 + number * HOUR, (*LISTED, None)[number % 4], None, None) for number in range(40)]
    world.raw.segment([batch(0, [one.record(number) for number, one in enumerate(sent)])])
    world.raw.publish()
    done = on_spark.job("ingest", ["--topics", str(world.topics_file), "--topic", "orders"])
    assert done.code == 0, done.errors[-3000:]
    world.check()
    return world, [[number, one.dt, one.local.hour, one.country] for number, one in enumerate(sent)]


def test_readers_without_a_jvm_find_rows_by_their_folders(landed: tuple[World, Rows], s3_server: S3Server) -> None:
    world, expected = landed
    assert len(expected) == 40
    odd = [one for one in expected if one[3] == ODD]
    url, table = world.table.url, world.table.by_delta_rs()
    assert _rows(table.to_pyarrow_table()) == expected
    assert _rows(table.to_pyarrow_table(filters=[("country", "=", ODD)])) == odd
    urls = [one["url"] for one in files_of(world.table, None)]
    assert all(one == one.strip() and len(one.split()) == 1 for one in urls)
    connection = duckdb.connect()
    prepare_duckdb(connection, s3_server.env())
    types = "hive_types = {'country': 'VARCHAR', 'hour': 'INTEGER'}"
    query = f"SELECT kafka_offset, dt, hour, country FROM read_parquet(?, hive_partitioning = true, {types})"  # noqa: S608
    for places in (urls, [f"{url}/**/*.parquet"]):
        assert _rows(connection.execute(query, [places]).to_arrow_table()) == expected
        assert _rows(connection.execute(f"{query} WHERE country = ?", [places, ODD]).to_arrow_table()) == odd
    store = pyarrow.fs.S3FileSystem(
        endpoint_override=s3_server.endpoint.removeprefix("http://"), scheme="http", region="us-east-1"
    )
    fields: list[pa.Field[Any]] = [
        pa.field("dt", pa.date32()),
        pa.field("hour", pa.int32()),
        pa.field("country", pa.string()),
    ]
    hive = ds.partitioning(pa.schema(fields), flavor="hive")
    paths, base = [one.removeprefix("s3://") for one in urls], url.removeprefix("s3://")
    dataset = ds.dataset(paths, filesystem=store, partitioning=hive, partition_base_dir=base)
    assert _rows(dataset.to_table()) == expected
    assert _rows(dataset.to_table(filter=ds.field("country") == ODD)) == odd


@pytest.mark.full
def test_spark_finds_rows_by_their_folders(starts_spark: None, landed: tuple[World, Rows], s3_server: S3Server) -> None:
    world, expected = landed
    jars = os.pathsep.join(class_path(name) for name in ("spark-s3a", "delta-spark"))
    conf = {
        **s3a_conf(s3_server.endpoint),
        **delta_conf(),
        "spark.driver.extraClassPath": jars,
        "spark.executor.extraClassPath": jars,
    }
    script = ROOT / "tests" / "spark" / "read_partitions.py"
    url = world.table.url.replace("s3://", "s3a://")
    output = spark_submit(script, url, ODD, conf=conf, env=s3_server.env())
    odd = [one for one in expected if one[3] == ODD]
    assert json.loads(output.strip().splitlines()[-1]) == [expected, odd] * 2


def _rows(table: pa.Table) -> Rows:
    names = ("kafka_offset", "dt", "hour", "country")
    return sorted(
        [offset, str(dt), hour, country]
        for offset, dt, hour, country in zip(*(table.column(name).to_pylist() for name in names), strict=True)
    )
