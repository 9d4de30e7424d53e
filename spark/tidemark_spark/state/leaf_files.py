"""The files of a state table's leaves, and of the runs between its rounds, as tables in memory."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterator
from typing import Any, Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tidemark.decode.schema import empty_table, numpy_values
from tidemark.errors import ContinuityError, FormatError
from tidemark.formats.table.state_ledger import HASH_BITS, RECORD, HashRange, Leaf
from tidemark.store import Store, open_store
from tidemark.store.stored_file import StoredFile
from tidemark_spark.convert.row_checksums import have_equal_values
from tidemark_spark.convert.upload import upload_once
from tidemark_spark.state.last_records import HASH, KEY, chosen, with_hash
from tidemark_spark.state.model import BUCKET_BITS, StateJob, StoredFileName
from tidemark_spark.state.record_columns import RecordColumns, in_columns

_GROUP_ROWS: Final = 65536
"""Rows of a row group of a leaf."""


class LeafFiles:
    """Reads and writes the files of ``job``."""

    def __init__(self, job: StateJob) -> None:
        self._job, self._store = job, open_store(job.lake_store, job.options)
        self.columns = RecordColumns(job.topic)
        self.records = self.columns.records

    def of_leaf(self, leaf: Leaf) -> tuple[pa.Table, pa.Table]:
        """The rows of a leaf, and its reserve, both with the columns of records.

        Raises:
            ContinuityError: it has other rows than its ledger says.
            FormatError: a file cannot be read.
        """
        rows = reserve = empty_table(self.records)
        if leaf.path:
            rows = self.columns.of_leaf(self._read(f"{self._job.root}/{leaf.path}", self.columns.table))
            rows = with_hash(rows, self.columns.ranking).cast(self.records)
        if leaf.reserve:
            reserve = self._read(leaf.reserve, self.records)
        whole = (len(rows), len(reserve)) == (leaf.rows, leaf.reserve_rows)
        if not whole or not all(within(part, leaf.hashes).all() for part in (rows, reserve)):
            rule = "has other rows than its ledger says; the state was not changed: rebuild it by state.py --rebuild"
            raise ContinuityError(f"{self._job.root}: leaf {leaf.prefix or 'of all keys'} {rule}")
        return rows, reserve

    def of_runs(self, hashes: HashRange) -> list[pa.Table]:
        """The records of the job's runs with ``hashes``, a table for each run.

        Raises:
            FormatError: a run cannot be read.
        """
        return [self._part(run, hashes) for run in self._job.runs]

    def _part(self, run: StoredFileName, hashes: HashRange) -> pa.Table:
        """Only the row groups that may have some are read."""
        with StoredFile(self._store, run.key, run.size) as stored:
            try:
                parquet = pq.ParquetFile(pa.PythonFile(stored, "r"), pre_buffer=True)  # else a request for each column
                near = [group for group in range(parquet.num_row_groups) if _may_have(parquet, group, hashes)]
                rows = parquet.read_row_groups(near, use_threads=False).cast(self.records)
            except (pa.ArrowException, OSError, ValueError) as error:
                raise FormatError(run.key, f"cannot be read: {' '.join(str(error).split())}; run it again") from error
        rows = chosen(rows, within(rows, hashes))
        pa.default_memory_pool().release_unused()  # else it keeps what the row groups took
        return rows

    def write(self, key: str, rows: pa.Table) -> int:
        """Write ``rows``, and read them back; the size of the file.

        Raises:
            ContinuityError: other rows are read back.
        """
        file = write_sorted(self._store, key, rows)
        if not self._has(key, rows):
            raise ContinuityError(f"{key}: other rows are read back than were written; the state was not changed")
        return file.size

    def _has(self, key: str, rows: pa.Table) -> bool:
        """True if the file ``key`` has exactly ``rows``; it is read group by group."""
        start = 0
        for part in self._parts(key, rows.schema):
            if not have_equal_values(part, rows.slice(start, len(part))):
                return False
            start += len(part)
        return start == len(rows)

    def _read(self, key: str, schema: pa.Schema) -> pa.Table:
        return pa.concat_tables([empty_table(schema), *self._parts(key, schema)])

    def _parts(self, key: str, schema: pa.Schema) -> Iterator[pa.Table]:
        """The row groups of the file ``key``."""
        body = self._store.get(key).body
        try:
            parquet = pq.ParquetFile(pa.BufferReader(body))
            for group in range(parquet.num_row_groups):
                yield in_columns(parquet.read_row_group(group, use_threads=False), schema)
        except (pa.ArrowException, OSError, ValueError) as error:
            rule = f"cannot be read: {' '.join(str(error).split())}; rebuild the state by state.py --rebuild"
            raise FormatError(key, rule) from error


def write_sorted(store: Store, key: str, rows: pa.Table, *, group_rows: int = _GROUP_ROWS) -> StoredFileName:
    """Write ``rows``, in their order, as the Parquet file ``key``."""
    with tempfile.TemporaryFile(prefix="tidemark-") as file:
        statistics = [name for name in (*RECORD[1:], HASH) if name in rows.column_names]
        unlike = {KEY, "kafka_offset", "kafka_timestamp", HASH}  # a dictionary of their values would be given up
        pq.write_table(
            rows,
            file,
            row_group_size=group_rows,
            compression="zstd",
            compression_level=1,
            write_statistics=cast("Any", statistics),
            use_dictionary=[name for name in rows.column_names if name not in unlike],  # type: ignore[arg-type]
        )
        return StoredFileName(key, upload_once(store, key, cast("Any", file)))


def within(rows: pa.Table, hashes: HashRange) -> NDArray[np.bool_]:
    """For each row whether its hash is one of ``hashes``."""
    values = numpy_values(rows.column(HASH))
    return (values >= np.uint64(hashes.start)) & (values <= np.uint64(hashes.end - 1))


def buckets_of(rows: pa.Table) -> NDArray[np.uint64]:
    """The bucket of each row's key."""
    hashes: NDArray[np.uint64] = numpy_values(rows.column(HASH))
    return hashes >> np.uint64(HASH_BITS - BUCKET_BITS)


def in_buckets(rows: pa.Table, buckets: Collection[int]) -> NDArray[np.bool_]:
    """For each row whether its key is in one of the ``buckets``."""
    named = np.zeros(1 << BUCKET_BITS, np.bool_)
    named[[*buckets]] = True
    return named[buckets_of(rows)]


def _may_have(parquet: pq.ParquetFile, group: int, hashes: HashRange) -> bool:
    """True if the row group may have rows with ``hashes``; the hash is the last column."""
    limits: Any = parquet.metadata.row_group(group).column(parquet.metadata.num_columns - 1).statistics
    return bool(limits is None or (limits.min < hashes.end and limits.max >= hashes.start))
