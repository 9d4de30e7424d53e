"""The first round: of files of the topic's table, the last record of each key in each partition, sorted by hash."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tidemark.decode.schema import array, empty_table, numpy_values
from tidemark.errors import FormatError, NotFound
from tidemark.formats.table.state_ledger import RECORD, Truncation
from tidemark.store import Store, open_store
from tidemark.store.stored_file import StoredFile
from tidemark_spark.state.audited_rows import AuditedRows
from tidemark_spark.state.last_records import chosen, last_records, with_hash
from tidemark_spark.state.leaf_files import buckets_of, in_buckets, write_sorted
from tidemark_spark.state.model import NewestTask, SortedRuns, StateJob, StoppingRecord, StoredFileName
from tidemark_spark.state.record_columns import RecordColumns

_ROWS: Final = 65536
_WAITING: Final = 24 << 20
"""Bytes of rows that are folded at a time."""

_RUN: Final = 40 << 20
"""Bytes of folded rows that become a run of their own, so that a worker holds no more, however many keys there are."""

_GROUP_ROWS: Final = 16384
"""Rows of a row group of a run, of which a leaf needs only a few."""


def last_of_files(job: StateJob, task: NewestTask) -> SortedRuns:
    """Carry out ``task``; it may be repeated.

    Raises:
        FormatError: a file cannot be read.
        StoreError: the store failed.
    """
    store = open_store(job.lake_store, job.options)
    work, missing = _FirstRound(job, store, task.number), None
    try:
        for file in task.files:
            work.add(file, replayed=task.replayed)
    except NotFound as error:  # the driver knows whether the topic's table still has it
        missing = error.key
    else:
        work.finish()
    return SortedRuns(
        tuple(work.files),
        work.rows,
        work.memory,
        work.read,
        work.keyless,
        work.passed_over,
        frozenset(work.buckets),
        work.stop,
        missing,
        tuple(work.truncations),
    )


class _FirstRound:
    def __init__(self, job: StateJob, store: Store, number: int) -> None:
        self._job, self._store, self._number = job, store, number
        self._columns = RecordColumns(job.topic)
        self._of_rows = AuditedRows(self._columns).of_rows if job.audited else self._columns.of_rows
        self._folded = empty_table(self._columns.records)
        self._waiting: list[pa.Table] = []
        self.files: list[StoredFileName] = []
        self.buckets: set[int] = set()
        self.rows = self.memory = self.read = self.keyless = self.passed_over = 0
        self.stop: StoppingRecord | None = None
        self.truncations: list[Truncation] = []

    def add(self, file: StoredFileName, *, replayed: bool) -> None:
        """Add the wanted rows of a file."""
        with StoredFile(self._store, file.key, file.size) as stored:
            try:
                for rows in self._wanted(pq.ParquetFile(pa.PythonFile(stored, "r")), replayed=replayed):
                    self._take(rows, replayed=replayed)
            except (pa.ArrowException, OSError, ValueError) as error:  # pyarrow's error depends on where the damage is
                reason = " ".join(str(error).split())
                raise FormatError(file.key, f"cannot be read: {reason}; audit its date, and rebuild it") from error
            finally:
                self.read += stored.bytes_read

    def _wanted(self, parquet: pq.ParquetFile, *, replayed: bool) -> Iterator[pa.RecordBatch]:
        for group in range(parquet.num_row_groups):
            present = [name for name in self._needed(parquet, group) if name in parquet.schema_arrow.names]
            for rows in parquet.iter_batches(_ROWS, [group], present, use_threads=False):  # a task has one core
                mask = self._in_bounds(rows, below=replayed or bool(self._job.again))
                if mask.all():
                    yield rows
                elif mask.any():
                    yield rows.take(array(pa.int64(), np.flatnonzero(mask)))
            pa.default_memory_pool().release_unused()  # else it keeps what earlier rows took

    def _needed(self, parquet: pq.ParquetFile, group: int) -> tuple[str, ...]:
        """The columns to read: not the values if each record of an envelope has an operation, and so a value."""
        envelope = self._columns.envelope
        if envelope is None:
            return self._columns.sources
        columns = parquet.metadata.row_group(group)
        [op] = [
            columns.column(at) for at in range(columns.num_columns) if columns.column(at).path_in_schema == envelope.op
        ] or [None]
        known = op is not None and op.statistics is not None and op.statistics.has_null_count
        if op is None or not known or op.statistics.null_count:
            return self._columns.sources
        return tuple(name for name in self._columns.sources if name != "kafka_value")

    def _in_bounds(self, rows: pa.RecordBatch | pa.Table, *, below: bool) -> NDArray[np.bool_]:
        """For each row whether it lies in the job's bounds, or ``below``."""
        incarnations, partitions, offsets = (numpy_values(rows.column(name)) for name in RECORD[1:4])
        mask = np.zeros(len(rows), np.bool_)
        for (incarnation, partition), (start, end) in self._job.bounds.items():
            wanted = (incarnations == incarnation) & (partitions == partition) & (offsets < end)
            mask |= wanted if below else wanted & (offsets >= start)
        return mask

    def _take(self, rows: pa.RecordBatch, *, replayed: bool) -> None:
        records, stops, passed_over, truncations = self._of_rows(pa.Table.from_batches([rows]))
        self.truncations += truncations
        self.stop = min([*([self.stop] if self.stop else []), *stops], default=None)
        self.passed_over += int((self._in_bounds(rows, below=replayed) & passed_over).sum())
        whole = numpy_values(records.column(self._columns.ranking.key).is_valid())
        self.keyless += int((self._in_bounds(records, below=replayed) & ~whole).sum())
        records = with_hash(chosen(records, whole), self._columns.ranking)
        if self._job.again and not replayed:
            records = chosen(records, self._in_bounds(records, below=False) | in_buckets(records, self._job.again))
        self._waiting.append(records)
        if sum(waiting.nbytes for waiting in self._waiting) >= _WAITING:
            self._fold()

    def _fold(self) -> None:
        rows = pa.concat_tables([self._folded, *self._waiting])
        self._folded, self._waiting = last_records(rows, self._columns.ranking), []
        if self._folded.nbytes >= _RUN:
            self._write()
        pa.default_memory_pool().release_unused()

    def finish(self) -> None:
        """Write the rows that no run has yet."""
        self._fold()
        if len(self._folded):
            self._write()

    def _write(self) -> None:
        key = f"{self._job.run_folder}{self._number}-{len(self.files)}.parquet"
        self.files.append(write_sorted(self._store, key, self._folded, group_rows=_GROUP_ROWS))
        self.rows += len(self._folded)
        self.memory += self._folded.nbytes
        self.buckets.update(np.unique(buckets_of(self._folded)).tolist())
        self._folded = empty_table(self._columns.records)
