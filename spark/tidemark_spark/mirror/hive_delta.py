"""The Delta table itself in Hive's metastore, for engines that know Delta tables by it."""

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
"""Otherwise the metastore lists all files of the table to count their bytes."""


def register(
    catalog: Catalog, settings: CatalogSettings, name: str, url: str, columns: pa.Schema, by: Sequence[str]
) -> None:
    """Register the Delta table at ``url``, partitioned ``by`` some columns, as ``name``.

    What is registered is changed if it differs.

    Whatever the metastore raises passes through.

    Raises:
        MirrorError: a table of this name is somebody else's, or Hive has no type for a column.
    """
    database = settings.namespace
    with cast("HiveCatalog", catalog)._client as metastore:
        try:
            there = metastore.get_table(database, name)
        except NoSuchObjectException:
            metastore.create_table_with_environment_context(
                _wanted(Table(tableName=name, dbName=database), url, columns, by), EnvironmentContext(_QUIET)
            )
            return
        delta_entry.check_ours(settings, name, there.parameters, url)
        wanted = _wanted(there, url, columns, by)
        if _said(wanted) != _said(there):
            metastore.alter_table_with_environment_context(database, name, wanted, EnvironmentContext(_QUIET))


def _wanted(there: Any, url: str, columns: pa.Schema, by: Sequence[str]) -> Any:
    """What the metastore is to have. Of what is ``there``, comments, the owner and others' parameters stay."""
    table = deepcopy(there)
    before = table.sd.cols if table.sd else []
    comments = {one.name: one.comment for one in (*before, *(table.partitionKeys or ()))}
    keys = [name.lower() for name in by]
    listed = [
        FieldSchema(one.name.lower(), delta_entry.hive_type(one.type, one.name), comments.get(one.name.lower()))
        for one in columns
    ]
    table.tableType = delta_entry.EXTERNAL
    table.parameters = {**(table.parameters or {}), **delta_entry.KINDS, TABLE: url}
    table.sd = table.sd or StorageDescriptor(parameters={}, bucketCols=[], sortCols=[])
    table.sd.cols = [one for one in listed if one.name not in keys]
    table.sd.location = url
    table.sd.inputFormat, table.sd.outputFormat = delta_entry.INPUT_FORMAT, delta_entry.OUTPUT_FORMAT
    table.sd.serdeInfo = SerDeInfo(None, delta_entry.SERDE, delta_entry.serde_parameters(url))
    table.partitionKeys = sorted((one for one in listed if one.name in keys), key=lambda one: keys.index(one.name))
    return table


def _said(table: Any) -> tuple[object, ...]:
    """What :func:`_wanted` sets, to be compared."""
    columns = [(one.name, one.type, one.comment) for one in (*table.sd.cols, *table.partitionKeys)]
    serde = table.sd.serdeInfo
    return (
        *(table.tableType, table.parameters, columns),
        # The metastore writes file:///a as file:/a.
        *(re.sub("^file:/+", "file:///", table.sd.location), table.sd.inputFormat, table.sd.outputFormat),
        *(serde.serializationLib, serde.parameters),
    )
