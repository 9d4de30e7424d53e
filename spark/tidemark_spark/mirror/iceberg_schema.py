"""A table's columns and files in Iceberg's terms. Pure.

Source: https://iceberg.apache.org/spec (types, promotion, bounds).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import Any, Final

import pyarrow as pa
from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)

from tidemark.errors import MirrorError
from tidemark.formats.table.partitioning import partition_values
from tidemark.parsers.partition_columns import typed
from tidemark_spark.mirror.delta_versions import ListedFile

_EPOCH: Final = date(1970, 1, 1)
_SIMPLE: Final[dict[pa.DataType, IcebergType]] = {
    pa.bool_(): BooleanType(),
    pa.int8(): IntegerType(),
    pa.int16(): IntegerType(),
    pa.int32(): IntegerType(),
    pa.int64(): LongType(),
    pa.float32(): FloatType(),
    pa.float64(): DoubleType(),
    pa.string(): StringType(),
    pa.binary(): BinaryType(),
    pa.date32(): DateType(),
    pa.timestamp("us", "UTC"): TimestamptzType(),
}


def iceberg_type(kind: pa.DataType, path: str, ids: Mapping[str, int]) -> IcebergType:
    """The type of the column at ``path``, with the ids of its nested fields.

    Raises:
        MirrorError: Iceberg has no such type.
    """
    if isinstance(kind, pa.ListType):
        inner = f"{path}.element"
        element = iceberg_type(kind.value_type, inner, ids)
        return ListType(ids[inner], element, element_required=False)
    if isinstance(kind, pa.StructType):
        inner_fields = (
            NestedField(ids[f"{path}.{field.name}"], field.name, iceberg_type(field.type, f"{path}.{field.name}", ids))
            for field in kind
        )
        return StructType(*inner_fields)
    if isinstance(kind, pa.Decimal128Type):
        return DecimalType(kind.precision, kind.scale)
    simple = _SIMPLE.get(kind)
    if simple is None:
        raise MirrorError(f"column {path}: Iceberg has no type for {kind}, so no catalog can list the table")
    return simple


def expected_schema(columns: pa.Schema, ids: Mapping[str, int]) -> Schema:
    """The schema that a catalog must have for a table with these ``columns``."""
    fields = (NestedField(ids[field.name], field.name, iceberg_type(field.type, field.name, ids)) for field in columns)
    return Schema(*fields)


def data_file(file: ListedFile, root: str, columns: pa.Schema, ids: Mapping[str, int], spec_id: int) -> DataFile:
    """A file of the table at ``root`` (a URL), partitioned by the identity of the columns of its folder."""
    folder = partition_values(file.path)
    kinds: dict[str, Any] = {"kafka_partition": IntegerType(), "kafka_offset": LongType()}
    limits = [(ids[name], kinds.get(name, TimestamptzType()), low, high) for name, low, high in file.bounds]
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"{root}/{file.path}",
        file_format=FileFormat.PARQUET,
        partition=Record(*(_partition_value(text, columns.field(name).type) for name, text in folder.items())),
        record_count=file.rows,
        file_size_in_bytes=file.size,
        value_counts={number: file.rows for number, *_ in limits},
        null_value_counts={number: 0 for number, *_ in limits},
        lower_bounds={number: to_bytes(kind, low) for number, kind, low, _ in limits},
        upper_bounds={number: to_bytes(kind, high) for number, kind, _, high in limits},
        spec_id=spec_id,
    )


def _partition_value(text: str | None, kind: pa.DataType) -> str | int | None:
    value = None if text is None else typed(text, kind)
    return (value - _EPOCH).days if isinstance(value, date) else value
