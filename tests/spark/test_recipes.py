"""The example of docs/reading.md for Spark over live files: the columns of all files, and partitions as they were."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.readers.tables import STATES
from tests.readers.test_readers import recipe
from tests.spark.jobs.programs import Programs

SECTION = "Spark, over the live files"


@pytest.mark.essential
def test_spark_over_live_files_shows_the_columns_of_all_files(tmp_path: Path, on_spark: Programs) -> None:
    asked = STATES["added"](tmp_path)
    done = on_spark.run("tests.spark.table_of_recipe", recipe(SECTION, asked))
    assert done.code == 0, done.errors[-2000:]
    *_, rows, columns = done.output.splitlines()
    assert {*asked.types} <= {*json.loads(columns)}
    assert int(rows) == len(asked.rows)


def test_spark_over_live_files_keeps_the_texts_of_partitions(tmp_path: Path, on_spark: Programs) -> None:
    asked = STATES["partitioned"](tmp_path)
    chosen = f"{recipe(SECTION, asked)}table = table.where(\"part = '01'\")\n"
    done = on_spark.run("tests.spark.table_of_recipe", chosen)
    assert done.code == 0, done.errors[-2000:]
    *_, rows, _columns = done.output.splitlines()
    assert int(rows) == sum(row["part"] == "01" for row in asked.rows) > 0
