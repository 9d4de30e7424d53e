"""Registers the Delta table itself in a catalog of Hive's kind, for engines that find Delta tables there.

That is Hive's metastore, or AWS's Glue, which imitates it.

Sources: https://docs.aws.amazon.com/athena/latest/ug/delta-lake-tables.html (Athena takes the location from Glue, and
all else from the log; Lake Formation and views need the columns, too), and Trino's
``HiveMetastoreBackedDeltaLakeMetastore`` (the location is the parameter ``path`` of the SerDe, the kind is
``spark.sql.sources.provider``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

import pyarrow as pa
from pyiceberg.catalog import Catalog

from tidemark.catalogs import CatalogSettings
from tidemark.errors import MirrorError
from tidemark_spark.mirror.mirrored_table import TABLE

if TYPE_CHECKING:
    from pyiceberg.catalog.glue import GlueCatalog
import re
from copy import deepcopy

from hive_metastore.ttypes import (
    EnvironmentContext,
    FieldSchema,
    NoSuchObjectException,
    SerDeInfo,
    StorageDescriptor,
    Table,
)

if TYPE_CHECKING:
    from pyiceberg.catalog.hive import HiveCatalog

EXTERNAL: Final = "EXTERNAL_TABLE"
KINDS: Final = {"EXTERNAL": "TRUE", "table_type": "DELTA", "spark.sql.sources.provider": "delta"}
"""Parameters of the table."""

# Engines recognize a Delta table and do not use these formats. Hive's API requires some; these are Spark's.
INPUT_FORMAT: Final = "org.apache.hadoop.mapred.SequenceFileInputFormat"
OUTPUT_FORMAT: Final = "org.apache.hadoop.hive.ql.io.HiveSequenceFileOutputFormat"
SERDE: Final = "org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe"

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


def serde_parameters(url: str) -> dict[str, str]:
    """Parameters of the SerDe, for the table at ``url``."""
    return {"path": url, "serialization.format": "1"}


def check_ours(settings: CatalogSettings, name: str, parameters: Mapping[str, str], url: str) -> None:
    """Refuse to touch a table ``name`` if its ``parameters`` do not name the table at ``url``.

    Raises:
        MirrorError: another program made the table.
    """
    if parameters.get(TABLE) != url:
        rule = f"was not made by Tidemark for {url}; remove it there, or name another delta_suffix"
        raise MirrorError(f"catalog {settings.name}: {settings.namespace}.{name} {rule}")


def hive_type(kind: pa.DataType, path: str) -> str:
    """Hive's name of the type of the column at ``path``.

    Raises:
        MirrorError: Hive has no such type.
    """
    if isinstance(kind, pa.ListType):
        return f"array<{hive_type(kind.value_type, f'{path}.element')}>"
    if isinstance(kind, pa.StructType):
        fields = [f"{field.name}:{hive_type(field.type, f'{path}.{field.name}')}" for field in kind]
        return f"struct<{','.join(fields)}>"
    if isinstance(kind, pa.Decimal128Type):
        return f"decimal({kind.precision},{kind.scale})"
    if kind not in _SIMPLE:
        raise MirrorError(f"column {path}: Hive has no type for {kind}, so the Delta table cannot be registered there")
    return _SIMPLE[kind]


def register_in_glue(
    catalog: Catalog, settings: CatalogSettings, name: str, url: str, columns: pa.Schema, by: Sequence[str]
) -> None:
    """Register the Delta table at ``url``, partitioned ``by`` some columns, as ``name``, or update its entry.

    Errors of Glue are passed on.

    Raises:
        MirrorError: another program made a table of this name, or Glue has no type for a column.
    """
    glue, database = cast("GlueCatalog", catalog).glue, settings.namespace
    try:
        existing: Mapping[str, Any] = glue.get_table(DatabaseName=database, Name=name)["Table"]
    except glue.exceptions.EntityNotFoundException:
        glue.create_table(DatabaseName=database, TableInput=_glue_entry(name, url, columns, by, {}))
        return
    check_ours(settings, name, existing.get("Parameters", {}), url)
    wanted = _glue_entry(name, url, columns, by, existing)
    if any(existing.get(key) != value for key, value in wanted.items()):
        glue.update_table(DatabaseName=database, TableInput=wanted, SkipArchive=True)


def _glue_entry(name: str, url: str, columns: pa.Schema, by: Sequence[str], existing: Mapping[str, Any]) -> Any:
    """The wanted entry. Descriptions, comments and others' parameters of the existing entry stay."""
    before = existing.get("StorageDescriptor", {})
    known = {column["Name"]: column for column in (*before.get("Columns", ()), *existing.get("PartitionKeys", ()))}
    listed = [
        {**known.get(field.name, {}), "Name": field.name, "Type": hive_type(field.type, field.name)}
        for field in columns
    ]
    return {
        **{key: existing[key] for key in ("Description", "Owner") if key in existing},
        "Name": name,
        "TableType": EXTERNAL,
        "Parameters": {**existing.get("Parameters", {}), **KINDS, TABLE: url},
        "StorageDescriptor": {
            **before,
            "InputFormat": INPUT_FORMAT,
            "OutputFormat": OUTPUT_FORMAT,
            "Columns": [column for column in listed if column["Name"] not in by],
            "Location": url,
            "SerdeInfo": {
                "SerializationLibrary": SERDE,
                "Parameters": serde_parameters(url),
            },
        },
        "PartitionKeys": sorted(
            (column for column in listed if column["Name"] in by), key=lambda column: by.index(column["Name"])
        ),
    }


_QUIET: Final = {"DO_NOT_UPDATE_STATS": "true"}
"""Without this, the metastore lists all files of the table to count their bytes."""


def register_in_hive(
    catalog: Catalog, settings: CatalogSettings, name: str, url: str, columns: pa.Schema, by: Sequence[str]
) -> None:
    """Register the Delta table at ``url``, partitioned ``by`` some columns, as ``name``, or update its entry.

    Errors of the metastore are passed on.

    Raises:
        MirrorError: another program made a table of this name, or Hive has no type for a column.
    """
    database = settings.namespace
    with cast("HiveCatalog", catalog)._client as metastore:
        try:
            existing = metastore.get_table(database, name)
        except NoSuchObjectException:
            metastore.create_table_with_environment_context(
                _hive_entry(Table(tableName=name, dbName=database), url, columns, by), EnvironmentContext(_QUIET)
            )
            return
        check_ours(settings, name, existing.parameters, url)
        wanted = _hive_entry(existing, url, columns, by)
        if _compared(wanted) != _compared(existing):
            metastore.alter_table_with_environment_context(database, name, wanted, EnvironmentContext(_QUIET))


def _hive_entry(existing: Any, url: str, columns: pa.Schema, by: Sequence[str]) -> Any:
    """The wanted entry. Comments, the owner and others' parameters of the ``existing`` entry stay."""
    table = deepcopy(existing)
    before = table.sd.cols if table.sd else []
    comments = {column.name: column.comment for column in (*before, *(table.partitionKeys or ()))}
    keys = [name.lower() for name in by]
    listed = [
        FieldSchema(field.name.lower(), hive_type(field.type, field.name), comments.get(field.name.lower()))
        for field in columns
    ]
    table.tableType = EXTERNAL
    table.parameters = {**(table.parameters or {}), **KINDS, TABLE: url}
    table.sd = table.sd or StorageDescriptor(parameters={}, bucketCols=[], sortCols=[])
    table.sd.cols = [column for column in listed if column.name not in keys]
    table.sd.location = url
    table.sd.inputFormat, table.sd.outputFormat = INPUT_FORMAT, OUTPUT_FORMAT
    table.sd.serdeInfo = SerDeInfo(None, SERDE, serde_parameters(url))
    table.partitionKeys = sorted(
        (column for column in listed if column.name in keys), key=lambda column: keys.index(column.name)
    )
    return table


def _compared(table: Any) -> tuple[object, ...]:
    """The values that :func:`_hive_entry` sets, for comparison."""
    columns = [(column.name, column.type, column.comment) for column in (*table.sd.cols, *table.partitionKeys)]
    serde = table.sd.serdeInfo
    return (
        *(table.tableType, table.parameters, columns),
        # The metastore writes file:///a as file:/a.
        *(re.sub("^file:/+", "file:///", table.sd.location), table.sd.inputFormat, table.sd.outputFormat),
        *(serde.serializationLib, serde.parameters),
    )
