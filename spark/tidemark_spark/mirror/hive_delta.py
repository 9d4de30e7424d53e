"""Registers the Delta table itself in Hive's metastore, for engines that find Delta tables there."""

from __future__ import annotations

import re
from collections.abc import Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Final, cast

import pyarrow as pa
from hive_metastore.ttypes import (
    EnvironmentContext,
    FieldSchema,
    NoSuchObjectException,
    SerDeInfo,
    StorageDescriptor,
    Table,
)
from pyiceberg.catalog import Catalog

from tidemark.catalogs import CatalogSettings
from tidemark_spark.mirror import delta_entry
from tidemark_spark.mirror.mirrored_table import TABLE

if TYPE_CHECKING:
    from pyiceberg.catalog.hive import HiveCatalog

_QUIET: Final = {"DO_NOT_UPDATE_STATS": "true"}
"""Without this, the metastore lists all files of the table to count their bytes."""


def register(
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
                _wanted(Table(tableName=name, dbName=database), url, columns, by), EnvironmentContext(_QUIET)
            )
            return
        delta_entry.check_ours(settings, name, existing.parameters, url)
        wanted = _wanted(existing, url, columns, by)
        if _compared(wanted) != _compared(existing):
            metastore.alter_table_with_environment_context(database, name, wanted, EnvironmentContext(_QUIET))


def _wanted(existing: Any, url: str, columns: pa.Schema, by: Sequence[str]) -> Any:
    """The wanted entry. Comments, the owner and others' parameters of the ``existing`` entry stay."""
    table = deepcopy(existing)
    before = table.sd.cols if table.sd else []
    comments = {column.name: column.comment for column in (*before, *(table.partitionKeys or ()))}
    keys = [name.lower() for name in by]
    listed = [
        FieldSchema(field.name.lower(), delta_entry.hive_type(field.type, field.name), comments.get(field.name.lower()))
        for field in columns
    ]
    table.tableType = delta_entry.EXTERNAL
    table.parameters = {**(table.parameters or {}), **delta_entry.KINDS, TABLE: url}
    table.sd = table.sd or StorageDescriptor(parameters={}, bucketCols=[], sortCols=[])
    table.sd.cols = [column for column in listed if column.name not in keys]
    table.sd.location = url
    table.sd.inputFormat, table.sd.outputFormat = delta_entry.INPUT_FORMAT, delta_entry.OUTPUT_FORMAT
    table.sd.serdeInfo = SerDeInfo(None, delta_entry.SERDE, delta_entry.serde_parameters(url))
    table.partitionKeys = sorted(
        (column for column in listed if column.name in keys), key=lambda column: keys.index(column.name)
    )
    return table


def _compared(table: Any) -> tuple[object, ...]:
    """The values that :func:`_wanted` sets, for comparison."""
    columns = [(column.name, column.type, column.comment) for column in (*table.sd.cols, *table.partitionKeys)]
    serde = table.sd.serdeInfo
    return (
        *(table.tableType, table.parameters, columns),
        # The metastore writes file:///a as file:/a.
        *(re.sub("^file:/+", "file:///", table.sd.location), table.sd.inputFormat, table.sd.outputFormat),
        *(serde.serializationLib, serde.parameters),
    )
