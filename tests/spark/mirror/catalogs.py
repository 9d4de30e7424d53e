"""A catalog beside a world's stores, and readers of what it lists that share no code with the mirror."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import duckdb
import duckdb_extension_avro
import duckdb_extension_iceberg
from deltalake import DeltaTable
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.table import Table
from typing_extensions import override

from tests.spark.convert.test_parsers import json_parser, records
from tests.spark.world import World
from tests.support.glue import REGION, GlueServer
from tests.support.hive import HiveMetastore
from tests.support.iceberg import JavaReader, RestCatalogs, SparkReader
from tests.tidemark.kafka_log.build import batch
from tidemark.catalogs import CatalogSettings
from tidemark.formats.table.statuses import MirrorState
from tidemark_spark.mirror.catalog import open_catalog
from tidemark_spark.mirror.listed_table import ListedTable
from tidemark_spark.mirror.mirror import mirror
from tidemark_spark.mirror.mirrored_table import MirroredTable

NAME: Final = "kafka.orders"

KAFKA: Final = [
    ("kafka_incarnation", "int"),
    ("kafka_partition", "int"),
    ("kafka_offset", "bigint"),
    ("kafka_timestamp", "timestamp"),
    ("kafka_timestamp_type", "string"),
    ("kafka_key", "binary"),
    ("kafka_value", "binary"),
    ("kafka_headers", "array<struct<key:string,value:binary>>"),
    ("kafka_leader_epoch", "int"),
]
"""The columns of Kafka's that a table has, by the names that Hive has for their types."""

WIDE = json_parser("{name: id, type: int32}", "{name: d, type: 'decimal(9,2)'}", "{name: l, type: 'list<int64>'}")
NARROW = json_parser("{name: id, type: int32}")


def sql_catalog(folder: Path, **more: object) -> CatalogSettings:
    """A catalog in SQLite."""
    fields = {"name": "local", "kind": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}"}
    return CatalogSettings.model_validate({**fields, "namespace": "kafka", **more})


class Beside:
    """A catalog beside each folder with stores: in SQLite, unless a test asks for others (the fixture ``kind``)."""

    def settings(self, folder: Path) -> CatalogSettings:
        """How the catalog of ``folder`` is reached."""
        return sql_catalog(folder)

    def others(self, settings: CatalogSettings) -> Iterator[list[dict[str, Any]]]:
        """The rows as readers have them that know only this kind of catalog."""
        return iter(())


class RestBeside(Beside):
    """Iceberg's REST catalogs, which Iceberg's own ``readers`` read, too."""

    def __init__(self, catalogs: RestCatalogs, readers: Sequence[JavaReader | SparkReader], until: ExitStack) -> None:
        """The catalogs live ``until`` the test's end."""
        self._catalogs, self._readers, self._until = catalogs, readers, until
        self._uris: dict[Path, str] = {}

    @override
    def settings(self, folder: Path) -> CatalogSettings:
        if folder not in self._uris:
            self._uris[folder] = self._until.enter_context(self._catalogs.catalog())
        return CatalogSettings(name="local", kind="rest", uri=self._uris[folder], namespace="kafka")

    @override
    def others(self, settings: CatalogSettings) -> Iterator[list[dict[str, Any]]]:
        assert settings.uri is not None
        for one in self._readers:
            yield one.rows(settings.uri, NAME).to_pylist()


class Forgetful(Beside):
    """One catalog for all tests, which forgets the stores of one folder when those of another come."""

    def __init__(self, server: GlueServer | HiveMetastore, settings: Callable[[Path], CatalogSettings]) -> None:
        """The ``server`` answers already; ``settings`` are how it is reached for what lies in a folder."""
        self._server, self._settings = server, settings
        self._folder: Path | None = None

    @override
    def settings(self, folder: Path) -> CatalogSettings:
        if folder != self._folder:
            self._server.forget()
            self._folder = folder
        return self._settings(folder)


def glue_catalog(server: GlueServer, folder: Path, **more: object) -> CatalogSettings:
    """The catalog of ``server``, whose warehouse is in ``folder``. Clients take credentials from the environment."""
    properties = {"glue.endpoint": server.endpoint, "glue.region": REGION}
    fields = {"name": "local", "kind": "glue", "warehouse": f"file://{folder}", "properties": properties}
    return CatalogSettings.model_validate({**fields, "namespace": "kafka", **more})


def hive_catalog(metastore: HiveMetastore, **more: object) -> CatalogSettings:
    """The catalog of ``metastore``."""
    fields = {"name": "local", "kind": "hive", "uri": metastore.uri, "properties": {"hive.hive2-compatible": "true"}}
    return CatalogSettings.model_validate({**fields, "namespace": "kafka", **more})


beside = Beside()
"""What this test uses."""


def settings_of(world: World) -> CatalogSettings:
    """The catalog beside the stores of ``world``."""
    return beside.settings(world.topics_file.parent)


def mirrored(world: World, settings: CatalogSettings | None = None) -> MirroredTable:
    """The table of ``world`` in its catalog."""
    settings = settings or settings_of(world)
    return MirroredTable(world.table, settings, open_catalog(world.table.deployment, settings))


def listed(world: World, settings: CatalogSettings | None = None) -> MirrorState | None:
    """List all that has landed, and hold what the catalog lists against the Delta log."""
    settings = settings or settings_of(world)
    state = mirror(ListedTable(world.table), settings, mirrored(world, settings))
    if state is not None:
        check(world, settings)
    return state


def reader(settings: CatalogSettings) -> Catalog:
    """The catalog as anybody has it, with pyiceberg's own access to files."""
    properties = {"type": settings.kind, "uri": settings.uri, "warehouse": settings.warehouse, **settings.properties}
    return load_catalog(settings.name, **properties)


def iceberg(world: World, settings: CatalogSettings | None = None) -> Table:
    """The catalog's table as any reader has it."""
    return reader(settings or settings_of(world)).load_table(NAME)


def narrow_world(folder: Path) -> World:
    """A table with one column of a parser's (:data:`NARROW`), and two rows."""
    world = World(folder, NARROW)
    world.raw.segment([batch(0, records(b'{"id":1}', b'{"id":2}'))])
    world.land()
    return world


def by_offset(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """``rows`` in order."""
    return sorted(rows, key=lambda row: (row["kafka_incarnation"], row["kafka_partition"], row["kafka_offset"]))


def delta_rows(world: World) -> list[dict[str, Any]]:
    """The rows as delta-rs reads them."""
    return by_offset(DeltaTable(world.table.url).to_pyarrow_table().to_pylist())


def paths(table: Table) -> dict[str, tuple[int, int]]:
    """Size and rows of each file that the current snapshot lists, by its name below the table."""
    root = f"{table.location()}/"
    files = table.inspect.files().to_pylist()
    return {one["file_path"].removeprefix(root): (one["file_size_in_bytes"], one["record_count"]) for one in files}


def check(world: World, settings: CatalogSettings | None = None) -> None:
    """Every row and every file of the Delta log is in the catalog's table, once, with the same sums in the summary."""
    delta, table = DeltaTable(world.table.url), iceberg(world, settings)
    rows = delta_rows(world)
    settings = settings or settings_of(world)
    for found in (table.scan().to_arrow().to_pylist(), *beside.others(settings)):
        assert by_offset(found) == rows
    actions = delta.get_add_actions(flatten=True)
    columns = {name: actions.column(name).to_pylist() for name in ("path", "size_bytes", "num_records")}
    there = dict(zip(columns["path"], zip(columns["size_bytes"], columns["num_records"], strict=True), strict=True))
    assert paths(table) == {unquote(path): one for path, one in there.items()}
    assert len(table.inspect.files()) == len(there)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    sums = {name: snapshot.summary[name] for name in ("total-records", "total-data-files", "tidemark.delta-version")}
    version = int(sums["tidemark.delta-version"] or 0)
    assert sums["total-records"] == str(len(rows)), sums
    assert sums["total-data-files"] == str(len(there))
    assert version <= delta.version()
    names = [field.name for field in delta.schema().fields]
    if settings.kind == "hive":
        names = ["dt", *(name for name in names if name != "dt")]
    assert [field.name for field in table.schema().fields] == names


def load_iceberg(connection: duckdb.DuckDBPyConnection) -> None:
    """Give ``connection`` DuckDB's reader of Iceberg tables."""
    for module, name in ((duckdb_extension_avro, "avro"), (duckdb_extension_iceberg, "iceberg")):
        [folder] = module.__path__
        connection.load_extension(f"{folder}/extensions/v{duckdb.__version__}/{name}.duckdb_extension")


@contextmanager
def duck() -> Iterator[duckdb.DuckDBPyConnection]:
    """DuckDB with its reader of Iceberg tables, which come as wheels."""
    connection = duckdb.connect()
    load_iceberg(connection)
    try:
        yield connection
    finally:
        connection.close()


def duck_rows(world: World, columns: str = "*") -> list[tuple[Any, ...]]:
    """The rows as DuckDB reads the metadata that the catalog names."""
    place = urlsplit(iceberg(world).metadata_location).path
    with duck() as connection:
        order = "kafka_incarnation, kafka_partition, kafka_offset"
        found: list[tuple[Any, ...]] = connection.execute(
            f"SELECT {columns} FROM iceberg_scan('{place}') ORDER BY {order}"  # noqa: S608 - our own path
        ).fetchall()
        return found
