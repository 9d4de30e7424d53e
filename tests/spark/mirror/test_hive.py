"""Hive's metastore: the mirror and the Delta table in it, as its servers are by default."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from hive_metastore.ThriftHiveMetastore import Client
from hive_metastore.ttypes import FieldSchema, SerDeInfo, StorageDescriptor, Table
from pyiceberg.catalog.hive import HiveCatalog

from tests.spark.convert.test_parsers import records
from tests.spark.mirror.catalogs import (
    KAFKA,
    WIDE,
    by_offset,
    delta_rows,
    hive_catalog,
    listed,
    narrow_world,
    reader,
)
from tests.spark.rebuild.rebuilds import changed
from tests.spark.world import World
from tests.support.hive import HiveMetastore
from tests.tidemark.kafka_log.build import batch
from tidemark.catalogs import CatalogSettings
from tidemark.errors import MirrorError


@pytest.fixture
def settings(metastore: HiveMetastore) -> CatalogSettings:
    """A metastore that is empty at first, with the Delta tables themselves."""
    metastore.forget()
    return hive_catalog(metastore, delta_suffix="_delta")


@pytest.fixture
def world(tmp_path: Path) -> World:
    return narrow_world(tmp_path)


@contextmanager
def metastore_of(settings: CatalogSettings) -> Iterator[Any]:
    """The metastore as any client has it."""
    catalog = reader(settings)
    assert isinstance(catalog, HiveCatalog)
    with catalog._client as found:
        yield found


def entry(settings: CatalogSettings, name: str = "orders_delta") -> Any:
    with metastore_of(settings) as there:
        return there.get_table("kafka", name)


def columns(settings: CatalogSettings) -> list[tuple[str, str]]:
    return [(one.name, one.type) for one in entry(settings).sd.cols]


def test_both_tables_are_there_and_follow_the_columns(world: World, settings: CatalogSettings) -> None:
    listed(world, settings)
    found = entry(settings)
    assert found.tableType == "EXTERNAL_TABLE"
    assert found.parameters.items() >= {"table_type": "DELTA", "spark.sql.sources.provider": "delta"}.items()
    assert found.sd.location == world.table.url.replace("file:///", "file:/")
    assert found.sd.serdeInfo.parameters["path"] == world.table.url
    assert by_offset(DeltaTable(world.table.url).to_pyarrow_table().to_pylist()) == delta_rows(world)
    assert columns(settings) == [*KAFKA, ("id", "int")]
    assert [(one.name, one.type) for one in found.partitionKeys] == [("dt", "date")]
    with metastore_of(settings) as there:  # what a person does
        found.sd.cols[-1].comment = "of the order"
        found.parameters["team"] = "sales"
        found.sd.location = "file:/elsewhere/orders"
        there.alter_table("kafka", "orders_delta", found)
    later = changed(world, WIDE)
    later.raw.segment([batch(2, records(b'{"id":3,"d":1.5,"l":[1]}'))])
    later.land()
    listed(later, settings)
    found = entry(settings)
    assert columns(settings) == [*KAFKA, ("id", "int"), ("d", "decimal(9,2)"), ("l", "array<bigint>")]
    assert (found.sd.cols[len(KAFKA)].comment, found.parameters["team"]) == ("of the order", "sales")
    assert found.sd.location == world.table.url.replace("file:///", "file:/")


def test_an_entry_is_written_only_if_it_differs(
    world: World, settings: CatalogSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []
    alter = Client.alter_table_with_environment_context

    def counted(client: Any, database: str, name: str, *more: Any, **named: Any) -> None:
        written.append(name)
        alter(client, database, name, *more, **named)

    listed(world, settings)
    monkeypatch.setattr(Client, "alter_table_with_environment_context", counted)
    listed(world, settings)
    assert written == []
    with metastore_of(settings) as there:
        found = there.get_table("kafka", "orders_delta")
        del found.parameters["table_type"]
        there.alter_table("kafka", "orders_delta", found)
    listed(world, settings)
    assert written == ["orders_delta"]


def test_a_table_of_the_same_name_is_left_alone(world: World, settings: CatalogSettings, tmp_path: Path) -> None:
    catalog = reader(settings)
    catalog.create_namespace("kafka", {"location": f"file://{tmp_path}/hive"})
    place = f"file:{tmp_path}/theirs"
    serde = SerDeInfo("", "org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe", {})
    parts = StorageDescriptor([FieldSchema("a", "int", None)], place, "i", "o", False, -1, serde, [], [], {})
    with metastore_of(settings) as there:
        there.create_table(Table("orders_delta", "kafka", sd=parts, partitionKeys=[], parameters={}))
    with pytest.raises(MirrorError, match=r"kafka\.orders_delta was not made by Tidemark .* name another delta_suffix"):
        listed(world, settings)
    assert entry(settings).sd.location == place
