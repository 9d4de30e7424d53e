"""Finds the byte of a segment's log to read an offset from, by its ``.index``; a batch header proves it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from struct import Struct
from typing import Final

from tidemark.errors import NotFound
from tidemark.formats import object_sizes
from tidemark.kafka_log import OffsetIndexEntry, confirms_cut
from tidemark.kafka_log.batch import HEADER_SIZE, read_header
from tidemark.kafka_log.indexes import INDEX_ENTRY_SIZE
from tidemark.raw.segments import Segment
from tidemark.store import Store

_ENTRY: Final = Struct(">ii")
_KEPT_BYTES: Final = 4 << 20
"""The most bytes of indexes in memory; the index of a segment of 1 GiB has 2 MiB by Kafka's default."""


class IndexObjects:
    """The ``.index`` and ``.timeindex`` objects read last. Thread-safe; no lock is held during a request."""

    def __init__(self) -> None:
        """Start with no object read."""
        self._lock = threading.Lock()
        self._read: OrderedDict[tuple[str, str, str, str], bytes] = OrderedDict()
        self._size = 0

    def position(self, store: Store, segment: Segment, offset: int) -> int:
        """The byte of the segment's object where a batch at or below ``offset`` starts; its first without an index.

        A range of a pack has no index.
        """
        if offset <= segment.base or not segment.has_index:
            return segment.position
        entry = floor_entry(self._sibling(store, segment, "index"), segment, offset)
        if entry is None:
            return 0
        end = min(entry.position + HEADER_SIZE[2], segment.size)
        head = store.get_range(segment.key, entry.position, end, if_match=segment.etag)
        if not confirms_cut(head, entry, segment.base, segment.size):
            return 0
        return entry.position if read_header(head, 0, entry.position).base_offset <= offset else 0

    def times(self, store: Store, segment: Segment) -> bytes:
        """The segment's ``.timeindex``; empty if it has none, like a range of a pack."""
        return b"" if segment.packed else self._sibling(store, segment, "timeindex")

    def _sibling(self, store: Store, segment: Segment, extension: str) -> bytes:
        name = segment.store, segment.key, segment.etag, extension
        with self._lock:
            if name in self._read:
                self._read.move_to_end(name)
                return self._read[name]
        try:
            body = store.get(segment.sibling(extension), limit=object_sizes.SEGMENT_INDEX).body
        except NotFound:
            body = b""  # only a hint: without it the segment is read from its start
        with self._lock:
            if name not in self._read:
                self._size += len(body)
            self._read[name] = body
            while self._size > _KEPT_BYTES and len(self._read) > 1:
                self._size -= len(self._read.popitem(last=False)[1])
        return body


def floor_entry(raw: bytes, segment: Segment, offset: int) -> OffsetIndexEntry | None:
    """The last entry of an ``.index`` at or below ``offset``, by bisection: there may be 260,000 entries.

    Follows ``OffsetIndex.lookup``. Entries that are out of order, or point out of the log, only give a worse hint.
    """
    low, high = 0, len(raw) // INDEX_ENTRY_SIZE
    while low < high:
        middle = (low + high) // 2
        relative, position = _ENTRY.unpack_from(raw, middle * INDEX_ENTRY_SIZE)
        if 0 < position < segment.size and 0 <= relative <= offset - segment.base:
            low = middle + 1
        else:
            high = middle
    if low == 0:
        return None
    relative, position = _ENTRY.unpack_from(raw, (low - 1) * INDEX_ENTRY_SIZE)
    return OffsetIndexEntry(segment.base + relative, position)
