"""The example of docs/reading.md for Spark 4.1."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.spark.convert.test_parsers import records
from tests.spark.mirror.catalogs import by_offset, delta_rows, mirrored
from tests.spark.world import World
from tests.support.iceberg import RestCatalogs, SparkReader
from tests.support.paths import ROOT
from tests.tidemark.kafka_log.build import batch
from tidemark.catalogs import CatalogSettings
from tidemark_spark.mirror.listed_table import ListedTable
from tidemark_spark.mirror.mirror import mirror

NOON = 1_795_176_000_000
"""Of 2026-11-20."""
DAY = 86_400_000


@pytest.mark.full
def test_the_documented_example_reads_the_date(
    tmp_path: Path, rest_catalogs: RestCatalogs, spark_reader: SparkReader
) -> None:
    world = World(tmp_path)
    world.raw.segment([batch(0, records(b"a", b"b", b"c", at=[NOON - DAY, NOON, NOON]))])
    world.land()
    text = (ROOT / "docs" / "reading.md").read_text()
    [code] = re.findall(r"^## Spark 4\.1, by catalog\n\n```python\n(.*?)```", text, re.DOTALL | re.MULTILINE)
    with rest_catalogs.catalog() as uri:
        settings = CatalogSettings(name="analytics", kind="rest", uri=uri, namespace="kafka")
        mirror(ListedTable(world.table), settings, mirrored(world, settings))
        spark_reader.know("analytics", uri)
        scope: dict[str, Any] = {"spark": spark_reader.session}
        exec(code, scope)  # noqa: S102 - the documentation's own code
        found = spark_reader.collect(scope["found"]).to_pylist()
    wanted = [row for row in delta_rows(world) if row["dt"].isoformat() == "2026-11-20"]
    assert by_offset(found) == wanted
    assert len(wanted) == 2
