"""Run blocks of docs/reading.md on Spark; each line of output has one block's rows as JSON."""

from __future__ import annotations

import json
import subprocess
import sys

from pyspark.sql import SparkSession


def main() -> None:
    """``read_with_spark.py BLOCKS COMMAND``, both JSON."""
    blocks, command = (json.loads(argument) for argument in sys.argv[1:])
    spark = SparkSession.builder.getOrCreate()
    for block in blocks:
        scope = {"spark": spark, "subprocess": subprocess, "command": command}
        exec(block, scope)  # noqa: S102 - the documentation's own code
        rows = (
            scope["found"].selectExpr("kafka_partition", "kafka_offset", "hex(kafka_key)", "hex(kafka_value)").collect()
        )
        sys.stdout.write("ROWS " + json.dumps(sorted(map(list, rows))) + "\n")


main()
