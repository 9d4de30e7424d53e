"""Rows in plain Python: as the decoder has them, and as kafka-python reads the same bytes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import pyarrow as pa
from kafka.record.memory_records import MemoryRecords

from tidemark.decode import SCHEMA, decode_batches, scan_headers


class Row(NamedTuple):
    """A record; ``timestamp`` in milliseconds, None where the decoder cannot represent it."""

    offset: int
    timestamp: int | None
    timestamp_type: str
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


def rows_of(batches: Iterable[pa.RecordBatch]) -> list[Row]:
    """The rows of record batches, each validated in full."""
    rows: list[Row] = []
    for batch in batches:
        batch.validate(full=True)
        assert batch.schema.equals(SCHEMA)
        columns = [batch.column(name).to_pylist() for name in ("kafka_offset", "kafka_timestamp_type")]
        micros = batch.column("kafka_timestamp").cast(pa.int64()).to_pylist()
        fields = [batch.column(f"kafka_{name}").to_pylist() for name in ("key", "value", "headers")]
        for offset, kind, micro, key, value, headers in zip(*columns, micros, *fields, strict=True):
            milli = None if micro is None else micro // 1000
            rows.append(Row(offset, milli, kind, key, value, [(each["key"], each["value"]) for each in headers]))
    return rows


def decoded(data: bytes, base: int = 0, **options: Any) -> list[Row]:
    """The rows of a whole segment."""
    headers = scan_headers(data, "segment.log", base)
    return rows_of(decode_batches(data, headers, name="segment.log", partition=0, incarnation=0, **options))


def by_kafka_python(data: bytes) -> list[Row]:
    """The rows of a whole segment, markers left out, as kafka-python's own parser has them."""
    rows: list[Row] = []
    for batch in MemoryRecords(data):
        if batch.magic == 2 and batch.is_control_batch:
            continue
        for record in batch:
            timestamp = -1 if record.timestamp is None else record.timestamp
            kind = "append" if record.timestamp_type == 1 else "create"
            rows.append(Row(record.offset, timestamp, kind, record.key, record.value, list(record.headers)))
    return rows
