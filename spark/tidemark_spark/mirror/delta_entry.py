"""The entry of a Delta table in a catalog of Hive's kind: Hive's metastore, or AWS's Glue, which imitates it.

Sources: https://docs.aws.amazon.com/athena/latest/ug/delta-lake-tables.html (Athena takes the location from Glue, and
all else from the log; Lake Formation and views need the columns, too), and Trino's
``HiveMetastoreBackedDeltaLakeMetastore`` (the location is the parameter ``path`` of the SerDe, the kind is
``spark.sql.sources.provider``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pyarrow as pa

from tidemark.catalogs import CatalogSettings
from tidemark.errors import MirrorError
from tidemark_spark.mirror.mirrored_table import TABLE

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
