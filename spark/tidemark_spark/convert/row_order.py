"""Rows lie in the order of their offsets, in raw segments and in files of tables.

The rows of a row group may be sorted otherwise, which the file says; row groups follow one another by offset all the
same. A file may repeat the date of its folder in a column, see :mod:`tidemark_spark.convert.field_ids`.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tidemark.errors import ContinuityError
from tidemark_spark.convert.date_partitioner import numbers
from tidemark_spark.convert.field_ids import DT


def ascending(rows: pa.RecordBatch, last: int, name: str) -> int:
    """The last offset of ``rows``, which must ascend from above ``last``."""
    offsets = numbers(rows.column("kafka_offset"))
    if offsets[0] <= last or (np.diff(offsets) <= 0).any():
        raise ContinuityError(f"{name}: record offsets from {offsets[0]} on do not ascend, after offset {last}")
    return int(offsets[-1])


def by_offset(file: pq.ParquetFile, rows: int, dt: str | None) -> Iterator[pa.RecordBatch]:
    """The rows of a data file by their offsets, ``rows`` at a time, without their date, which must be ``dt`` (ISO).

    A sorted row group is read as a whole. With None, the rows may have any date.

    Raises:
        ValueError: a row has another date.
    """
    return (_undated(one, dt) for one in _by_offset(file, rows))


def dt_of(key: str) -> str:
    """The date (ISO) of the folder in which a data file lies."""
    return key.rpartition("/dt=")[2].partition("/")[0]


def _undated(rows: pa.RecordBatch, dt: str | None) -> pa.RecordBatch:
    if DT.name not in rows.schema.names:
        return rows
    if dt is not None and (others := {*rows.column(DT.name).unique().to_pylist()} - {date.fromisoformat(dt)}):
        raise ValueError(f"it has rows with dt = {others.pop()}, and lies in dt={dt}")
    return rows.drop_columns([DT.name])


def _by_offset(file: pq.ParquetFile, rows: int) -> Iterator[pa.RecordBatch]:
    for group in range(file.num_row_groups):
        if file.metadata.row_group(group).sorting_columns:
            yield from file.read_row_group(group).sort_by("kafka_offset").to_batches(max_chunksize=rows)
        else:
            yield from file.iter_batches(rows, row_groups=[group])
