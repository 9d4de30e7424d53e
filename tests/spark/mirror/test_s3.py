"""A mirror of a lake in S3: metadata are written by us, with our store's client, and by the catalog, with Hadoop's."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from tests.end_to_end.deployment import credentials
from tests.spark.compaction.test_compaction import merge, piecemeal
from tests.spark.mirror.catalogs import NAME, by_offset, delta_rows, iceberg, listed
from tests.spark.mirror.test_mirror import age, piecemeal_at
from tests.spark.world import World
from tests.support.iceberg import JavaReader, RestCatalogs
from tests.support.s3 import S3Server
from tidemark.catalogs import CatalogSettings


@pytest.mark.full
def test_a_rest_catalog_over_s3(
    starts_other: None, tmp_path: Path, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemark_spark.mirror.mirror._SLACK", 1)
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")  # for delta-rs
    name = uuid.uuid4().hex
    with (
        credentials(s3_server),
        RestCatalogs(tmp_path / "rest", s3=s3_server.endpoint) as rest,
        JavaReader(tmp_path / "java", s3=s3_server.endpoint) as java,
        rest.catalog() as uri,
    ):
        world = World(tmp_path, raw=f"s3://raw/{name}", lake=f"s3://lake/{name}")
        properties = {"s3.endpoint": s3_server.endpoint}
        fields = {"name": "local", "kind": "rest", "uri": uri, "namespace": "kafka", "properties": properties}
        settings = CatalogSettings.model_validate(fields)

        def compare() -> None:
            listed(world, settings)
            assert by_offset(java.rows(uri, NAME).to_pylist()) == delta_rows(world)

        piecemeal(world)
        compare()
        merge(world)
        compare()
        age(monkeypatch, world, hours=50)
        piecemeal_at(world, 18)
        compare()
        assert len(iceberg(world, settings).snapshots()) == 1, "and what it needs is there"
