"""A query on Spark over Parquet files as views: ``main([query file, view=path…])`` prints keys and values as JSON."""

from __future__ import annotations

import json
from pathlib import Path

from pyspark.sql import SparkSession


def main(arguments: list[str]) -> int:
    """Run it."""
    spark = SparkSession.builder.getOrCreate()
    for named in arguments[1:]:
        name, _, path = named.partition("=")
        spark.read.parquet(path).createOrReplaceTempView(name)
    rows = spark.sql(Path(arguments[0]).read_text()).collect()
    print(json.dumps(sorted([row["kafka_key"].hex(), row["kafka_value"].hex()] for row in rows)))  # noqa: T201
    return 0
