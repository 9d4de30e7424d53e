"""Changes a table as a person does in Spark SQL: ``change_delta.py <table> <copies> <statement>...``.

Before each statement the table is copied to ``<copies>/<number>``, and the statement changes the copy, which it calls
``{table}``.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from pyspark.sql import SparkSession

spark = SparkSession.builder.config("spark.databricks.delta.retentionDurationCheck.enabled", "false").getOrCreate()

for number, statements in enumerate(sys.argv[3:]):
    copy = Path(sys.argv[2], str(number))
    shutil.copytree(sys.argv[1], copy)
    for statement in statements.split(";"):
        spark.sql(statement.format(table=f"delta.`{copy}`"))
