"""Registers the Delta table itself in AWS's Glue Data Catalog, for engines that find Delta tables there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
from pyiceberg.catalog import Catalog

from tidemark.catalogs import CatalogSettings
from tidemark_spark.mirror import delta_entry
from tidemark_spark.mirror.mirrored_table import TABLE

if TYPE_CHECKING:
    from pyiceberg.catalog.glue import GlueCatalog


def register(
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
        glue.create_table(DatabaseName=database, TableInput=_wanted(name, url, columns, by, {}))
        return
    delta_entry.check_ours(settings, name, existing.get("Parameters", {}), url)
    wanted = _wanted(name, url, columns, by, existing)
    if any(existing.get(key) != value for key, value in wanted.items()):
        glue.update_table(DatabaseName=database, TableInput=wanted, SkipArchive=True)


def _wanted(name: str, url: str, columns: pa.Schema, by: Sequence[str], existing: Mapping[str, Any]) -> Any:
    """The wanted entry. Descriptions, comments and others' parameters of the existing entry stay."""
    before = existing.get("StorageDescriptor", {})
    known = {column["Name"]: column for column in (*before.get("Columns", ()), *existing.get("PartitionKeys", ()))}
    listed = [
        {**known.get(field.name, {}), "Name": field.name, "Type": delta_entry.hive_type(field.type, field.name)}
        for field in columns
    ]
    return {
        **{key: existing[key] for key in ("Description", "Owner") if key in existing},
        "Name": name,
        "TableType": delta_entry.EXTERNAL,
        "Parameters": {**existing.get("Parameters", {}), **delta_entry.KINDS, TABLE: url},
        "StorageDescriptor": {
            **before,
            "InputFormat": delta_entry.INPUT_FORMAT,
            "OutputFormat": delta_entry.OUTPUT_FORMAT,
            "Columns": [column for column in listed if column["Name"] not in by],
            "Location": url,
            "SerdeInfo": {
                "SerializationLibrary": delta_entry.SERDE,
                "Parameters": delta_entry.serde_parameters(url),
            },
        },
        "PartitionKeys": sorted(
            (column for column in listed if column["Name"] in by), key=lambda column: by.index(column["Name"])
        ),
    }
