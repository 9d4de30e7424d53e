"""Run blocks of docs/reading.md on Spark; each line of output has one block's rows as JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql import SparkSession

COLUMNS = ("kafka_partition", "kafka_offset", "string(kafka_key)", "string(kafka_value)")


def main() -> None:
    """``read_with_spark.py BLOCKS``, as JSON."""
    [argument] = sys.argv[1:]
    spark = SparkSession.builder.getOrCreate()
    for block in json.loads(argument):
        scope: dict[str, Any] = {"spark": spark}
        exec(block, scope)  # noqa: S102 - the documentation's own code
        rows = scope["found"].selectExpr(*COLUMNS).collect()
        sys.stdout.write("ROWS " + json.dumps(sorted(map(list, rows))) + "\n")


main()
