"""One task of a replay: reads quarantined rows, and parses them again. Pure worker code."""

from __future__ import annotations

import io
from collections.abc import Iterator
from itertools import groupby
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidemark import decode
from tidemark.errors import SegmentError
from tidemark.formats.table.partitioning import DateFolder
from tidemark.formats.table.plan import QuarantineTask, StoredRange
from tidemark.kafka_log.batch import read_header
from tidemark.store import open_store
from tidemark_spark.convert.date_partitioner import Numbers, numbers, take
from tidemark_spark.convert.guard import decoded, pass_on
from tidemark_spark.convert.quarantine import SCHEMA, records_of
from tidemark_spark.convert.row_sink import RowsAdded, Sink, offsets_of
from tidemark_spark.model import Job, Outcome

_ROWS: Final = 8192


def replayed(job: Job, task: QuarantineTask) -> Outcome:
    """Parse the rows of ``task``, all of one partition and one date, or all without a date.

    Raises:
        StoreError: the store did not answer, or a file of quarantine is gone.
    """
    store = open_store(job.lake_store, job.options)
    bytes_read = 0
    with Sink(job, task) as sink:
        numbered = list(enumerate(task.ranges))
        for file, parts in groupby(numbered, key=lambda entry: entry[1].quarantined):
            body = store.get(f"{job.keys.quarantine}/{file}").body
            bytes_read += len(body)
            ranges = list(parts)
            for rows in pq.ParquetFile(io.BytesIO(body)).iter_batches(_ROWS):
                for number, part in ranges:
                    _range(job, sink, number, part, rows)
        files, evidence = sink.close()
    return Outcome(
        incarnation=task.incarnation,
        partition=task.partition,
        from_offset=task.from_offset,
        next_offset=task.to_offset,
        files=tuple(files),
        evidence=tuple(evidence),
        stop=None,
        bytes_read=bytes_read,
        unknown=sink.unknown,
    )


def _range(job: Job, sink: Sink, number: int, part: StoredRange, rows: pa.RecordBatch) -> None:
    """Pass on the rows of one range, in runs that were uploaded or packed at the same time."""
    offsets = numbers(rows.column("kafka_offset"))
    within = (offsets >= part.from_offset) & (offsets < part.to_offset)
    within &= _mask(pc.equal(rows.column("segment"), pa.scalar(part.key)))
    chosen = take(rows.cast(SCHEMA), np.flatnonzero(within))
    for start, end, is_batch in _runs(_mask(chosen.column("batch").is_valid()), numbers(chosen.column("uploaded_at"))):
        run = chosen.slice(start, end - start)
        origin = part.model_copy(update={"uploaded_at": run.column("uploaded_at")[0].as_py()})
        if is_batch:
            _batches(job, sink, number, origin, run)
        else:
            pass_on(sink.rows, job, number, origin, records_of(run))


def _batches(job: Job, sink: Sink, number: int, part: StoredRange, rows: pa.RecordBatch) -> None:
    """Decode batches again; a batch that still cannot be decoded stays in quarantine."""
    at = rows.schema.get_field_index("attempt")
    rows = rows.set_column(at, SCHEMA.field(at), pa.array([job.attempt] * len(rows), pa.int64()))
    for row in range(len(rows)):
        first, end = rows.column("kafka_offset")[row].as_py(), rows.column("next_offset")[row].as_py()
        body = rows.column("batch")[row].as_py()
        count = offsets_of(read_header(body, 0, 0), (first, end))
        decoded_rows = _decoded(job, rows.slice(row, 1), body, part.key)
        if sum(map(len, decoded_rows)) == count:
            for records in decoded_rows:
                pass_on(sink.rows, job, number, part, records)
        else:
            sink.quarantine(DateFolder(None), number, rows.slice(row, 1), RowsAdded(count, first, end - 1, 0))


def _decoded(job: Job, row: pa.RecordBatch, body: bytes, name: str) -> list[pa.RecordBatch]:
    """Records of a batch in quarantine; fewer or none if it still cannot be decoded."""
    incarnation, partition, first, end = (
        row.column(column)[0].as_py()
        for column in ("kafka_incarnation", "kafka_partition", "kafka_offset", "next_offset")
    )
    try:
        headers = decode.scan_headers(body, name, 0)
    except SegmentError:
        return []
    rows = decoded(
        job,
        body,
        headers,
        name=name,
        position=0,
        partition=partition,
        incarnation=incarnation,
        from_offset=first,
        to_offset=end,
        on_refused=lambda *_: None,  # then there are fewer rows
    )
    return list(rows)


def _runs(mask: Any, times: Numbers) -> Iterator[tuple[int, int, bool]]:
    """Spans of adjacent rows with an equal mask and time."""
    edges: Numbers = np.flatnonzero(np.diff(mask) | (np.diff(times) != 0)) + 1
    for start, end in zip([0, *edges.tolist()], [*edges.tolist(), len(mask)], strict=True):
        if end > start:
            yield start, end, bool(mask[start])


def _mask(values: pa.Array[Any]) -> Any:
    return values.to_numpy(zero_copy_only=False)
