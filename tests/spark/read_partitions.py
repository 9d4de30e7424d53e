"""Prints the rows of a date that Spark finds by its partitions, as JSON: ``read_partitions.py <delta> <value>``.

Once by Delta's reader, and once by Parquet's in the folders.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

spark = SparkSession.builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()


def rows(table: DataFrame, value: str | None) -> list[list[object]]:
    """Each row's offset and partition; only rows with ``value`` as their country, if there is one."""
    chosen = table if value is None else table.where(sql.col("country") == value)
    columns = chosen.select("kafka_offset", sql.col("dt").cast("string"), "hour", "country")
    return sorted([list(row) for row in columns.collect()])


tables = (spark.read.format("delta").load(sys.argv[1]), spark.read.parquet(sys.argv[1]))
found = [rows(table, value) for table in tables for value in (None, sys.argv[2])]
sys.stdout.write(json.dumps(found) + "\n")
