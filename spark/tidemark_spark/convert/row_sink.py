"""Sorts a task's rows into the table's files by date or into quarantine, and makes the evidence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import pyarrow as pa

from tidemark import decode
from tidemark.decode import SCHEMA
from tidemark.formats.raw.hashsum import combine
from tidemark.formats.table.ledger import file_digest
from tidemark.formats.table.parquet_layout import ParquetLayout
from tidemark.formats.table.partitioning import DateFolder
from tidemark.formats.table.plan import QuarantineTask, SegmentTask, StoredRange, StoredTask
from tidemark.formats.table.steps import DataFile
from tidemark.kafka_log import BatchHeader
from tidemark.kafka_log.batch import read_header
from tidemark.parsers.base import Parser
from tidemark.parsers.unknown_fields import summed
from tidemark.store import Store, open_store
from tidemark.table.evidence import EvidenceRow
from tidemark.table.topic_columns import HOUR_COLUMN, table_schema
from tidemark.topics import TopicSettings
from tidemark_spark.convert.date_partitioner import Numbers, RowSplitter, numbers, take, timestamps
from tidemark_spark.convert.guard import parsed
from tidemark_spark.convert.parquet_writer import FolderFiles
from tidemark_spark.convert.partition_columns import RowPartitions, topic_parser
from tidemark_spark.convert.quarantine import SCHEMA as QUARANTINE_SCHEMA
from tidemark_spark.convert.quarantine import Origin, records_of, refused_batch, refused_rows
from tidemark_spark.model import Job


def namer(job: Job, task: StoredTask) -> Callable[[int, int], str]:
    """A function that names the files of ``task`` by their first and last offset."""
    labels = [part.label for part in task.ranges]
    digest = file_digest(task.topic_id, labels, job.configuration, job.code, job.attempt)
    return lambda first, last: f"{job.generation}_{task.partition}_{first}_{last}_{digest}.parquet"


class RowsAdded(NamedTuple):
    """The ``rows`` offsets from ``first`` to ``last`` that one call adds to a file, and their times in microseconds."""

    rows: int
    first: int
    last: int
    hash128: int
    min_timestamp: int = 0
    max_timestamp: int = 0

    def then(self, later: RowsAdded) -> RowsAdded:
        """The sum of this call and a ``later`` one."""
        return RowsAdded(
            self.rows + later.rows,
            min(self.first, later.first),  # refused batches come after the rows of their window
            max(self.last, later.last),
            combine(self.hash128, later.hash128),
            min(self.min_timestamp, later.min_timestamp),
            max(self.max_timestamp, later.max_timestamp),
        )


@dataclass
class _KindOutput:
    """The files of one kind: contents by folder and number of the range, and complete files."""

    task: SegmentTask | QuarantineTask
    root: str
    name_of: Callable[[int, int], str]
    offset_class: Literal["landed", "quarantined", "filtered"]
    timed: bool = True
    contents: dict[DateFolder, dict[int, RowsAdded]] = field(default_factory=dict)
    files: list[DataFile] = field(default_factory=list)
    evidence: list[EvidenceRow] = field(default_factory=list)

    def opened(
        self, store: Store, schema: pa.Schema, layout: ParquetLayout, field_ids: Mapping[str, int] | None = None
    ) -> FolderFiles:
        """A writer that names and records its files here."""

        def key_of(folder: DateFolder, first: int, last: int) -> str:
            return f"{self.root}/{self._path(folder, first, last)}"

        return FolderFiles(store, schema, key_of, self._done, layout, field_ids)

    def record(self, folder: DateFolder, number: int, added: RowsAdded) -> None:
        """Record rows of range ``number`` that were written to the file of ``folder``."""
        parts = self.contents.setdefault(folder, {})
        parts[number] = parts[number].then(added) if number in parts else added

    def close(self) -> None:
        """Record the evidence of contents that no writer writes."""
        for folder, parts in sorted(self.contents.items(), key=lambda entry: entry[0].order):
            first, last = parts[min(parts)].first, parts[max(parts)].last
            self._done(folder, f"{self.root}/{self._path(folder, first, last)}", 0)

    def _path(self, folder: DateFolder, first: int, last: int) -> str:
        return f"{folder.path}/{self.name_of(first, last)}"

    def _done(self, folder: DateFolder, key: str, size: int) -> None:
        parts, dt = self.contents.pop(folder), folder.dt
        path = key.removeprefix(f"{self.root}/")
        rows = [added for _, added in sorted(parts.items())]
        if dt is not None and self.offset_class == "landed":
            self.files.append(
                DataFile(
                    path=path,
                    size=size,
                    rows=sum(part.rows for part in rows),
                    dt=dt,
                    partition=self.task.partition,
                    first_offset=rows[0].first,
                    last_offset=rows[-1].last,
                    min_timestamp=min(part.min_timestamp for part in rows),
                    max_timestamp=max(part.max_timestamp for part in rows),
                    untimed=0 if self.timed else sum(part.rows for part in rows),
                )
            )
        for number, added in sorted(parts.items()):
            source = self.task.ranges[number]
            self.evidence.append(
                EvidenceRow(
                    incarnation=self.task.incarnation,
                    partition=self.task.partition,
                    first=added.first,
                    next=added.last + 1,
                    offset_class=self.offset_class,
                    rows=added.rows,
                    dt=dt,
                    segment=source.key,
                    byte_start=source.start,
                    byte_end=source.end,
                    hash128=added.hash128,
                    file=path,
                )
            )


class WantedRows:
    """The rows of a task that its run wants: those of its dates that retention has not removed before."""

    def __init__(self, job: Job, task: SegmentTask | QuarantineTask) -> None:
        plan = job.partitions.get((task.incarnation, task.partition))
        spans = plan.expired_rows if plan else {}
        self._job = job
        self._expired = {date.fromisoformat(dt): np.ravel(np.array(parts, np.int64)) for dt, parts in spans.items()}

    def among(self, rows: pa.RecordBatch, dt: date | None, indices: Numbers) -> Numbers:
        """The wanted ones of the rows at ``indices``, which are of ``dt``."""
        if not self._job.wants(dt):
            return indices[:0]
        edges = None if dt is None else self._expired.get(dt)
        if edges is None:
            return indices
        # An offset lies in an interval if it has an odd number of their ascending edges at or below it.
        edges_below = np.searchsorted(edges, numbers(rows.column("kafka_offset"))[indices], side="right")
        kept: Numbers = indices[edges_below % 2 == 0]
        return kept


class Sink:
    """Parses the rows of a task and sorts them into files. A rebuild keeps only rows of its dates.

    ``date_partitioner.Split`` gives the folder of a row; batches that cannot be decoded belong to the folder without a
    date. ``unknown`` has the unknown fields of all rows passed to the sink.
    """

    def __init__(self, job: Job, task: SegmentTask | QuarantineTask, store: Store | None = None) -> None:
        """Files are written to the lake's store, or to ``store``."""
        self._job, self._task = job, task
        self._wanted = WantedRows(job, task)
        self._parser = topic_parser(job.topic)
        self._splitter = splitter_of(job.topic, self._parser)
        name_of = namer(job, task)
        store = store or open_store(job.lake_store, job.options)
        self._schema = table_schema(job.topic, self._parser)
        timed = "kafka_timestamp" in self._schema.names
        self._landed = _KindOutput(task, job.keys.root, name_of, "landed", timed)
        self._refused = _KindOutput(task, job.keys.quarantine, name_of, "quarantined")
        self._filtered = _KindOutput(task, "", lambda first, last: f"{name_of(first, last)}.filtered", "filtered")
        self._landed_files = self._landed.opened(store, self._schema, job.layout, job.field_ids)
        self._refused_files = self._refused.opened(store, QUARANTINE_SCHEMA, job.layout)
        self.other_rows = 0
        self.unknown: Mapping[str, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._landed_files.__exit__(*error)
        self._refused_files.__exit__(*error)

    def rows(self, number: int, part: StoredRange, rows: pa.RecordBatch, refusal: str | None = None) -> None:
        """Take decoded rows of ``part``, the range ``number``; a ``refusal`` refuses all of them."""
        result = parsed(self._parser, rows, refusal)
        if result.unknown:
            self.unknown = summed((self.unknown, result.unknown))
        split = self._splitter.split(rows, result, part.uploaded_at)
        whole = beside(rows, result.columns, split.hours)
        for folder, indices in self._chosen(rows, split.landed):
            chosen = take(whole, indices)
            added = _added(chosen)
            self._landed_files.add(folder, chosen.select(self._schema.names), added.first, added.last)
            self._landed.record(folder, number, added)
        for own, indices in self._chosen(rows, split.refused):
            refused = refused_rows(rows, indices, split.reasons, self._origin(part))
            self.quarantine(own, number, refused, _added(take(rows, indices)))
        for own, indices in self._chosen(rows, split.filtered):
            self._filtered.record(own, number, _added(take(rows, indices)))

    def batch(
        self, number: int, part: StoredRange, header: BatchHeader, data: bytes, rule: str, span: tuple[int, int]
    ) -> int:
        """Take a batch that ``rule`` makes undecodable; returns the number of its offsets.

        That is the number of its records, or all of ``span`` if its header does not state a number.
        """
        rows = offsets_of(header, span)
        if self._job.wants(None):
            partition = self._task.incarnation, self._task.partition
            refused = refused_batch(header, data, rule, partition, span, self._origin(part))
            self.quarantine(DateFolder(None), number, refused, RowsAdded(rows, span[0], span[1] - 1, 0))
        else:
            self.other_rows += rows
        return rows

    def quarantine(self, own: DateFolder, number: int, refused: pa.RecordBatch, added: RowsAdded) -> None:
        """Take refused rows of range ``number``, or a batch, in the form of quarantine."""
        self._refused_files.add(own, refused, added.first, added.last)
        self._refused.record(own, number, added)

    def close(self) -> tuple[list[DataFile], list[EvidenceRow]]:
        """Complete all files: (data files, evidence of landed, quarantined and filtered rows)."""
        self._landed_files.close()
        self._refused_files.close()
        self._filtered.close()
        return self._landed.files, self._landed.evidence + self._refused.evidence + self._filtered.evidence

    def _chosen(
        self, rows: pa.RecordBatch, split: Iterable[tuple[DateFolder, Numbers]]
    ) -> Iterator[tuple[DateFolder, Numbers]]:
        """The part of ``split`` that the run wants; the other rows are counted."""
        for folder, indices in split:
            chosen = self._wanted.among(rows, folder.dt, indices)
            self.other_rows += len(indices) - len(chosen)
            if len(chosen):
                yield folder, chosen

    def _origin(self, part: StoredRange) -> Origin:
        return Origin(part.key, part.uploaded_at, self._parser.version, self._job.attempt)


def offsets_of(header: BatchHeader, span: tuple[int, int]) -> int:
    """Number of offsets that a batch that cannot be decoded accounts for."""
    return header.record_count if header.record_count >= 0 else span[1] - span[0]


def splitter_of(topic: TopicSettings, parser: Parser) -> RowSplitter:
    """The splitter of the rows of ``topic``, with the columns of ``parser``."""
    beside_dt = topic.partition_by[1:]
    partitions = RowPartitions(beside_dt, parser.columns) if beside_dt else None
    return RowSplitter(topic.zone, topic.sane_timestamps, partitions)


def beside(rows: pa.RecordBatch, columns: pa.RecordBatch, hours: pa.Array[Any] | None = None) -> pa.RecordBatch:
    """``rows`` with a parser's columns after Kafka's, and then ``hour``, if the table has it."""
    if not columns.num_columns and hours is None:
        return rows
    more = [] if hours is None else [hours]
    schema = pa.schema([*rows.schema, *columns.schema, *([] if hours is None else [HOUR_COLUMN])])
    return pa.RecordBatch.from_arrays([*rows.columns, *columns.columns, *more], schema=schema)


def _added(rows: pa.RecordBatch) -> RowsAdded:
    offsets = rows.column("kafka_offset")
    milliseconds, _ = timestamps(rows)
    return RowsAdded(
        rows=len(rows),
        first=offsets[0].as_py(),
        last=offsets[-1].as_py(),
        hash128=decode.row_hash_sum(rows),
        min_timestamp=int(np.min(milliseconds)) * 1000,
        max_timestamp=int(np.max(milliseconds)) * 1000,
    )


Refused = tuple[pa.RecordBatch, int, Sequence[str]]
"""Rows, their number, and the names of their columns; of a batch without columns, the number of its offsets."""


def refused_parts(refused: pa.RecordBatch) -> Iterator[Refused]:
    """The records of quarantined rows, and each of their batches."""
    batches = refused.column("batch")
    record = np.array([content is None for content in batches.to_pylist()], np.bool_)
    if record.any():
        rows = records_of(take(refused, np.flatnonzero(record)))
        yield rows, len(rows), SCHEMA.names
    for index in np.flatnonzero(~record).tolist():
        row = refused.slice(index, 1)
        first, end = row.column("kafka_offset")[0].as_py(), row.column("next_offset")[0].as_py()
        yield row, offsets_of(read_header(batches[index].as_py(), 0, 0), (first, end)), ()
