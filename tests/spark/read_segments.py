"""Read segments by the format ``tidemark``, and exported SequenceFiles, in this process's session of Spark.

The last line of output is JSON.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql import SparkSession

from tidemark_spark.datasource import TidemarkSource


def main(topics: str, exported: str) -> None:
    """Run the queries."""
    spark = (
        SparkSession.builder.config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.python.filterPushdown.enabled", "true")
        .getOrCreate()
    )
    spark.dataSource.register(TidemarkSource)
    read = spark.read.format("tidemark").option("topics", topics).option("topic", "orders").option("pushdown", "true")
    rows = read.load()
    chosen = rows.where("kafka_partition = 0 and kafka_offset > 3 and kafka_key in ('k1', 'k4', 'k7', 'k8')")
    chosen = chosen.where("kafka_offset < 14 and kafka_timestamp < '2026-02-04' and kafka_timestamp >= '2026-02-03'")
    files: dict[str, list[list[Any]]] = {}
    for kind in ("sequence", "messagepack"):
        records: list[Any] = spark.sparkContext.sequenceFile(f"{exported}/{kind}/orders/*.seq").collect()
        files[kind] = sorted(
            [key if isinstance(key, int) else bytes(key).hex(), bytes(value).hex()] for key, value in records
        )
    found = {"filtered": sorted(row.kafka_offset for row in chosen.select("kafka_offset").collect()), **files}
    sys.stdout.write(f"{json.dumps(found)}\n")
