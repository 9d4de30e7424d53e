"""docs/reading.md: each of its ways to read a table gives the same rows, and they are the consumer's."""

from __future__ import annotations

import json
import os
import re
import subprocess
import uuid
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable
from pyarrow import dataset
from pyarrow.fs import S3FileSystem
from pyiceberg.catalog import load_catalog

from demo.accounts import prepare_duckdb
from tests.end_to_end.deployment import SmallDeployment, credentials
from tests.spark.mirror.catalogs import load_iceberg, sql_catalog
from tests.support.kafka import KafkaCluster
from tests.support.paths import ROOT, env_bin
from tests.support.s3 import S3Server
from tests.support.spark import delta_conf, jars_env, s3a_conf, spark_submit
from tidemark.catalogs import catalog_table
from tidemark_spark.mirror.catalog import open_catalog
from tidemark_spark.mirror.mirror import mirror
from tidemark_spark.mirror.mirrored_table import MirroredTable

DAY = 86_400_000
NOON = 1_794_960_000_000 - 1_794_960_000_000 % DAY + DAY // 2  # of 2026-11-18
Rows = list[tuple[int, int, str, str]]
SECTIONS: dict[str, str] = dict(
    re.findall(
        r"^## (.+?)\n\n```python\n(.*?)```", (ROOT / "docs" / "reading.md").read_text(), re.DOTALL | re.MULTILINE
    )
)
SPARK = [name for name in SECTIONS if name.startswith("Spark, ")]
ELSEWHERE = ["Spark 4.1, by catalog"]
"""What ``tests/spark/mirror`` runs, which has that Spark."""


@pytest.fixture(scope="module")
def landed(
    kafka: KafkaCluster, s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[SmallDeployment, str, Rows]]:
    """A table with 300 records a day on three days, and the rows of the last one."""
    with credentials(s3_server):
        topic = f"read-{uuid.uuid4().hex[:8]}"
        small = SmallDeployment(tmp_path_factory.mktemp("reading"), kafka, s3_server, topic, (topic,))
        kafka.create_topic(topic, partitions=2)
        producer = Producer({"bootstrap.servers": kafka.bootstrap, "compression.type": "zstd"})
        expected: Rows = []

        def delivered(error: object, message: Any) -> None:
            assert error is None
            if message.timestamp()[1] >= NOON + 2 * DAY:
                texts = message.key().hex().upper(), message.value().hex().upper()
                expected.append((message.partition(), message.offset(), *texts))

        for number in range(900):
            at = NOON + number // 300 * DAY
            producer.produce(topic, b"value %d" % number, b"%d" % number, timestamp=at, on_delivery=delivered)
        assert producer.flush(60) == 0
        small.upload()
        assert small.land(topic).rows == 900
        table, settings = small.table(topic), sql_catalog(small.folder, name="analytics")
        mirror(table, settings, MirroredTable(table, settings, open_catalog(table.deployment, settings)))
        yield small, topic, sorted(expected)


def block(name: str, small: SmallDeployment, topic: str) -> str:
    """The section's code for our table instead of the example's."""
    code = SECTIONS[name]
    assert len(code.strip().splitlines()) <= 4
    assert "2026-11-20" in code
    code = code.replace("kafka.orders", f"kafka.{catalog_table(topic)}")
    return code.replace("lake/tables/orders", f"lake/{small.prefix}/{topic}")


def files_command(small: SmallDeployment, topic: str) -> list[str]:
    return [str(env_bin("spark", "tidemark")), "files", topic, "--topics", str(small.topics_file)]


def rows_of(table: pa.Table) -> Rows:
    assert set(table.column("dt").to_pylist()) <= {"2026-11-20", date(2026, 11, 20)}
    names = ("kafka_partition", "kafka_offset", "kafka_key", "kafka_value")
    return sorted(
        (partition, offset, key.hex().upper(), value.hex().upper())
        for partition, offset, key, value in zip(*(table.column(name).to_pylist() for name in names), strict=True)
    )


@pytest.mark.parametrize("name", [name for name in SECTIONS if name not in {*SPARK, *ELSEWHERE}])
def test_each_engine_reads_the_same_rows(name: str, landed: tuple[SmallDeployment, str, Rows]) -> None:
    small, topic, expected = landed
    prepare_duckdb(duckdb.default_connection(), small.s3.env())
    load_iceberg(duckdb.default_connection())
    settings = sql_catalog(small.folder, name="analytics")
    scope: dict[str, Any] = {
        "subprocess": subprocess,
        "command": files_command(small, topic),
        "duckdb": duckdb,
        "date": date,
        "pyarrow": pa,
        "load_catalog": load_catalog,
        "properties": {"type": "sql", "uri": settings.uri, "s3.endpoint": small.s3.endpoint},
        "catalog": load_catalog("analytics", type="sql", uri=settings.uri, **{"s3.endpoint": small.s3.endpoint}),
        "dataset": dataset,
        "s3": S3FileSystem(endpoint_override=small.s3.endpoint),
        "DeltaTable": lambda url: DeltaTable(url, storage_options=small.table(topic).delta_options),
    }
    exec(block(name, small, topic), scope)  # noqa: S102 - the documentation's own code
    found = scope["found"]
    assert rows_of(found.to_arrow_table() if isinstance(found, duckdb.DuckDBPyRelation) else found) == expected
    assert len(expected) == 300


def test_spark_reads_the_same_rows(landed: tuple[SmallDeployment, str, Rows]) -> None:
    small, topic, expected = landed
    blocks = [block(name, small, topic) for name in SPARK]
    printed = spark_submit(
        Path(__file__).with_name("read_with_spark.py"),
        json.dumps(blocks),
        json.dumps(files_command(small, topic)),
        conf=s3a_conf(small.s3.endpoint) | delta_conf(),
        env={**small.s3.env(), **jars_env("spark-s3a", "delta-spark"), "PATH": os.environ["PATH"]},
    )
    found = [json.loads(line.removeprefix("ROWS ")) for line in printed.splitlines() if line.startswith("ROWS ")]
    assert found == [[list(row) for row in expected]] * len(SPARK)
    assert len(SPARK) == 2
