"""The catalogue's answers: the stretch to read at an offset, and the offset of a time.

The first record with a given time or a later one is found exactly as a broker finds it. The segments' largest
timestamps select the segment to open, its ``.timeindex`` the position to read from, and the batches have the record.
Markers of transactions have times too, and count as in Kafka (``LogSegment.findOffsetByTimestamp``,
``FileRecords.searchForTimestamp``).

The byte of a segment's log to read an offset from is found by its ``.index``, and a batch header proves it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from struct import Struct
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidemark.decode import Headers, decode_batches, scan_headers, unrepresentable_timestamps
from tidemark.decode.offset_mask import OffsetMask
from tidemark.decode.schema import octets
from tidemark.errors import NotFound, PreconditionFailed
from tidemark.formats import object_sizes
from tidemark.kafka_log import AbortedTransaction, OffsetIndexEntry, confirms_cut
from tidemark.kafka_log.batch import CONTROL, HEADER_SIZE, LOG_OVERHEAD, PREFIX_SIZE, read_header
from tidemark.kafka_log.indexes import INDEX_ENTRY_SIZE, TIME_INDEX_ENTRY_SIZE
from tidemark.lru import Lru
from tidemark.raw.segments import Segment, live_until
from tidemark.raw.stored_segments import StoredSegments
from tidemark.remote.view import WatermarkView
from tidemark.storage import PartitionStore
from tidemark.store import Store

MANIFEST_THREADS: Final = 16
"""The number of manifests requested at a time: the first lookup needs all of them."""

MaskOf = Callable[[int, int], OffsetMask]
"""(start, end) → the erased offsets of ``[start, end)``."""

_OFFSET_ENTRY: Final = Struct(">ii")
_KEPT_INDEX_BYTES: Final = 4 << 20
"""The most bytes of indexes in memory; the index of a segment of 1 GiB has 2 MiB by Kafka's default."""

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


class IndexObjects:
    """The ``.index`` and ``.timeindex`` objects read last. Thread-safe; no lock is held during a request."""

    def __init__(self) -> None:
        """Start with no object read."""
        self._read: Lru[tuple[str, str, str, str], bytes] = Lru(_KEPT_INDEX_BYTES, len, at_least=1)

    def position(self, place: PartitionStore, segment: Segment, offset: int) -> int:
        """The byte of the segment's object where a batch at or below ``offset`` starts; its first without an index.

        A range of a pack has no index.
        """
        if offset <= segment.base or not segment.has_index:
            return segment.position
        entry = floor_entry(self._sibling(place.store, segment, "index"), segment, offset)
        if entry is None:
            return 0
        end = min(entry.position + HEADER_SIZE[2], segment.size)
        try:
            log = place.store_at(segment.store)
            head = log.get_range(segment.key, entry.position, end, if_match=segment.etag)
        except NotFound:
            if segment.referred:
                return 0  # its owner has deleted it, which is told where it is read
            raise
        if not confirms_cut(head, entry, segment.base, segment.size):
            return 0
        return entry.position if read_header(head, 0, entry.position).base_offset <= offset else 0

    def times(self, store: Store, segment: Segment) -> bytes:
        """The segment's ``.timeindex``; empty if it has none, like a range of a pack."""
        return b"" if segment.packed else self._sibling(store, segment, "timeindex")

    def _sibling(self, store: Store, segment: Segment, extension: str) -> bytes:
        name = segment.store, segment.key, segment.etag, extension
        if (body := self._read.get(name)) is not None:
            return body
        try:
            body = store.get(segment.sibling(extension), limit=object_sizes.SEGMENT_INDEX).body
        except NotFound:
            body = b""  # only a hint: without it the segment is read from its start
        self._read.keep(name, body)
        return body


def floor_entry(raw: bytes, segment: Segment, offset: int) -> OffsetIndexEntry | None:
    """The last entry of an ``.index`` at or below ``offset``, by bisection: there may be 260,000 entries.

    Follows ``OffsetIndex.lookup``. Entries that are out of order, or point out of the log, only give a worse hint.
    """
    low, high = 0, len(raw) // INDEX_ENTRY_SIZE
    while low < high:
        middle = (low + high) // 2
        relative, position = _OFFSET_ENTRY.unpack_from(raw, middle * INDEX_ENTRY_SIZE)
        if 0 < position < segment.size and 0 <= relative <= offset - segment.base:
            low = middle + 1
        else:
            high = middle
    if low == 0:
        return None
    relative, position = _OFFSET_ENTRY.unpack_from(raw, (low - 1) * INDEX_ENTRY_SIZE)
    return OffsetIndexEntry(segment.base + relative, position)


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


class Stretch(NamedTuple):
    """Offsets ``[start, end)`` of a partition, to be read from one stored segment or range of a pack.

    Read the segment's object ``key`` in the store ``segment.store`` (:meth:`Storage.store`) under
    ``If-Match: segment.etag``, if it has one, from byte ``position`` (a batch starts there, at or below ``start``) to
    at most ``segment.stop``. ``aborted`` are the transactions to leave out, none for read_uncommitted.
    ``mask`` has the erased records to leave out.
    """

    segment: Segment
    start: int
    end: int
    position: int
    aborted: tuple[AbortedTransaction, ...]
    mask: OffsetMask


class OffsetForTime(NamedTuple):
    """A record's offset, its timestamp (milliseconds since 1970), and its leader epoch (-1: unknown)."""

    offset: int
    timestamp: int
    leader_epoch: int
