"""One task of an erasure: makes a file of the table or of quarantine again, without its erased rows.

A third kind of task reads raw, and only sums the erased records: of files without all hashed columns, and of filtered
rows, the evidence cannot be divided otherwise. A task is a function of its plan, of the masks and of what it reads.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date
from functools import cached_property
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tidemark import decode
from tidemark.decode import SCHEMA
from tidemark.errors import ContinuityError, FormatError
from tidemark.formats.table.partitioning import DateFolder
from tidemark.formats.table.plan import QuarantineTask, SegmentRange, SegmentTask, TableFileTask
from tidemark.parsers.base import Parsed, no_rows
from tidemark.store import open_store
from tidemark.table.evidence import EvidenceClass, EvidenceRow
from tidemark_spark.convert.classify import PartitionRules
from tidemark_spark.convert.conversion import by_shipping
from tidemark_spark.convert.date_partitioner import RowSplitter, numbers, take
from tidemark_spark.convert.parquet_writer import FolderFiles
from tidemark_spark.convert.partition_columns import topic_parser
from tidemark_spark.convert.quarantine import SCHEMA as QUARANTINE
from tidemark_spark.convert.quarantine import records_of
from tidemark_spark.convert.rewriting.compaction import RewrittenFile, merged_schema
from tidemark_spark.convert.rewriting.merge import Input, merged
from tidemark_spark.convert.row_checksums import Account, Cells, by_cell, hash_of_file
from tidemark_spark.convert.row_sink import namer, refused_parts, splitter_of
from tidemark_spark.convert.segment_reader import judged
from tidemark_spark.model import Job, Outcome, Stop

_ROWS = 8192


def erased(job: Job, task: TableFileTask | QuarantineTask | SegmentTask) -> Outcome:
    """Carry out ``task``.

    For each range, the outcome's evidence has a row of what is kept, even if that is nothing, and rows of class
    ``erased`` for the rows that were left out; ``segment`` names the source. A failure is returned as ``stop``, because
    Spark would repeat the task after an exception.

    Raises:
        StoreError: the store did not answer, or a file is gone.
    """
    rules = PartitionRules.of(job.partitions[task.incarnation, task.partition], job.options)
    division = FileDivision(job, task, rules)
    try:
        match task:
            case TableFileTask():
                division.landed(task)
            case QuarantineTask():
                division.quarantined(task)
            case SegmentTask():
                division.raw(task)
    except (ContinuityError, FormatError, pa.ArrowException, OSError, ValueError) as error:
        return division.outcome(Stop(task.from_offset, task.to_offset, "corrupt", " ".join(str(error).split())))
    return division.outcome(None)


@dataclass
class FileDivision:
    """The division of a task's rows into kept and erased ones, by range."""

    job: Job
    task: TableFileTask | QuarantineTask | SegmentTask
    rules: PartitionRules
    kept: list[Account] = field(init=False)
    gone: list[EvidenceRow] = field(default_factory=list)
    output: RewrittenFile | None = None
    refused: str | None = None
    hashed: bool = True
    bytes_read: int = 0

    def __post_init__(self) -> None:
        self.kept = [Account() for _ in self.task.ranges]
        self._cells = Cells(
            tuple(part.from_offset for part in self.task.ranges), tuple(part.to_offset for part in self.task.ranges)
        )
        self._source = self.task.ranges[0]

    def landed(self, task: TableFileTask) -> None:
        """Make a file of the table again."""
        store, schema = open_store(self.job.lake_store, self.job.options), merged_schema(self.job)
        [source, *_] = task.ranges  # spans of one file
        file = Input(store, source, schema)
        self.output = RewrittenFile(self.job, task, store, schema)
        self.output.write(self._without_erased(merged([file])))
        self.output.check()
        self.hashed = file.hashed
        self.bytes_read = source.end + self.output.size

    def _without_erased(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        names = [name for name in merged_schema(self.job).names if name in SCHEMA.names]
        masked = self._masked()
        for rows in batches:
            erased_rows = np.isin(numbers(rows.column("kafka_offset")), masked)
            for cell, part in by_cell(take(rows, np.flatnonzero(erased_rows)), self._cells):
                self._erase(cell, part, hash_of_file(part, names))
            chosen = take(rows, np.flatnonzero(~erased_rows)) if erased_rows.any() else rows
            for cell, part in by_cell(chosen, self._cells):
                self._check_cell(cell, part)
                self.kept[cell].add(Account(len(part), hash_of_file(part, names)))
            if len(chosen):
                yield chosen

    def quarantined(self, task: QuarantineTask) -> None:
        """Make a file of quarantine again."""
        store = open_store(self.job.lake_store, self.job.options)
        body = store.get(self._source.key).body
        self.bytes_read = len(body)
        masked = self._masked()
        folder = DateFolder.of(self._source.quarantined)
        name_of = namer(self.job, task)

        def key_of(own: DateFolder, first: int, last: int) -> str:
            return f"{self.job.keys.quarantine}/{own.path}/{name_of(first, last)}"

        def done(_own: DateFolder, key: str, _size: int) -> None:
            self.refused = key.removeprefix(f"{self.job.keys.quarantine}/")

        with FolderFiles(store, QUARANTINE, key_of, done, self.job.layout) as files:
            for batch in pq.ParquetFile(io.BytesIO(body)).iter_batches(_ROWS):
                rows = batch.cast(QUARANTINE)
                offsets = numbers(rows.column("kafka_offset"))
                is_record = rows.column("batch").is_null().to_numpy(zero_copy_only=False)
                erased_rows = is_record & np.isin(offsets, masked)
                for cell, part in by_cell(take(rows, np.flatnonzero(erased_rows)), self._cells):
                    self._erase(cell, part, decode.row_hash_sum(records_of(part)))
                for cell, part in by_cell(take(rows, np.flatnonzero(is_record & ~erased_rows)), self._cells):
                    self._check_cell(cell, part)
                    self.kept[cell].add(Account(len(part), decode.row_hash_sum(records_of(part))))
                for cell, part in by_cell(take(rows, np.flatnonzero(~is_record)), self._cells):
                    self._check_cell(cell, part)
                    self.kept[cell].add(Account(sum(counted for _, counted, _ in refused_parts(part))))
                if not erased_rows.all():
                    chosen = take(rows, np.flatnonzero(~erased_rows))
                    kept = numbers(chosen.column("kafka_offset"))
                    files.add(folder, chosen, int(kept.min()), int(numbers(chosen.column("next_offset")).max()) - 1)
            files.close()

    def raw(self, task: SegmentTask) -> None:
        """Sum the erased records of ranges of raw."""
        for cell, part in enumerate(task.ranges):
            for window, verdict, expected in judged(open_store(part.store, self.job.options), part, self.rules):
                self.bytes_read += len(window.data)
                wanted = self.rules.erased(expected, verdict.next_offset, compacted=True)
                first = np.searchsorted(wanted, verdict.data["base_offset"])
                after = np.searchsorted(wanted, verdict.data["base_offset"] + verdict.data["last_offset_delta"] + 1)
                for rows in decode.decode_batches(
                    window.data,
                    verdict.data[first < after],
                    name=part.key,
                    partition=self.task.partition,
                    incarnation=self.task.incarnation,
                    from_offset=max(part.from_offset, expected),
                    to_offset=part.to_offset,
                    position=window.position,
                ):
                    self._sum(cell, part, take(rows, np.flatnonzero(self.rules.mask.rows(rows))))

    def _sum(self, cell: int, part: SegmentRange, rows: pa.RecordBatch) -> None:
        """Sum erased records one by one, each with the date that filtered rows have: that of its timestamp."""
        for origin, run in by_shipping(part, rows) if len(rows) else ():
            filtered = Parsed(no_rows(pa.schema([]), len(run)), filtered=np.ones(len(run), np.bool_))
            for own, indices in self._splitter.split(run, filtered, origin.uploaded_at).filtered:
                for row in indices.tolist():
                    self._erase(cell, run.slice(row, 1), decode.row_hash_sum(run.slice(row, 1)), own.dt)

    @cached_property
    def _splitter(self) -> RowSplitter:
        return splitter_of(self.job.topic, topic_parser(self.job.topic))

    def _masked(self) -> NDArray[np.int64]:
        start, end = self.task.from_offset, max(part.to_offset for part in self.task.ranges)
        return self.rules.erased(start, end, compacted=True)

    def _erase(self, cell: int, rows: pa.RecordBatch, hash128: int, dt: date | None = None) -> None:
        self._check_cell(cell, rows)
        offsets = numbers(rows.column("kafka_offset"))
        edges = [0, *(np.flatnonzero(np.diff(offsets) != 1) + 1).tolist(), len(offsets)]
        for number, (start, end) in enumerate(pairwise(edges)):
            span = int(offsets[start]), int(offsets[end - 1]) + 1
            row = self._row("erased", *span, end - start, hash128 if not number else 0)
            self.gone.append(row._replace(dt=dt))

    def _check_cell(self, cell: int, rows: pa.RecordBatch) -> None:
        if cell < 0:
            offset = rows.column("kafka_offset")[0].as_py()
            raise ContinuityError(
                f"{self._source.key}: has offset {offset}, which no evidence gives to it; audit its date"
            )

    def _row(
        self, name: EvidenceClass, first: int, after: int, rows: int, hash128: int | None, file: str | None = None
    ) -> EvidenceRow:
        return EvidenceRow(
            self.task.incarnation,
            self.task.partition,
            first,
            after,
            name,
            rows,
            segment=self._source.key,
            hash128=hash128,
            file=file,
        )

    def outcome(self, stop: Stop | None) -> Outcome:
        """The result of the task."""
        quarantined = isinstance(self.task, QuarantineTask)
        file = self.refused if quarantined else self.output.path if self.output and not self.output.empty else None
        name: EvidenceClass = "quarantined" if quarantined else "landed"
        kept = [
            self._row(name, part.from_offset, part.to_offset, total.rows, total.hash128 if self.hashed else None, file)
            for part, total in zip(self.task.ranges, self.kept, strict=True)
        ]
        written = self.output is not None and not self.output.empty and stop is None
        return Outcome(
            incarnation=self.task.incarnation,
            partition=self.task.partition,
            from_offset=self.task.from_offset,
            next_offset=max(part.to_offset for part in self.task.ranges),
            files=(self.output.file(),) if self.output and written else (),
            evidence=() if stop else (*kept, *self.gone),
            stop=stop,
            bytes_read=self.bytes_read,
        )
