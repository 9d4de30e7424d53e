"""Delta tables in Glue: beside the mirror, as the log has them, and only ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import boto3
import pytest
from deltalake import DeltaTable

from tests.spark.convert.test_parsers import records
from tests.spark.mirror.catalogs import (
    KAFKA,
    NARROW,
    WIDE,
    by_offset,
    check,
    delta_rows,
    glue_catalog,
    iceberg,
    listed,
    narrow_world,
)
from tests.spark.rebuild.rebuilds import changed
from tests.spark.world import World
from tests.support.glue import REGION, GlueServer
from tests.tidemark.kafka_log.build import batch
from tidemark.errors import MirrorError


class InGlue:
    """A catalog that is empty at first, with the Delta tables themselves, as anybody asks for them."""

    def __init__(self, server: GlueServer, folder: Path) -> None:
        server.forget()
        self.settings = glue_catalog(server, folder, delta_suffix="_delta")
        self.client = boto3.client("glue", endpoint_url=server.endpoint, region_name=REGION)

    @property
    def table(self) -> dict[str, Any]:
        """The Delta table."""
        found: dict[str, Any] = self.client.get_table(DatabaseName="kafka", Name="orders_delta")["Table"]
        return found

    @property
    def columns(self) -> list[tuple[str, str]]:
        """Names and types."""
        return [(one["Name"], one["Type"]) for one in self.table["StorageDescriptor"]["Columns"]]

    @property
    def versions(self) -> int:
        """How often it was made or changed."""
        return len(self.client.get_table_versions(DatabaseName="kafka", TableName="orders_delta")["TableVersions"])

    def change(self, **more: Any) -> None:
        """What a person does."""
        kept = ("Name", "TableType", "Parameters", "StorageDescriptor", "PartitionKeys")
        table = self.table
        self.client.update_table(DatabaseName="kafka", TableInput={**{one: table[one] for one in kept}, **more})


@pytest.fixture
def glue(glue_server: GlueServer, tmp_path: Path) -> InGlue:
    return InGlue(glue_server, tmp_path)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return narrow_world(tmp_path)


def test_the_delta_table_is_registered_beside_the_mirror(world: World, glue: InGlue) -> None:
    listed(world, glue.settings)
    table = glue.table
    assert table["TableType"] == "EXTERNAL_TABLE"
    assert table["Parameters"].items() >= {"table_type": "DELTA", "spark.sql.sources.provider": "delta"}.items()
    places = table["StorageDescriptor"]["Location"], table["StorageDescriptor"]["SerdeInfo"]["Parameters"]["path"]
    assert places == (world.table.url, world.table.url)
    assert by_offset(DeltaTable(places[0]).to_pyarrow_table().to_pylist()) == delta_rows(world)
    assert glue.columns == [*KAFKA, ("id", "int")]
    assert [(one["Name"], one["Type"]) for one in table["PartitionKeys"]] == [("dt", "date")]
    listed(world, glue.settings)
    assert glue.versions == 1, "nothing differs"


def test_columns_that_come_later_are_registered_and_what_people_wrote_stays(world: World, glue: InGlue) -> None:
    listed(world, glue.settings)
    table = glue.table
    table["StorageDescriptor"]["Columns"][-1]["Comment"] = "of the order"
    parameters = {**table["Parameters"], "team": "sales"}
    glue.change(Description="Orders", Parameters=parameters, StorageDescriptor=table["StorageDescriptor"])
    later = changed(world, WIDE)
    later.raw.segment([batch(2, records(b'{"id":3,"d":1.5,"l":[1]}'))])
    later.land()
    listed(later, glue.settings)
    assert glue.columns == [*KAFKA, ("id", "int"), ("d", "decimal(9,2)"), ("l", "array<bigint>")]
    assert glue.table["Description"] == "Orders"
    assert glue.table["Parameters"]["team"] == "sales"
    assert glue.table["StorageDescriptor"]["Columns"][len(KAFKA)]["Comment"] == "of the order"
    assert glue.versions == 3
    assert len(iceberg(later, glue.settings).schema().fields) == len(KAFKA) + 4


def test_what_somebody_changed_is_put_right(world: World, glue: InGlue) -> None:
    listed(world, glue.settings)
    glue.change(StorageDescriptor={**glue.table["StorageDescriptor"], "Location": "s3://elsewhere/orders"})
    listed(world, glue.settings)
    assert glue.table["StorageDescriptor"]["Location"] == world.table.url


def test_a_table_of_the_same_name_is_left_alone(world: World, glue: InGlue) -> None:
    glue.client.create_database(DatabaseInput={"Name": "kafka"})
    own = {"Name": "orders_delta", "StorageDescriptor": {"Location": "s3://theirs"}}
    glue.client.create_table(DatabaseName="kafka", TableInput=own)
    with pytest.raises(MirrorError, match=r"kafka\.orders_delta was not made by Tidemark .* name another delta_suffix"):
        listed(world, glue.settings)
    assert glue.table["StorageDescriptor"] == {"Location": "s3://theirs"}
    check(world, glue.settings)


def test_without_a_suffix_there_is_the_mirror_alone(world: World, glue: InGlue) -> None:
    listed(world, glue.settings.model_copy(update={"delta_suffix": None}))
    found = glue.client.get_tables(DatabaseName="kafka")["TableList"]
    assert [(one["Name"], one["Parameters"]["table_type"]) for one in found] == [("orders", "ICEBERG")]


def test_partitions_of_dates_are_keys_there_in_their_order(glue: InGlue, tmp_path: Path) -> None:
    world = World(tmp_path, "partition_by: [dt, hour, {column: id, values: [1]}]", NARROW)
    world.raw.segment([batch(0, records(b'{"id": 1}'))])
    world.land()
    listed(world, glue.settings)
    keys = [(one["Name"], one["Type"]) for one in glue.table["PartitionKeys"]]
    assert keys == [("dt", "date"), ("hour", "int"), ("id", "int")]
    assert not {name for name, _ in glue.columns} & {"dt", "hour", "id"}
