"""Counts rows of the format ``tidemark`` in this process's session of Spark.

The last line of output is JSON: the offsets that Spark collects for each query, then the rows that the last one counts.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence

from pyspark.sql import SparkSession

from tidemark_spark.datasource import TidemarkSource


def main(topics: str, queries: Sequence[tuple[Mapping[str, str], str]]) -> None:
    """Run each query: options, and a condition."""
    spark = SparkSession.builder.config("spark.sql.python.filterPushdown.enabled", "true").getOrCreate()
    spark.dataSource.register(TidemarkSource)
    found: list[object] = []
    rows = spark.range(0)
    for options, condition in queries:
        read = spark.read.format("tidemark").options(topics=topics, topic="orders", **options)
        rows = read.load().where(condition)
        found.append(sorted(row.kafka_offset for row in rows.select("kafka_offset").collect()))
    found.append(rows.count())
    sys.stdout.write(f"{json.dumps(found)}\n")
