"""Rows lie in the order of their offsets, in raw segments and in files of tables.

The rows of a row group may be sorted otherwise, which the file says; row groups follow one another by offset all the
same.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tidemark.errors import ContinuityError
from tidemark_spark.convert.date_partitioner import numbers


def ascending(rows: pa.RecordBatch, last: int, name: str) -> int:
    """The last offset of ``rows``, which must ascend from above ``last``."""
    offsets = numbers(rows.column("kafka_offset"))
    if offsets[0] <= last or (np.diff(offsets) <= 0).any():
        raise ContinuityError(f"{name}: record offsets from {offsets[0]} on do not ascend, after offset {last}")
    return int(offsets[-1])


def by_offset(file: pq.ParquetFile, rows: int) -> Iterator[pa.RecordBatch]:
    """The rows of a data file by their offsets, ``rows`` at a time; a sorted row group is read as a whole."""
    for group in range(file.num_row_groups):
        if file.metadata.row_group(group).sorting_columns:
            yield from file.read_row_group(group).sort_by("kafka_offset").to_batches(max_chunksize=rows)
        else:
            yield from file.iter_batches(rows, row_groups=[group])
