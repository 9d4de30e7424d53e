"""Read the segments of a topics file's topic ``orders`` with Spark; the last line has offsets by query, as JSON."""

from __future__ import annotations

import json
import sys

from pyspark.sql import DataFrame, SparkSession

from tidemark_spark.source import TidemarkSource


def main(topics: str) -> None:
    """Run the queries."""
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.python.filterPushdown.enabled", "true")
        .getOrCreate()
    )
    spark.dataSource.register(TidemarkSource)
    read = spark.read.format("tidemark").option("topics", topics).option("topic", "orders").option("pushdown", "true")
    rows = read.load()
    chosen = rows.where("kafka_partition = 0 and kafka_offset > 3 and kafka_key in ('k1', 'k4', 'k7', 'k8')")
    chosen = chosen.where("kafka_offset < 14 and kafka_timestamp < '2026-02-04' and kafka_timestamp >= '2026-02-03'")
    found = {"all": _offsets(rows), "filtered": _offsets(chosen)}
    sys.stdout.write(f"{json.dumps(found)}\n")
    spark.stop()


def _offsets(rows: DataFrame) -> list[int]:
    return sorted(row.kafka_offset for row in rows.select("kafka_offset").collect())


if __name__ == "__main__":
    main(sys.argv[1])
