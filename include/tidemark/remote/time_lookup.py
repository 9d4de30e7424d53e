"""The offset of a time in a stored partition.

The first record with a given time or a later one is found exactly as a broker finds it. The segments' largest
timestamps select the segment to open, its ``.timeindex`` the position to read from, and the batches have the record.
Markers of transactions have times too, and count as in Kafka (``LogSegment.findOffsetByTimestamp``,
``FileRecords.searchForTimestamp``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from tidemark.decode import Headers, decode_batches, exact_milliseconds, scan_headers
from tidemark.decode.offset_mask import OffsetMask
from tidemark.errors import NotFound, PreconditionFailed
from tidemark.kafka_log.batch import CONTROL, LOG_OVERHEAD, PREFIX_SIZE
from tidemark.kafka_log.indexes import TIME_INDEX_ENTRY_SIZE
from tidemark.raw.segments import Segment, live_until
from tidemark.remote.segments import IndexObjects, StoredSegments
from tidemark.storage import PartitionStore
from tidemark.store import Store

if TYPE_CHECKING:
    from tidemark.remote.partition import WatermarkView

MANIFEST_THREADS: Final = 16
"""The number of manifests requested at a time: the first lookup needs all of them."""

MaskOf = Callable[[int, int], OffsetMask]
"""(start, end) → the erased offsets of ``[start, end)``."""

_FIRST_WINDOW: Final = 64 << 10
_LARGEST_WINDOW: Final = 4 << 20

_TIME_ENTRY: Final = Struct(">qi")


def first_at(
    timestamp: int,
    segments: StoredSegments,
    view: WatermarkView,
    place: PartitionStore,
    indexes: IndexObjects,
    mask_of: MaskOf,
    *,
    markers: bool,
) -> OffsetForTime | None:
    """The first record of ``view`` with at least ``timestamp`` (milliseconds), or maybe one beyond its end.

    Markers of transactions count with ``markers``, erased records never.
    """
    segments.read_all(MANIFEST_THREADS)
    at = view.start
    for name in list(segments.late_enough(timestamp, view.start)):
        segment = segments.segment(name)
        if segment is None:  # gone just now: another may have its offsets
            return first_at(timestamp, segments, view, place, indexes, mask_of, markers=markers)
        if segment.end <= at:
            continue
        begin = max(at, segment.base)
        end = live_until(segment, view.lineage, begin)
        if end > begin:
            try:
                record = first_in(place, indexes, segment, timestamp, begin, end, mask_of, markers=markers)
            except (PreconditionFailed, NotFound):
                segments.forget(name)
                raise
            if record is not None:
                return record
            at = end
    for packed, begin, end in view.tail.pieces:
        if packed.max_timestamp is not None and packed.max_timestamp >= timestamp and end > at:
            record = first_in(place, indexes, packed, timestamp, max(begin, at), end, mask_of, markers=markers)
            if record is not None:
                return record
    return None


def first_in(
    place: PartitionStore,
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
    after = max(start, before_time(indexes.times(place.store, segment), segment, timestamp) + 1)
    position = indexes.position(place, segment, after)
    mask = mask_of(start, end)
    for data, headers, at in batch_windows(place.store_at(segment.store), segment, position):
        record = _first_in_window(data, headers, at, segment, timestamp, start, end, mask, markers=markers)
        if record is not None:
            return record
        if headers["base_offset"][-1] >= end:
            break
    return None


def before_time(raw: bytes, segment: Segment, timestamp: int) -> int:
    """The last offset that a ``.timeindex`` proves to lie before ``timestamp``; below the segment's base if none.

    An entry's time is the largest up to its offset, so all records up to an entry of an earlier time are earlier.
    """
    low, high = 0, len(raw) // TIME_INDEX_ENTRY_SIZE
    while low < high:
        middle = (low + high) // 2
        time, relative = _TIME_ENTRY.unpack_from(raw, middle * TIME_INDEX_ENTRY_SIZE)
        if 0 < time < timestamp and 0 <= relative < segment.end - segment.base:
            low = middle + 1
        else:
            high = middle
    if low == 0:
        return segment.base - 1
    return segment.base + int(_TIME_ENTRY.unpack_from(raw, (low - 1) * TIME_INDEX_ENTRY_SIZE)[1])


def _first_in_window(
    data: bytes,
    headers: Headers,
    position: int,
    segment: Segment,
    timestamp: int,
    start: int,
    end: int,
    mask: OffsetMask,
    *,
    markers: bool,
) -> OffsetForTime | None:
    """The first such record in a window of :func:`batch_windows`."""
    late = headers["max_timestamp"] >= timestamp
    late &= headers["base_offset"] + headers["last_offset_delta"] >= start
    for index in np.flatnonzero(late):
        row = headers[index]
        if row["attributes"] & CONTROL:
            if markers and start <= row["base_offset"] < end:
                return OffsetForTime(int(row["base_offset"]), int(row["max_timestamp"]), int(row["leader_epoch"]))
            continue
        rows = decode_batches(
            data,
            headers[index : index + 1],
            name=segment.key,
            partition=0,
            incarnation=0,
            from_offset=start,
            to_offset=end,
            position=position,
        )
        for batch in rows:
            times = exact_milliseconds(batch)
            late_rows = np.flatnonzero((times >= timestamp) & ~mask.rows(batch))
            if len(late_rows):
                at = int(late_rows[0])
                offset, epoch = batch.column("kafka_offset")[at].as_py(), batch.column("kafka_leader_epoch")[at].as_py()
                return OffsetForTime(offset, int(times[at]), epoch)
    return None


def batch_windows(store: Store, segment: Segment, position: int) -> Iterator[tuple[bytes, Headers, int]]:
    """The batches of ``segment`` from byte ``position`` of its object on, where a batch starts.

    Each time some of them, with their headers and the byte of the log at which they start.

    The log is read forward, small windows first, then larger ones. Every checksum is verified.

    Raises:
        SegmentError: a batch is damaged, or the log ends inside one.
        PreconditionFailed: the segment was replaced; also other kinds of StoreError.
    """
    size = _FIRST_WINDOW
    while position < segment.stop:
        end = min(position + size, segment.stop)
        data = store.get_range(segment.key, position, end, if_match=segment.etag or None)
        last = end == segment.stop
        headers = scan_headers(data, segment.key, segment.base, position=position, allow_partial_tail=not last)
        if len(headers):
            yield data, headers, position
            position = int(headers["position"][-1] + headers["size"][-1])
            size = min(2 * size, _LARGEST_WINDOW)
        else:  # a batch larger than the window: its length field has its size
            size = max(2 * size, _batch_size(data))


def _batch_size(data: bytes) -> int:
    return int.from_bytes(data[8:12], "big") + LOG_OVERHEAD if len(data) >= PREFIX_SIZE else 0


class OffsetForTime(NamedTuple):
    """A record's offset, its timestamp (milliseconds since 1970), and its leader epoch (-1: unknown)."""

    offset: int
    timestamp: int
    leader_epoch: int
