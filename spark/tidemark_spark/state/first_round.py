"""The first round: of files of the topic's table, the last record of each key in each partition, sorted by hash."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tidemark.decode.schema import array
from tidemark.errors import FormatError
from tidemark.formats.table.state_ledger import RECORD
from tidemark.store import Store, open_store
from tidemark_spark.convert.stored_file import StoredFile
from tidemark_spark.state.last_records import DELETED, KEY, chosen, last_records, with_hash
from tidemark_spark.state.leaf_files import buckets_of, in_buckets, in_columns, write_sorted
from tidemark_spark.state.model import (
    AFTER,
    OP,
    NewestTask,
    SortedRun,
    StateJob,
    StoredFileName,
    state_schema,
)

_ROWS: Final = 65536
_WAITING: Final = 64 << 20
"""Bytes of rows that are folded at a time."""


def last_of_files(job: StateJob, task: NewestTask) -> SortedRun:
    """Carry out ``task``; it may be repeated.

    Raises:
        FormatError: a file cannot be read.
        StoreError: the store failed.
    """
    store = open_store(job.lake_store, job.options)
    work = _FirstRound(job, store)
    for file in task.files:
        work.add(file, replayed=task.replayed)
    return SortedRun(work.written(task.number), work.rows, work.read, work.keyless, work.buckets(), work.truncated)


class _FirstRound:
    def __init__(self, job: StateJob, store: Store) -> None:
        self._job, self._store = job, store
        self._schema = state_schema(job.topic)
        self._debezium = job.topic.state is not None and job.topic.state.envelope == "debezium"
        self._folded: pa.Table | None = None
        self._waiting: list[pa.Table] = []
        self.rows = self.read = self.keyless = 0
        self.truncated: tuple[int, int, int] | None = None

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
        more = (OP, AFTER) if self._debezium else ("kafka_value",)
        present = [name for name in dict.fromkeys((*self._schema.names, *more)) if name in parquet.schema_arrow.names]
        for rows in parquet.iter_batches(_ROWS, columns=present):
            mask = self._in_bounds(rows, below=replayed or bool(self._job.again))
            if mask.all():
                yield rows
            elif mask.any():
                yield rows.take(array(pa.int64(), np.flatnonzero(mask)))

    def _in_bounds(self, rows: pa.RecordBatch | pa.Table, *, below: bool) -> NDArray[np.bool_]:
        """For each row whether it lies in the job's bounds, or ``below``."""
        incarnations, partitions, offsets = (rows.column(name).to_numpy() for name in RECORD[1:4])
        mask = np.zeros(len(rows), np.bool_)
        for (incarnation, partition), (start, end) in self._job.bounds.items():
            wanted = (incarnations == incarnation) & (partitions == partition) & (offsets < end)
            mask |= wanted if below else wanted & (offsets >= start)
        return mask

    def _take(self, rows: pa.RecordBatch, *, replayed: bool) -> None:
        if self._debezium:
            self._note_truncation(pa.Table.from_batches([rows]))
        whole = rows.column(KEY).is_valid().to_numpy(zero_copy_only=False)
        self.keyless += int((self._in_bounds(rows, below=replayed) & ~whole).sum())
        table = with_hash(self._shaped(chosen(pa.Table.from_batches([rows]), whole)))
        if self._job.again and not replayed:
            table = chosen(table, self._in_bounds(table, below=False) | in_buckets(table, self._job.again))
        self._waiting.append(table)
        if sum(waiting.nbytes for waiting in self._waiting) >= _WAITING:
            self._fold()

    def _note_truncation(self, rows: pa.Table) -> None:
        """Note a record that truncates the source table: it has no key, and changes all."""
        found = chosen(rows, _is(rows, "t"))
        places = zip(*(found.column(name).to_pylist() for name in RECORD[1:4]), strict=True)
        self.truncated = min([*([self.truncated] if self.truncated else []), *places], default=None)

    def _shaped(self, rows: pa.Table) -> pa.Table:
        """``rows`` in the columns of the state table, and whether each deletes its key."""
        if self._debezium:
            rows, deleted = _debezium(rows)
        else:
            deleted = pc.is_null(rows.column("kafka_value"))
        return in_columns(rows, self._schema).append_column(pa.field(DELETED, pa.bool_(), nullable=False), deleted)

    def _fold(self) -> None:
        parts = [*([self._folded] if self._folded is not None else []), *self._waiting]
        self._folded, self._waiting = last_records(pa.concat_tables(parts)) if parts else None, []

    def buckets(self) -> frozenset[int]:
        """The first bits of the hashes of the folded rows."""
        if self._folded is None:
            return frozenset()
        return frozenset(np.unique(buckets_of(self._folded)).tolist())

    def written(self, number: int) -> StoredFileName | None:
        """Write the folded rows as run ``number``; None if there is none."""
        self._fold()
        if self._folded is None or not len(self._folded):
            return None
        self.rows = len(self._folded)
        return write_sorted(self._store, f"{self._job.run_folder}{number}.parquet", self._folded)


def _debezium(rows: pa.Table) -> tuple[pa.Table, Any]:
    """The rows of Debezium's envelope that change a key, with the fields of ``after``, and whether they delete it.

    A record without ``op`` is the tombstone that follows a deletion. Messages (``m``) are passed over.
    """
    rows = chosen(rows, ~_is(rows, "m"))
    deleted = _is(rows, "d") | rows.column(OP).is_null().to_numpy()
    if AFTER in rows.column_names and isinstance(rows.column(AFTER).type, pa.StructType):
        after = rows.column(AFTER).combine_chunks()
        for at in range(after.type.num_fields):
            rows = rows.append_column(after.type.field(at), pc.struct_field(after, [at]))
    return rows, pa.array(deleted)


def _is(rows: pa.Table, op: str) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = pc.is_in(rows.column(OP), value_set=pa.array([op])).to_numpy()
    return found
