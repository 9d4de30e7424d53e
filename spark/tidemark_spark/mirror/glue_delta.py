"""The Delta table itself in AWS's Glue Data Catalog, for engines that know Delta tables by it.

Sources: https://docs.aws.amazon.com/athena/latest/ug/delta-lake-tables.html (Athena takes the location from Glue, and
all else from the log; Lake Formation and views need the columns, too), and Trino's
``HiveMetastoreBackedDeltaLakeMetastore`` (the location is the parameter ``path`` of the SerDe, the kind is
``spark.sql.sources.provider``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, cast

import pyarrow as pa
from pyiceberg.catalog import Catalog

from tidemark.catalogs import CatalogSettings, delta_table
from tidemark.errors import MirrorError
from tidemark.table.delta_table import TopicTable
from tidemark_spark.convert.field_ids import DT
from tidemark_spark.mirror.mirrored_table import TABLE

if TYPE_CHECKING:
    from pyiceberg.catalog.glue import GlueCatalog

_SIMPLE: Final[dict[pa.DataType, str]] = {
    pa.bool_(): "boolean",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.date32(): "date",
    pa.timestamp("us", "UTC"): "timestamp",
}
# Nobody reads files by these: the engines know a Delta table. Hive's API wants them, and these are Spark's.
_FORMATS: Final = {
    "InputFormat": "org.apache.hadoop.mapred.SequenceFileInputFormat",
    "OutputFormat": "org.apache.hadoop.hive.ql.io.HiveSequenceFileOutputFormat",
}
_SERDE: Final = "org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe"


def register_delta(catalog: Catalog, settings: CatalogSettings, table: TopicTable, columns: pa.Schema) -> None:
    """Register ``table`` with ``columns`` if the settings ask for it, or change what is registered if it differs.

    Whatever Glue raises passes through.

    Raises:
        MirrorError: a table of this name is somebody else's, or Glue has no type for a column.
    """
    if settings.delta_suffix is None:
        return
    glue, database = cast("GlueCatalog", catalog).glue, settings.namespace
    name = delta_table(table.topic.table, settings.delta_suffix)
    try:
        there: Mapping[str, Any] = glue.get_table(DatabaseName=database, Name=name)["Table"]
    except glue.exceptions.EntityNotFoundException:
        glue.create_table(DatabaseName=database, TableInput=_wanted(name, table.url, columns, {}))
        return
    if there.get("Parameters", {}).get(TABLE) != table.url:
        rule = f"was not made by Tidemark for {table.url}; remove it there, or name another delta_suffix"
        raise MirrorError(f"catalog {settings.name}: {database}.{name} {rule}")
    wanted = _wanted(name, table.url, columns, there)
    if any(there.get(key) != value for key, value in wanted.items()):
        glue.update_table(DatabaseName=database, TableInput=wanted, SkipArchive=True)


def _wanted(name: str, url: str, columns: pa.Schema, there: Mapping[str, Any]) -> Any:
    """What Glue is to have. Of what is there, descriptions, comments and others' parameters stay."""
    before = there.get("StorageDescriptor", {})
    known = {one["Name"]: one for one in (*before.get("Columns", ()), *there.get("PartitionKeys", ()))}
    listed = [{**known.get(one.name, {}), "Name": one.name, "Type": hive_type(one.type, one.name)} for one in columns]
    kinds = {"EXTERNAL": "TRUE", "table_type": "DELTA", "spark.sql.sources.provider": "delta"}
    serde = {"SerializationLibrary": _SERDE, "Parameters": {"path": url, "serialization.format": "1"}}
    return {
        **{key: there[key] for key in ("Description", "Owner") if key in there},
        "Name": name,
        "TableType": "EXTERNAL_TABLE",
        "Parameters": {**there.get("Parameters", {}), **kinds, TABLE: url},
        "StorageDescriptor": {
            **before,
            **_FORMATS,
            "Columns": [one for one in listed if one["Name"] != DT.name],
            "Location": url,
            "SerdeInfo": serde,
        },
        "PartitionKeys": [one for one in listed if one["Name"] == DT.name],
    }


def hive_type(kind: pa.DataType, path: str) -> str:
    """The type of the column at ``path`` as Glue writes it.

    Raises:
        MirrorError: Glue has no such type.
    """
    if isinstance(kind, pa.ListType):
        return f"array<{hive_type(kind.value_type, f'{path}.element')}>"
    if isinstance(kind, pa.StructType):
        fields = [f"{one.name}:{hive_type(one.type, f'{path}.{one.name}')}" for one in kind]
        return f"struct<{','.join(fields)}>"
    if isinstance(kind, pa.Decimal128Type):
        return f"decimal({kind.precision},{kind.scale})"
    if kind not in _SIMPLE:
        raise MirrorError(f"column {path}: Glue has no type for {kind}, so the Delta table cannot be registered there")
    return _SIMPLE[kind]
