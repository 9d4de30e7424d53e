"""One task of an audit: counts and hashes rows of raw, or of a file, by range of offsets. Pure worker code.

Nothing is written. The conversion's own code decodes, parses and dates raw. Memory is bounded by one window of a
segment, or by one file.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tidemark.decode import SCHEMA
from tidemark.errors import NotFound
from tidemark.formats.table.base_columns import HASHED
from tidemark.formats.table.plan import SegmentRange, SegmentTask
from tidemark.intervals import Interval
from tidemark.kafka_log import BatchHeader
from tidemark.store import open_store
from tidemark.table.evidence import EvidenceRow, Kept
from tidemark.table.topic_columns import table_schema
from tidemark_spark.convert.conversion import Conversion
from tidemark_spark.convert.date_partitioner import numbers, take
from tidemark_spark.convert.guard import parsed
from tidemark_spark.convert.partition_columns import topic_parser
from tidemark_spark.convert.quarantine import SCHEMA as QUARANTINE
from tidemark_spark.convert.row_checksums import Account, Cells, account_of_file, account_of_records, by_cell
from tidemark_spark.convert.row_order import by_offset
from tidemark_spark.convert.row_sink import Refused, beside, offsets_of, refused_parts, splitter_of
from tidemark_spark.model import Job

_ROWS: Final = 65536


class FileTask(NamedTuple):
    """A file to read: of the table (``landed``), or of quarantine; ``dt`` is empty for rows without a date."""

    kind: Literal["landed", "quarantined"]
    path: str
    dt: str
    incarnation: int
    partition: int
    cells: Cells


class RawTask(NamedTuple):
    """Ranges of raw to convert once more; without ``columns`` accounts have only rows and their hashes."""

    task: SegmentTask
    cells: Cells
    columns: bool = True


AuditTask = FileTask | RawTask


class AccountKey(NamedTuple):
    """The key of an account: rows of one class and date in the cell that starts at ``start``."""

    incarnation: int
    partition: int
    start: int
    kind: Kept
    dt: str


class Trouble(NamedTuple):
    """Data that could not be read: a segment or a file that is ``gone`` or ``damaged``.

    ``stray`` are rows of a file outside its cells, between the offsets ``start`` and ``end``.
    """

    kind: Literal["raw_gone", "raw_damaged", "file_gone", "file_damaged", "stray"]
    incarnation: int
    partition: int
    start: int
    end: int
    name: str
    detail: str = ""


@dataclass
class Tally:
    """The result of a task; ``from_raw`` distinguishes accounts of raw from accounts of files.

    ``passed`` are the offsets without a record in raw.
    """

    from_raw: bool
    accounts: dict[AccountKey, Account] = field(default_factory=dict)
    passed: list[EvidenceRow] = field(default_factory=list)
    troubles: list[Trouble] = field(default_factory=list)
    rows: dict[str, int] = field(default_factory=dict)
    bytes_read: int = 0

    def add(self, key: AccountKey, account: Account) -> None:
        """Add an account."""
        self.accounts.setdefault(key, Account()).add(account)


def examine(job: Job, task: AuditTask) -> Tally:
    """Carry out ``task``.

    Raises:
        StoreError: a store did not answer, or refused.
    """
    return _raw(job, task) if isinstance(task, RawTask) else _file(job, task)


def _raw(job: Job, task: RawTask) -> Tally:
    tally = Tally(from_raw=True)
    whole = task.task
    for part in whole.ranges:
        single = SegmentTask(
            incarnation=whole.incarnation, topic_id=whole.topic_id, partition=whole.partition, ranges=(part,)
        )
        counting = _Counting(job, single, task)
        conversion = Conversion(job, single, counting)
        stop = conversion.run()
        tally.bytes_read += conversion.bytes_read
        at = single.incarnation, single.partition
        if stop:
            gone = stop.kind == "moved" and _is_gone(job, part)
            # Rows read before the segment was gone do not count: a range is proved as a whole, or not at all.
            start = part.from_offset if gone else stop.offset
            kind: Literal["raw_gone", "raw_damaged"] = "raw_gone" if gone else "raw_damaged"
            tally.troubles.append(Trouble(kind, *at, start, part.to_offset, part.key, stop.detail))
            if gone:
                continue
        for key, account in counting.accounts.items():
            tally.add(key, account)
        tally.passed += conversion.evidence
    return tally


def _is_gone(job: Job, part: SegmentRange) -> bool:
    try:
        open_store(part.store, job.options).head(part.key)
    except NotFound:
        return True
    return False


class _Counting:
    """Counts the records of a conversion in the classes and dates that ``row_sink.Sink`` would give them."""

    def __init__(self, job: Job, task: SegmentTask, counted: RawTask) -> None:
        self._task, self._cells = task, counted.cells
        self._parser = topic_parser(job.topic)
        self._splitter = splitter_of(job.topic, self._parser)
        self._names = table_schema(job.topic, self._parser).names if counted.columns else list(HASHED)
        self.accounts: dict[AccountKey, Account] = {}

    def rows(self, _number: int, part: SegmentRange, rows: pa.RecordBatch, refusal: str | None) -> None:
        """Add the rows of a decoded batch to the accounts, by class and date."""
        columns = parsed(self._parser, rows, refusal)
        split = self._splitter.split(rows, columns, part.uploaded_at)
        whole = beside(rows, columns.columns, split.hours)
        for folder, indices in split.landed:
            self._add("landed", folder.dt, take(whole, indices), self._names)
        for own, indices in split.refused:
            self._add("quarantined", own.dt, take(rows, indices), SCHEMA.names)
        for own, indices in split.filtered:
            self._add("filtered", own.dt, take(rows, indices), SCHEMA.names)

    def batch(
        self, _number: int, _part: SegmentRange, header: BatchHeader, _data: bytes, _rule: str, span: tuple[int, int]
    ) -> int:
        """Count a batch that cannot be decoded."""
        rows = offsets_of(header, span)
        [cell] = self._cells.numbers(np.array([span[0]], np.int64)).tolist()
        if cell >= 0:
            self._account("quarantined", None, cell).add(Account(rows))
        return rows

    def _add(self, kind: Kept, dt: date | None, rows: pa.RecordBatch, names: Sequence[str]) -> None:
        for cell, part in by_cell(rows, self._cells):
            if cell >= 0:
                self._account(kind, dt, cell).add(account_of_records(part, names))

    def _account(self, kind: Kept, dt: date | None, cell: int) -> Account:
        key = AccountKey(
            self._task.incarnation,
            self._task.partition,
            self._cells.starts[cell],
            kind,
            dt.isoformat() if dt else "",
        )
        return self.accounts.setdefault(key, Account())


def _file(job: Job, task: FileTask) -> Tally:
    tally = Tally(from_raw=False)
    folder = job.keys.root if task.kind == "landed" else job.keys.quarantine
    bounds = min(task.cells.starts, default=0), max(task.cells.ends, default=0)
    whole = task.incarnation, task.partition, *bounds, task.path
    try:
        body = open_store(job.lake_store, job.options).get(f"{folder}/{task.path}").body
        tally.bytes_read += len(body)
        reader = landed_rows if task.kind == "landed" else refused_rows
        for rows, counted, names in reader(body, task.path):
            tally.rows[task.path] = tally.rows.get(task.path, 0) + counted
            _count_file(tally, task, rows, counted, names)
    except NotFound as error:
        tally.troubles.append(Trouble("file_gone", *whole, str(error)))
    except (pa.ArrowException, OSError, ValueError) as error:  # pyarrow's error depends on where the damage is
        tally.troubles.append(Trouble("file_damaged", *whole, str(error)))
    return tally


def landed_rows(body: bytes, path: str | None = None) -> Iterator[Refused]:
    """(rows, their number, the file's columns). Raises ValueError if rows are not of the folder of ``path``."""
    for rows in by_offset(pq.ParquetFile(io.BytesIO(body)), _ROWS, path):
        for name in rows.schema.names:
            rows.column(name).validate(full=True)
        yield rows, len(rows), rows.schema.names


def refused_rows(body: bytes, _path: str | None = None) -> Iterator[Refused]:
    """Like :func:`landed_rows`; a batch is a row without columns that counts for its offsets."""
    for batch in pq.ParquetFile(io.BytesIO(body)).iter_batches(_ROWS):
        yield from refused_parts(batch.cast(QUARANTINE))


def _count_file(tally: Tally, task: FileTask, rows: pa.RecordBatch, counted: int, names: Sequence[str]) -> None:
    same = (_integers(rows, "kafka_incarnation") == task.incarnation) & (
        _integers(rows, "kafka_partition") == task.partition
    )
    if not same.all():
        _stray(tally, task, take(rows, np.flatnonzero(~same)))
        rows = take(rows, np.flatnonzero(same))
    for cell, part in by_cell(rows, task.cells):
        if cell < 0:
            _stray(tally, task, part)
            continue
        key = AccountKey(task.incarnation, task.partition, task.cells.starts[cell], task.kind, task.dt)
        if names:
            account = account_of_file(part, names)
            account.files.add(task.path)
        else:
            account = Account(counted, files={task.path})
        tally.add(key, account)


def _stray(tally: Tally, task: FileTask, rows: pa.RecordBatch) -> None:
    offsets = numbers(rows.column("kafka_offset"))
    at = rows.column("kafka_incarnation")[0].as_py(), rows.column("kafka_partition")[0].as_py()
    span = Interval(int(offsets.min()), int(offsets.max()) + 1)
    tally.troubles.append(Trouble("stray", *at, *span, task.path, f"{len(rows)} rows"))


def _integers(rows: pa.RecordBatch, name: str) -> Any:
    return rows.column(name).to_numpy(zero_copy_only=False)
