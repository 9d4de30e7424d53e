"""The first record with a given time or a later one, exactly as a broker finds it.

The segments' largest timestamps select the segment to open, its ``.timeindex`` the position to read from, and the
batches have the record. Markers of transactions have times too, and count as in Kafka
(``LogSegment.findOffsetByTimestamp``, ``FileRecords.searchForTimestamp``).
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidemark.decode import decode_batches, unrepresentable_timestamps
from tidemark.decode.offset_mask import OffsetMask
from tidemark.decode.schema import octets
from tidemark.errors import NotFound, PreconditionFailed
from tidemark.kafka_log.batch import CONTROL
from tidemark.kafka_log.indexes import TIME_INDEX_ENTRY_SIZE
from tidemark.raw.segments import Segment, live_until
from tidemark.remote.catalog.batch_scan import BatchSpan, windows
from tidemark.remote.catalog.offset_lookup import IndexObjects
from tidemark.remote.catalog.segment_index import StoredSegments
from tidemark.remote.catalog.stretch import OffsetForTime
from tidemark.remote.catalog.watermark_view import WatermarkView
from tidemark.store import Store

THREADS: Final = 16
"""The number of manifests requested at a time: the first lookup needs all of them."""

_ENTRY: Final = Struct(">qi")

MaskOf = Callable[[int, int], OffsetMask]
"""(start, end) → the erased offsets of ``[start, end)``."""


def first_at(
    timestamp: int,
    segments: StoredSegments,
    view: WatermarkView,
    store: Store,
    indexes: IndexObjects,
    mask_of: MaskOf,
    *,
    markers: bool,
) -> OffsetForTime | None:
    """The first record of ``view`` with at least ``timestamp`` (milliseconds), or maybe one beyond its end.

    Markers of transactions count with ``markers``, erased records never.
    """
    segments.read_all(THREADS)
    at = view.start
    for name in list(segments.late_enough(timestamp, view.start)):
        segment = segments.segment(name)
        if segment is None:  # gone just now: another may have its offsets
            return first_at(timestamp, segments, view, store, indexes, mask_of, markers=markers)
        if segment.end <= at:
            continue
        begin = max(at, segment.base)
        end = live_until(segment, view.lineage, begin)
        if end > begin:
            try:
                record = first_in(store, indexes, segment, timestamp, begin, end, mask_of, markers=markers)
            except (PreconditionFailed, NotFound):
                segments.forget(name)
                raise
            if record is not None:
                return record
            at = end
    for packed, begin, end in view.tail.pieces:
        if packed.max_timestamp is not None and packed.max_timestamp >= timestamp and end > at:
            record = first_in(store, indexes, packed, timestamp, max(begin, at), end, mask_of, markers=markers)
            if record is not None:
                return record
    return None


def first_in(
    store: Store,
    indexes: IndexObjects,
    segment: Segment,
    timestamp: int,
    start: int,
    end: int,
    mask_of: MaskOf,
    *,
    markers: bool,
) -> OffsetForTime | None:
    """The first record of ``segment`` in ``[start, end)`` with at least ``timestamp``."""
    after = max(start, before_time(indexes.times(store, segment), segment, timestamp) + 1)
    position = indexes.position(store, segment, after)
    mask = mask_of(start, end)
    for window in windows(store, segment, position):
        record = _first_in_window(window, segment, timestamp, start, end, mask, markers=markers)
        if record is not None:
            return record
        if window.headers["base_offset"][-1] >= end:
            break
    return None


def before_time(raw: bytes, segment: Segment, timestamp: int) -> int:
    """The last offset that a ``.timeindex`` proves to lie before ``timestamp``; below the segment's base if none.

    An entry's time is the largest up to its offset, so all records up to an entry of an earlier time are earlier.
    """
    low, high = 0, len(raw) // TIME_INDEX_ENTRY_SIZE
    while low < high:
        middle = (low + high) // 2
        time, relative = _ENTRY.unpack_from(raw, middle * TIME_INDEX_ENTRY_SIZE)
        if 0 < time < timestamp and 0 <= relative < segment.end - segment.base:
            low = middle + 1
        else:
            high = middle
    if low == 0:
        return segment.base - 1
    return segment.base + int(_ENTRY.unpack_from(raw, (low - 1) * TIME_INDEX_ENTRY_SIZE)[1])


def _first_in_window(
    window: BatchSpan, segment: Segment, timestamp: int, start: int, end: int, mask: OffsetMask, *, markers: bool
) -> OffsetForTime | None:
    headers = window.headers
    late = headers["max_timestamp"] >= timestamp
    late &= headers["base_offset"] + headers["last_offset_delta"] >= start
    for index in np.flatnonzero(late):
        row = headers[index]
        if row["attributes"] & CONTROL:
            if markers and start <= row["base_offset"] < end:
                return OffsetForTime(int(row["base_offset"]), int(row["max_timestamp"]), int(row["leader_epoch"]))
            continue
        rows = decode_batches(
            window.data,
            headers[index : index + 1],
            name=segment.key,
            partition=0,
            incarnation=0,
            from_offset=start,
            to_offset=end,
            position=window.position,
        )
        for batch in rows:
            times = _milliseconds(batch)
            late_rows = np.flatnonzero((times >= timestamp) & ~mask.rows(batch))
            if len(late_rows):
                at = int(late_rows[0])
                offset, epoch = batch.column("kafka_offset")[at].as_py(), batch.column("kafka_leader_epoch")[at].as_py()
                return OffsetForTime(offset, int(times[at]), epoch)
    return None


def _milliseconds(rows: pa.RecordBatch) -> NDArray[np.int64]:
    column = rows.column("kafka_timestamp")
    microseconds = octets(column.buffers()[1]).view(np.int64)
    values: NDArray[np.int64] = microseconds[column.offset : column.offset + len(column)] // 1000
    for row, value in unrepresentable_timestamps(rows):
        values[row] = value
    return values
