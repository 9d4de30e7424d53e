"""The order of rows: raw segments and files of tables have them in the order of their offsets.

Rows within a row group may be sorted otherwise, which the file states; the row groups are still ordered by offset. A
file repeats the values of its folder in columns, see :mod:`tidemark_spark.convert.field_ids`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tidemark.errors import ContinuityError
from tidemark.formats.table.partitioning import folder_name, partition_values
from tidemark.parsers.partition_columns import typed
from tidemark.table.topic_columns import DT
from tidemark_spark.convert.date_partitioner import numbers


def ascending(rows: pa.RecordBatch, last: int, name: str) -> int:
    """The last offset of ``rows``. Raises ContinuityError unless they ascend from above ``last``."""
    offsets = numbers(rows.column("kafka_offset"))
    if offsets[0] <= last or (np.diff(offsets) <= 0).any():
        raise ContinuityError(f"{name}: record offsets from {offsets[0]} on do not ascend, after offset {last}")
    return int(offsets[-1])


def by_offset(file: pq.ParquetFile, rows: int, path: str | None) -> Iterator[pa.RecordBatch]:
    """The rows of a data file by offset, ``rows`` at a time, without their date.

    A sorted row group is read as a whole. With a ``path`` of None, the rows may be of any folder.

    Raises:
        ValueError: a row has another value than the folder.
    """
    folder = {} if path is None else partition_values(path)
    return (_undated(batch, folder) for batch in _by_offset(file, rows))


def path_of(key: str) -> str:
    """Path of the data file ``key`` below its table."""
    return f"{DT.name}={key.rpartition(f'/{DT.name}=')[2]}"


def _undated(rows: pa.RecordBatch, folder: Mapping[str, str | None]) -> pa.RecordBatch:
    for name, text in folder.items():
        if name in rows.schema.names:
            column = rows.column(name)
            value = None if text is None else typed(text, column.type)
            if others := [other for other in column.unique().to_pylist() if other != value]:
                raise ValueError(f"it has rows with {name} = {others[0]}, and lies in {folder_name(name, text)}")
    return rows.drop_columns([DT.name]) if DT.name in rows.schema.names else rows


def _by_offset(file: pq.ParquetFile, rows: int) -> Iterator[pa.RecordBatch]:
    for group in range(file.num_row_groups):
        if file.metadata.row_group(group).sorting_columns:
            yield from file.read_row_group(group).sort_by("kafka_offset").to_batches(max_chunksize=rows)
        else:
            yield from file.iter_batches(rows, row_groups=[group], use_threads=False)  # a task has one core
        pa.default_memory_pool().release_unused()  # else it keeps several times as much as the rows take
