"""Where a task's rows go: the table's files by date, or quarantine; and the evidence of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date
from typing import Final, Literal, NamedTuple, Self

import numpy as np
import pyarrow as pa

from tidemark.decode import SCHEMA
from tidemark.decode.rowhash import row_hash_sum
from tidemark.evidence import EvidenceRow
from tidemark.hashsum import combine
from tidemark.ledger import file_digest
from tidemark.records import BatchHeader
from tidemark.runs import SegmentRange, Task
from tidemark.store import Store, open_store
from tidemark.topics import Column
from tidemark_spark.dates import DateSplitter, take, timestamps
from tidemark_spark.job import DataFile, Job
from tidemark_spark.quarantine import SCHEMA as QUARANTINE_SCHEMA
from tidemark_spark.quarantine import refused_batch, refused_rows
from tidemark_spark.writer import DateFiles

_ALWAYS: Final = ("kafka_incarnation", "kafka_partition", "kafka_offset")


def table_schema(keep: tuple[Column, ...]) -> pa.Schema:
    """The schema of a data file: Kafka's columns that the topic keeps, in their order; ``dt`` is in the path alone."""
    names = {*_ALWAYS, *(f"kafka_{one}" for one in keep)}
    return pa.schema([one for one in SCHEMA if one.name in names])


class Added(NamedTuple):
    """What one call adds to a file: ``rows`` offsets from ``first`` to ``last``, and their times in microseconds."""

    rows: int
    first: int
    last: int
    hash128: int
    min_timestamp: int = 0
    max_timestamp: int = 0

    def then(self, later: Added) -> Added:
        """Both, of which ``later`` has the higher offsets."""
        return Added(
            self.rows + later.rows,
            self.first,
            later.last,
            combine(self.hash128, later.hash128),
            min(self.min_timestamp, later.min_timestamp),
            max(self.max_timestamp, later.max_timestamp),
        )


@dataclass
class _Output:
    """The files of one kind, their contents by date and number of the range, and what is complete."""

    task: Task
    folder: str
    name_of: Callable[[int, int], str]
    offset_class: Literal["landed", "quarantined"]
    contents: dict[date, dict[int, Added]] = field(default_factory=dict)
    files: list[DataFile] = field(default_factory=list)
    evidence: list[EvidenceRow] = field(default_factory=list)

    def opened(self, store: Store, schema: pa.Schema) -> DateFiles:
        """The writer whose files are named and recorded here."""
        return DateFiles(
            store, schema, lambda dt, first, last: f"{self.folder}/{self._path(dt, first, last)}", self._done
        )

    def record(self, dt: date, number: int, added: Added) -> None:
        """Take account of rows of range ``number`` that were written to the file of ``dt``."""
        parts = self.contents.setdefault(dt, {})
        parts[number] = parts[number].then(added) if number in parts else added

    def _path(self, dt: date, first: int, last: int) -> str:
        return f"dt={dt.isoformat()}/{self.name_of(first, last)}"

    def _done(self, dt: date, key: str, size: int) -> None:
        parts = self.contents.pop(dt)
        path = key.removeprefix(f"{self.folder}/")
        rows = [added for _, added in sorted(parts.items())]
        self.files.append(
            DataFile(
                path=path,
                size=size,
                rows=sum(one.rows for one in rows),
                dt=dt,
                partition=self.task.partition,
                first_offset=rows[0].first,
                last_offset=rows[-1].last,
                min_timestamp=min(one.min_timestamp for one in rows),
                max_timestamp=max(one.max_timestamp for one in rows),
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


class Sink:
    """Sorts the rows of a task into files. A rebuild keeps rows of its dates alone, and refuses nothing anew."""

    def __init__(self, job: Job, task: Task) -> None:
        self._job, self._task = job, task
        self._splitter = DateSplitter(job.topic.zone, job.topic.sane_timestamps)
        labels = [one.label for one in task.ranges]
        digest = file_digest(task.topic_id, labels, job.configuration, job.code, job.attempt)

        def name_of(first: int, last: int) -> str:
            return f"{job.generation}_{task.partition}_{first}_{last}_{digest}.parquet"

        store = open_store(job.lake_store, job.options)
        self._schema = table_schema(job.topic.keep)
        self._landed = _Output(task, job.keys.root, name_of, "landed")
        self._refused = _Output(task, job.keys.quarantine, name_of, "quarantined")
        self._landed_files = self._landed.opened(store, self._schema)
        self._refused_files = self._refused.opened(store, QUARANTINE_SCHEMA)
        self.other_rows = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._landed_files.__exit__(*error)
        self._refused_files.__exit__(*error)

    def rows(self, number: int, part: SegmentRange, rows: pa.RecordBatch) -> None:
        """Take decoded rows of range ``number``, which is ``part``."""
        split = self._splitter.split(rows, part.uploaded_at)
        for dt, chosen in split.by_date:
            if self._job.dates and dt not in self._job.dates:
                self.other_rows += len(chosen)
                continue
            added = _added(chosen)
            # Written first: to open a file may complete another, of which the record is complete by then.
            self._landed_files.add(dt, chosen.select(self._schema.names), added.first, added.last)
            self._landed.record(dt, number, added)
        if self._job.dates:
            self.other_rows += len(split.insane)
        elif len(split.insane):
            bounds = self._splitter.bounds(part.uploaded_at)
            refused = refused_rows(rows, split.insane, bounds, part.key, self._job.attempt)
            self._quarantine(number, refused, _added(take(rows, split.insane)))

    def batch(
        self, number: int, part: SegmentRange, header: BatchHeader, data: bytes, rule: str, span: tuple[int, int]
    ) -> int:
        """Take a batch that cannot be decoded, for ``rule``; returns how many offsets it accounts for.

        Those are its records, or all of ``span`` where its header does not tell their number.
        """
        rows = header.record_count if header.record_count >= 0 else span[1] - span[0]
        if self._job.dates:
            self.other_rows += rows
            return rows
        partition = self._task.incarnation, self._task.partition
        refused = refused_batch(header, data, rule, partition, span, part.key, self._job.attempt)
        self._quarantine(number, refused, Added(rows, span[0], span[1] - 1, 0))
        return rows

    def close(self) -> tuple[list[DataFile], list[EvidenceRow]]:
        """Complete all files: (data files, evidence of landed and quarantined rows)."""
        self._landed_files.close()
        self._refused_files.close()
        return self._landed.files, self._landed.evidence + self._refused.evidence

    def _quarantine(self, number: int, refused: pa.RecordBatch, added: Added) -> None:
        today = self._job.created_at.date()
        self._refused_files.add(today, refused, added.first, added.last)
        self._refused.record(today, number, added)


def _added(rows: pa.RecordBatch) -> Added:
    offsets = rows.column("kafka_offset")
    milliseconds, _ = timestamps(rows)
    return Added(
        rows=len(rows),
        first=offsets[0].as_py(),
        last=offsets[-1].as_py(),
        hash128=row_hash_sum(rows),
        min_timestamp=int(np.min(milliseconds)) * 1000,
        max_timestamp=int(np.max(milliseconds)) * 1000,
    )
