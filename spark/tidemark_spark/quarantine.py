"""Rows and batches that are refused: kept whole, with the reason, beside the table.

They lie under ``<table>__quarantine/dt=<date of the run>/``, in files named as the table's. A file counts if the
evidence of a landed attempt names it.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from tidemark.decode import unrepresentable_timestamps
from tidemark.decode.columns import HEADERS_TYPE, array
from tidemark.records import BatchHeader
from tidemark_spark.dates import Numbers, numbers, take, timestamps

PARSER: Final = "bytes/1"

_FIELDS: Final[list[pa.Field[Any]]] = [
    pa.field("kafka_incarnation", pa.int32(), nullable=False),
    pa.field("kafka_partition", pa.int32(), nullable=False),
    pa.field("kafka_offset", pa.int64(), nullable=False),
    pa.field("next_offset", pa.int64(), nullable=False),
    pa.field("timestamp_ms", pa.int64()),
    pa.field("kafka_timestamp_type", pa.string()),
    pa.field("kafka_key", pa.binary()),
    pa.field("kafka_value", pa.binary()),
    pa.field("kafka_headers", HEADERS_TYPE),
    pa.field("kafka_leader_epoch", pa.int32()),
    pa.field("batch", pa.binary()),
    pa.field("reason", pa.string(), nullable=False),
    pa.field("segment", pa.string(), nullable=False),
    pa.field("parser", pa.string(), nullable=False),
    pa.field("attempt", pa.int64(), nullable=False),
]
SCHEMA: Final = pa.schema(_FIELDS)
"""A row is a record, or a batch that cannot be decoded: then ``batch`` has its bytes, and what records have is null.

It accounts for the offsets ``[kafka_offset, next_offset)``.
"""

_KEPT: Final = ("kafka_timestamp_type", "kafka_key", "kafka_value", "kafka_headers", "kafka_leader_epoch")


def refused_rows(
    rows: pa.RecordBatch, indices: Numbers, bounds: tuple[int, int], segment: str, attempt: int
) -> pa.RecordBatch:
    """The rows at ``indices``, whose timestamps lie outside ``bounds`` (milliseconds, half-open)."""
    milliseconds, _ = timestamps(rows)
    milliseconds = milliseconds.copy()
    for row, value in unrepresentable_timestamps(rows):
        milliseconds[row] = value
    chosen = take(rows, indices)
    values = milliseconds[indices]
    offsets = chosen.column("kafka_offset")
    after = numbers(offsets) + 1
    columns = {name: chosen.column(name) for name in ("kafka_incarnation", "kafka_partition", "kafka_offset", *_KEPT)}
    columns |= {"next_offset": array(pa.int64(), after), "timestamp_ms": array(pa.int64(), values)}
    columns |= {"reason": pa.array([_reason(value, bounds) for value in values.tolist()], pa.string())}
    return _complete(columns, len(chosen), segment, attempt)


def refused_batch(
    header: BatchHeader,
    data: bytes,
    rule: str,
    partition: tuple[int, int],
    span: tuple[int, int],
    segment: str,
    attempt: int,
) -> pa.RecordBatch:
    """A whole batch that breaks ``rule``; it accounts for the offsets ``span``."""
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
    return _complete(columns, 1, segment, attempt)


def _reason(milliseconds: int, bounds: tuple[int, int]) -> str:
    if milliseconds == -1:
        return "the record has no timestamp"
    side = "before the earliest" if milliseconds < bounds[0] else "too far after the upload of its segment"
    return f"its timestamp lies {side}"


def _complete(columns: dict[str, pa.Array[Any]], rows: int, segment: str, attempt: int) -> pa.RecordBatch:
    columns |= {
        "segment": pa.array([segment] * rows, pa.string()),
        "parser": pa.array([PARSER] * rows, pa.string()),
        "attempt": pa.array([attempt] * rows, pa.int64()),
    }
    return pa.RecordBatch.from_arrays(
        [columns[one.name] if one.name in columns else pa.nulls(rows, one.type) for one in SCHEMA], schema=SCHEMA
    )
