"""The rows of several data files of one folder and partition, as a stream ordered by offset.

Consecutive files are read one after the other. Of files whose offsets interleave, as after a replay, a batch of each is
held. A file is copied to disk when its turn comes.
"""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tidemark.errors import FormatError
from tidemark.formats.table.base_columns import HASHED
from tidemark.formats.table.plan import StoredRange
from tidemark.parsers.base import no_rows
from tidemark.store import Store
from tidemark_spark.convert.date_partitioner import numbers
from tidemark_spark.convert.row_order import ascending, by_offset, path_of

_ROWS: Final = 8192
_CHUNK: Final = 8 << 20
_BUFFER: Final = 1 << 20


class Input:
    """A file to merge, which holds one batch of its rows at a time, in the columns of ``schema``.

    ``hashed`` is True while the rows read so far have all hashed columns.
    """

    def __init__(self, store: Store, part: StoredRange, schema: pa.Schema) -> None:
        self.first, self.name = part.from_offset, part.key
        self.hashed = True
        self._schema = schema
        self._batches = rows_of(store, part.key, part.end)
        self._rows: pa.RecordBatch | None = None

    @property
    def rows(self) -> pa.RecordBatch:
        """The held batch, or else the next batch; empty at the file's end.

        Raises:
            FormatError: the file cannot be read, or has a column that the table lacks.
        """
        if self._rows is None:
            rows = next(self._batches, None)
            if rows is None:
                return no_rows(self._schema, 0)
            self.hashed = self.hashed and set(HASHED) <= set(rows.schema.names)
            self._rows = _in_columns(rows, self._schema, self.name)
        return self._rows

    @property
    def last(self) -> int:
        """The last offset of the held batch."""
        return int(numbers(self.rows.column("kafka_offset"))[-1])

    def until(self, offset: int) -> pa.RecordBatch:
        """Remove and return the held rows up to ``offset``."""
        rows = self.rows
        count = int(np.searchsorted(numbers(rows.column("kafka_offset")), offset, "right"))
        self._rows = rows.slice(count) if count < len(rows) else None  # an empty slice would keep the memory
        return rows.slice(0, count)


def merged(inputs: Sequence[Input]) -> Iterator[pa.RecordBatch]:
    """The rows of all ``inputs``, by offset.

    Raises:
        ContinuityError: two rows have the same offset, or offsets of a file do not ascend.
        FormatError: a file cannot be read, or has a column that the table lacks.
    """
    waiting = deque(sorted(inputs, key=lambda file: file.first))
    reading: list[Input] = []
    last = -1
    while waiting or reading:
        if not reading or (waiting and waiting[0].first <= min(file.last for file in reading)):
            reading.append(waiting.popleft())
        else:
            limit = min(file.last for file in reading)
            rows = _in_order([file.until(limit) for file in reading])
            last = ascending(rows, last, ", ".join(file.name for file in reading))
            yield rows
        reading = [file for file in reading if len(file.rows)]


def rows_of(store: Store, key: str, size: int) -> Iterator[pa.RecordBatch]:
    """The rows of the data file ``key`` of ``size`` bytes, at most one row group at a time.

    Raises:
        FormatError: the file is damaged.
        StoreError: the store did not answer, or the file is gone.
    """
    with tempfile.TemporaryFile(prefix="tidemark-") as file:
        for start in range(0, size, _CHUNK):
            file.write(store.get_range(key, start, min(start + _CHUNK, size)))
        try:
            parquet = pq.ParquetFile(file, buffer_size=_BUFFER)
            yield from by_offset(parquet, _ROWS, path_of(key))
        except (pa.ArrowException, OSError, ValueError) as error:  # pyarrow's error depends on where the damage is
            reason = " ".join(str(error).split())
            raise FormatError(key, f"cannot be read: {reason}; audit its date, and rebuild it") from error


def _in_order(parts: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    filled = [part for part in parts if len(part)]
    if len(filled) == 1:
        return filled[0]
    [rows] = pa.Table.from_batches(filled).sort_by("kafka_offset").combine_chunks().to_batches()
    return rows


def _in_columns(rows: pa.RecordBatch, schema: pa.Schema, name: str) -> pa.RecordBatch:
    """``rows`` with the columns of ``schema``; missing columns are null."""
    unknown = sorted(set(rows.schema.names) - set(schema.names))
    if unknown:
        raise FormatError(name, f"has columns that the table has not: {', '.join(unknown)}; audit its date")
    columns: list[pa.Array[Any]] = [
        rows.column(field.name).cast(field.type) if field.name in rows.schema.names else pa.nulls(len(rows), field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
