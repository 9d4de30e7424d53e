"""Prints what Spark's Delta reader and its Parquet reader see of a table, as JSON: ``read_delta.py <delta> <glob>``."""

from __future__ import annotations

import json
import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

spark = SparkSession.builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()


def rows(table: DataFrame) -> list[list[object]]:
    """Each row as plain values."""
    chosen = table.select(
        "kafka_incarnation",
        "kafka_partition",
        "kafka_offset",
        sql.unix_micros("kafka_timestamp"),
        sql.hex("kafka_key"),
        sql.hex("kafka_value"),
        sql.expr("transform(kafka_headers, h -> concat(h.key, '=', coalesce(hex(h.value), 'null')))"),
        sql.col("dt").cast("string"),
    )
    return sorted([list(row) for row in chosen.collect()])


delta = rows(spark.read.format("delta").load(sys.argv[1]))
parquet = rows(spark.read.option("basePath", sys.argv[1]).parquet(sys.argv[2]))
sys.stdout.write(json.dumps({"delta": delta, "parquet": parquet}) + "\n")
