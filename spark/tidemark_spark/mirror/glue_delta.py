"""The Delta table itself in AWS's Glue Data Catalog, for engines that know Delta tables by it."""

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
    """Register the Delta table at ``url``, partitioned ``by`` some columns, as ``name``.

    What is registered is changed if it differs.

    Whatever Glue raises passes through.

    Raises:
        MirrorError: a table of this name is somebody else's, or Glue has no type for a column.
    """
    glue, database = cast("GlueCatalog", catalog).glue, settings.namespace
    try:
        there: Mapping[str, Any] = glue.get_table(DatabaseName=database, Name=name)["Table"]
    except glue.exceptions.EntityNotFoundException:
        glue.create_table(DatabaseName=database, TableInput=_wanted(name, url, columns, by, {}))
        return
    delta_entry.check_ours(settings, name, there.get("Parameters", {}), url)
    wanted = _wanted(name, url, columns, by, there)
    if any(there.get(key) != value for key, value in wanted.items()):
        glue.update_table(DatabaseName=database, TableInput=wanted, SkipArchive=True)


def _wanted(name: str, url: str, columns: pa.Schema, by: Sequence[str], there: Mapping[str, Any]) -> Any:
    """What Glue is to have. Of what is there, descriptions, comments and others' parameters stay."""
    before = there.get("StorageDescriptor", {})
    known = {one["Name"]: one for one in (*before.get("Columns", ()), *there.get("PartitionKeys", ()))}
    listed = [
        {**known.get(one.name, {}), "Name": one.name, "Type": delta_entry.hive_type(one.type, one.name)}
        for one in columns
    ]
    return {
        **{key: there[key] for key in ("Description", "Owner") if key in there},
        "Name": name,
        "TableType": delta_entry.EXTERNAL,
        "Parameters": {**there.get("Parameters", {}), **delta_entry.KINDS, TABLE: url},
        "StorageDescriptor": {
            **before,
            "InputFormat": delta_entry.INPUT_FORMAT,
            "OutputFormat": delta_entry.OUTPUT_FORMAT,
            "Columns": [one for one in listed if one["Name"] not in by],
            "Location": url,
            "SerdeInfo": {
                "SerializationLibrary": delta_entry.SERDE,
                "Parameters": delta_entry.serde_parameters(url),
            },
        },
        "PartitionKeys": sorted((one for one in listed if one["Name"] in by), key=lambda one: by.index(one["Name"])),
    }
