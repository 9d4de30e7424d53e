"""One task of a compaction: merges files of one folder and partition into one, sorted by offset; no row changes.

The written file is read back from the store and must equal the merged rows in each column; the driver then compares it
with the evidence of the merged files. A task is a function of its plan and of those files. Memory is bounded by a batch
of each file with rows around the same offset, and by the open row group: files are on disk.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date

import numpy as np
import pyarrow as pa

from tidemark.decode import SCHEMA
from tidemark.errors import ContinuityError, FormatError
from tidemark.formats.table.base_columns import IDENTITY
from tidemark.formats.table.partitioning import HOUR, DateFolder, names_of
from tidemark.formats.table.plan import TableFileTask
from tidemark.formats.table.steps import DataFile
from tidemark.store import Store, open_store
from tidemark.table.evidence import EvidenceRow
from tidemark.table.topic_columns import HOUR_COLUMN
from tidemark_spark.convert.date_partitioner import Numbers, numbers
from tidemark_spark.convert.parquet_writer import FolderFiles
from tidemark_spark.convert.partition_columns import topic_parser
from tidemark_spark.convert.rewriting.merge import Input, merged, rows_of
from tidemark_spark.convert.row_checksums import Account, account_of_file
from tidemark_spark.convert.row_order import ascending, path_of
from tidemark_spark.convert.row_sink import namer
from tidemark_spark.model import Job, Outcome, Stop


def compacted(job: Job, task: TableFileTask) -> Outcome:
    """Merge the files of ``task``; the outcome's only row of evidence counts the rows read back.

    Its hash is None where a file lacks a hashed column. A failed merge is returned as the outcome's ``stop``, because
    Spark would repeat the task after an exception.

    Raises:
        StoreError: the store did not answer, or a file is gone.
    """
    store = open_store(job.lake_store, job.options)
    schema = merged_schema(job)
    inputs = [Input(store, part, schema) for part in task.ranges]
    output = RewrittenFile(job, task, store, schema)
    stop = None
    try:
        output.write(merged(inputs))
        output.check()
    except (ContinuityError, FormatError) as error:
        stop = Stop(task.from_offset, task.to_offset, "corrupt", str(error))
    hashed = all(file.hashed for file in inputs)
    return Outcome(
        incarnation=task.incarnation,
        partition=task.partition,
        from_offset=task.from_offset,
        next_offset=max(part.to_offset for part in task.ranges),
        files=() if stop else (output.file(),),
        evidence=() if stop else (output.evidence(hashed=hashed),),
        stop=stop,
        bytes_read=task.size + output.size,
    )


def merged_schema(job: Job) -> pa.Schema:
    """The table's columns in the files' order, nullable except for the columns that identify a row."""
    hour = [HOUR_COLUMN] if HOUR in names_of(job.topic.partition_by) else []
    known = [*SCHEMA, *topic_parser(job.topic).columns, *hour]
    return pa.schema([field.with_nullable(field.name not in IDENTITY) for field in known if field.name in job.columns])


class RewrittenFile:
    """The file that a task makes of rows of the table, and the account of these rows."""

    def __init__(self, job: Job, task: TableFileTask, store: Store, schema: pa.Schema) -> None:
        self._task, self._store, self._schema = task, store, schema
        self._root, self._name, self._layout = job.keys.root, namer(job, task), job.layout
        self._field_ids = job.field_ids
        self._folder = DateFolder.of(path_of(task.ranges[0].key))
        self._account = Account()
        self._first = self._last = -1
        self._times: list[int] = []
        self._untimed = 0
        self._key = ""
        self.size = 0

    def write(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Write all of ``batches`` with the conversion's writer."""
        with FolderFiles(self._store, self._schema, self._key_of, self._done, self._layout, self._field_ids) as files:
            for rows in batches:
                offsets = numbers(rows.column("kafka_offset"))
                first, self._last = int(offsets[0]), int(offsets[-1])
                self._first = first if self._first < 0 else self._first
                files.add(self._folder, rows, first, self._last)
                self._account.add(account_of_file(rows, self._schema.names))
                times = _times(rows)
                self._times += [int(times.min()), int(times.max())] if len(times) else []
                self._untimed += len(rows) - len(times)
            files.close()

    def check(self) -> None:
        """Raise ContinuityError unless the stored file has the written rows, in order and in each column."""
        if self.empty:
            return
        stored, last = Account(), -1
        for rows in rows_of(self._store, self._key, self.size):
            last = ascending(rows, last, self._key)
            stored.add(account_of_file(rows, rows.schema.names))
        if stored != self._account:
            raise ContinuityError(
                f"{self._key}: {stored.rows} rows are read back of {self._account.rows} that were written, or others; "
                "the table was not changed: report it"
            )

    @property
    def empty(self) -> bool:
        """True if no row was written, and so no file."""
        return not self._key

    def file(self) -> DataFile:
        """The file in the form of the Delta log."""
        return DataFile(
            path=self.path,
            size=self.size,
            rows=self._account.rows,
            dt=self._date,
            partition=self._task.partition,
            first_offset=self._first,
            last_offset=self._last,
            min_timestamp=min(self._times, default=0),
            max_timestamp=max(self._times, default=0),
            untimed=self._untimed,
        )

    def evidence(self, *, hashed: bool) -> EvidenceRow:
        """Evidence of the file's rows, without their sources."""
        return EvidenceRow(
            incarnation=self._task.incarnation,
            partition=self._task.partition,
            first=self._first,
            next=self._last + 1,
            offset_class="landed",
            rows=self._account.rows,
            dt=self._date,
            hash128=self._account.hash128 if hashed else None,
            file=self.path,
        )

    @property
    def path(self) -> str:
        """The path below the table."""
        return self._key.removeprefix(f"{self._root}/")

    @property
    def _date(self) -> date:
        assert self._folder.dt is not None, "a file of the table has a date"
        return self._folder.dt

    def _key_of(self, folder: DateFolder, first: int, last: int) -> str:
        return f"{self._root}/{folder.path}/{self._name(first, last)}"

    def _done(self, _folder: DateFolder, key: str, size: int) -> None:
        self._key, self.size = key, size


def _times(rows: pa.RecordBatch) -> Numbers:
    """The timestamps in microseconds of the rows that have one."""
    if "kafka_timestamp" not in rows.schema.names:
        return np.empty(0, np.int64)
    return numbers(rows.column("kafka_timestamp").drop_null())
