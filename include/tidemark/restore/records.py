"""Records of the history in the form for a producer, and the sum that proves that two copies are equal.

The sum is that of :func:`tidemark.decode.row_hash_sum` with a record's place in the restore instead of its offset,
since the target gives new offsets. It covers key, value, headers, timestamp and order, and grows as records are added.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidemark.decode import SCHEMA, exact_milliseconds, row_hash_sum
from tidemark.decode.schema import MAX_MILLISECONDS, array

Header = tuple[str, bytes | None]
NO_TIMESTAMP: Final = -1


class Record(NamedTuple):
    """The parts of a record that a restore keeps; ``timestamp`` in milliseconds, -1 for none."""

    key: bytes | None
    value: bytes | None
    headers: Sequence[Header]
    timestamp: int


def records_of(rows: pa.RecordBatch) -> list[Record]:
    """The records of ``rows``, which has the columns of :data:`tidemark.decode.SCHEMA`."""
    keys = rows.column("kafka_key").to_pylist()
    values = rows.column("kafka_value").to_pylist()
    timestamps = exact_milliseconds(rows).tolist()
    return [Record(*fields) for fields in zip(keys, values, _headers(rows), timestamps, strict=True)]


def _headers(rows: pa.RecordBatch) -> list[list[Header]]:
    column = rows.column("kafka_headers")
    if not len(column.flatten()):  # type: ignore[attr-defined]  # the stubs know lists only by their class
        return [[] for _ in range(len(rows))]
    lists = (headers for headers in column.to_pylist() if headers is not None)
    return [[(header["key"], header["value"]) for header in headers] for headers in lists]


def rows_of(records: Sequence[Record]) -> pa.RecordBatch:
    """``records`` as columns for :func:`hash_sum`, at offsets from 0 on."""
    count = len(records)
    timestamps = [None if abs(record.timestamp) > MAX_MILLISECONDS else record.timestamp * 1000 for record in records]
    headers = [[{"key": key, "value": value} for key, value in record.headers] for record in records]
    columns: dict[str, Iterable[Any]] = {
        "kafka_incarnation": [0] * count,
        "kafka_partition": [0] * count,
        "kafka_offset": range(count),
        "kafka_timestamp": timestamps,
        "kafka_timestamp_type": ["create"] * count,
        "kafka_key": [record.key for record in records],
        "kafka_value": [record.value for record in records],
        "kafka_headers": headers,
        "kafka_leader_epoch": [-1] * count,
    }
    nothing = [None] * count  # the hash takes no other columns
    arrays = [pa.array(columns.get(column.name, nothing), column.type) for column in SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def hash_sum(rows: pa.RecordBatch, partition: int, place: int) -> int:
    """The sum over ``rows`` of a partition; the first row is record ``place`` of the restore."""
    count = len(rows)
    numbers: dict[str, NDArray[Any]] = {
        "kafka_incarnation": np.zeros(count, np.int32),
        "kafka_partition": np.full(count, partition, np.int32),
        "kafka_offset": np.arange(place, place + count, dtype=np.int64),
    }
    columns = []
    for column in SCHEMA:
        given = numbers.get(column.name)
        columns.append(rows.column(column.name) if given is None else array(column.type, given))
    return row_hash_sum(pa.RecordBatch.from_arrays(columns, schema=SCHEMA))
