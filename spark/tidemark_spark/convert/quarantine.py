"""Keeps refused rows and batches whole, with the reason, beside the table.

They lie under ``<table>__quarantine/dt=<date of the record's timestamp>/``, in files named like the table's; rows whose
timestamp is not sane, and batches, under ``dt=__HIVE_DEFAULT_PARTITION__/``. A file counts if the evidence of a landed
attempt names it, and no later evidence supersedes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from tidemark.decode import SCHEMA as KAFKA
from tidemark.decode import exact_milliseconds
from tidemark.decode.schema import TIMESTAMP_TYPE, array, arrow_field, representable
from tidemark.formats.table.base_columns import BASE_COLUMNS, IDENTITY
from tidemark.kafka_log import BatchHeader
from tidemark_spark.convert.date_partitioner import Numbers, numbers, take

_KEPT: Final = tuple(column for column in BASE_COLUMNS if column.optional and column.name != "kafka_timestamp")
"""The columns of a refused record that are kept unchanged. The timestamp is in milliseconds, since any value may
occur."""

_FIELDS: Final[list[pa.Field[Any]]] = [
    *(arrow_field(column) for column in BASE_COLUMNS if not column.optional),
    pa.field("next_offset", pa.int64(), nullable=False),
    pa.field("timestamp_ms", pa.int64()),
    *(arrow_field(column).with_nullable(True) for column in _KEPT),
    pa.field("batch", pa.binary()),
    pa.field("reason", pa.string(), nullable=False),
    pa.field("segment", pa.string(), nullable=False),
    pa.field("uploaded_at", TIMESTAMP_TYPE, nullable=False),
    pa.field("parser", pa.string(), nullable=False),
    pa.field("attempt", pa.int64(), nullable=False),
]
SCHEMA: Final = pa.schema(_FIELDS)
"""A row is a record, or a batch that cannot be decoded: ``batch`` then has its bytes, and record columns are null.

A row accounts for the offsets ``[kafka_offset, next_offset)``.
"""


class Origin(NamedTuple):
    """The origin of refused rows: the segment and its upload, the parser's version, and the attempt."""

    segment: str
    uploaded_at: datetime
    parser: str
    attempt: int


def refused_rows(rows: pa.RecordBatch, indices: Numbers, reasons: Mapping[int, str], origin: Origin) -> pa.RecordBatch:
    """The rows at ``indices``, with their ``reasons``."""
    milliseconds = exact_milliseconds(rows)
    chosen = take(rows, indices)
    after = numbers(chosen.column("kafka_offset")) + 1
    columns = {name: chosen.column(name) for name in (*IDENTITY, *(column.name for column in _KEPT))}
    columns |= {"next_offset": array(pa.int64(), after), "timestamp_ms": array(pa.int64(), milliseconds[indices])}
    columns |= {"reason": pa.array([reasons[row] for row in indices.tolist()], pa.string())}
    return _complete(columns, len(chosen), origin)


def refused_batch(
    header: BatchHeader,
    data: bytes,
    rule: str,
    partition: tuple[int, int],
    span: tuple[int, int],
    origin: Origin,
) -> pa.RecordBatch:
    """A whole batch that breaks ``rule`` and accounts for the offsets ``span``."""
    columns: dict[str, pa.Array[Any]] = {
        "kafka_incarnation": pa.array([partition[0]], pa.int32()),
        "kafka_partition": pa.array([partition[1]], pa.int32()),
        "kafka_offset": pa.array([span[0]], pa.int64()),
        "next_offset": pa.array([span[1]], pa.int64()),
        "timestamp_ms": pa.array([header.max_timestamp], pa.int64()),
        "kafka_leader_epoch": pa.array([header.leader_epoch], pa.int32()),
        "batch": pa.array([data], pa.binary()),
        "reason": pa.array([rule], pa.string()),
    }
    return _complete(columns, 1, origin)


def _complete(columns: dict[str, pa.Array[Any]], rows: int, origin: Origin) -> pa.RecordBatch:
    columns |= {
        "segment": pa.array([origin.segment] * rows, pa.string()),
        "uploaded_at": pa.array([origin.uploaded_at] * rows, TIMESTAMP_TYPE),
        "parser": pa.array([origin.parser] * rows, pa.string()),
        "attempt": pa.array([origin.attempt] * rows, pa.int64()),
    }
    return pa.RecordBatch.from_arrays(
        [columns[field.name] if field.name in columns else pa.nulls(rows, field.type) for field in SCHEMA],
        schema=SCHEMA,
    )


def records_of(refused: pa.RecordBatch) -> pa.RecordBatch:
    """Refused rows other than batches, in the decoder's form."""
    milliseconds = numbers(refused.column("timestamp_ms"))
    fits = representable(milliseconds)
    micros = np.where(fits, milliseconds * 1000, milliseconds)
    stamps = array(TIMESTAMP_TYPE, micros, None if fits.all() else np.packbits(fits, bitorder="little"))
    columns = [
        stamps if field.name == "kafka_timestamp" else refused.column(field.name).cast(field.type) for field in KAFKA
    ]
    return pa.RecordBatch.from_arrays(columns, schema=KAFKA)
