"""The index files of a sealed run, made from its batches as Kafka makes them.

They depend only on the bytes and the transactions open before them. The broker's own indexes differ from replica to
replica, because an entry is written for each append, and a follower appends batches as it fetched them. So they would
have to be replaced in the store when another replica's agent completes a segment.

Source: Kafka's ``LogSegment.recover`` and ``append`` (indexes), ``UnifiedLog.updateProducers``, ``ControlRecordType``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from struct import Struct

from tidemark.kafka_log.batch import BatchHeader
from tidemark.kafka_log.transactions import AbortedTransaction, TransactionTracker, UnfinishedTransaction

_INDEX_INTERVAL = 4096
"""Kafka's default ``index.interval.bytes``: the least distance of two entries."""

_MOST_ENTRIES = 1 << 16
"""The approximate limit of entries: the files of a run of 1 GiB, which are made in memory, have 1.3 MiB."""

_SEARCHED_FOR_EVER = 2
"""The number of entries that an ``.index`` never has. With it, Pinterest's consumer of tiered storage would search for
ever for an offset before the first one (``S3OffsetIndexHandler.getMinimumPositionForOffset``, up to 1.0.4)."""

_INDEX_ENTRY, _TIME_ENTRY, _ABORTED_ENTRY = Struct(">ii"), Struct(">qi"), Struct(">hqqqq")
_BATCH_HEADER = 61
_ABORT = 0


class DerivedIndexes:
    """The index files of one run, grown batch by batch."""

    def __init__(self, base_offset: int, size: int, open_before: Iterable[UnfinishedTransaction] = ()) -> None:
        """``base_offset`` and ``size`` in bytes are the run's, ``open_before`` the transactions open at its start."""
        self._base_offset = base_offset
        self._interval = max(_INDEX_INTERVAL, size // _MOST_ENTRIES)
        self._tracker = TransactionTracker(open_before)
        self._index = bytearray()
        self._times = bytearray()
        self._aborted = bytearray()
        self._indexed = 0
        self._largest = (-1, 0)
        self._last_time = -1

    def add(self, header: BatchHeader, read: Callable[[], bytes]) -> None:
        """Add the next batch; ``read`` returns its bytes, and is called only for a transaction's marker."""
        if header.max_timestamp > self._largest[0]:
            self._largest = header.max_timestamp, header.last_offset
        if header.position - self._indexed > self._interval:
            self._index += _INDEX_ENTRY.pack(header.last_offset - self._base_offset, header.position)
            self._add_time()
            self._indexed = header.position
        if header.is_transactional:
            if header.is_control and is_abort(read()):
                self._add_abort(header)
            self._tracker.observe(header)

    def files(self) -> Iterator[tuple[str, bytes]]:
        """The files of all batches so far, by extension; a ``txnindex`` only if a transaction aborted."""
        self._add_time()
        if len(self._index) == _SEARCHED_FOR_EVER * _INDEX_ENTRY.size:
            yield "index", bytes(self._index[: _INDEX_ENTRY.size])
        else:
            yield "index", bytes(self._index)
        yield "timeindex", bytes(self._times)
        if self._aborted:
            yield "txnindex", bytes(self._aborted)

    def _add_time(self) -> None:
        timestamp, offset = self._largest
        if timestamp > self._last_time:
            self._times += _TIME_ENTRY.pack(timestamp, offset - self._base_offset)
            self._last_time = timestamp

    def _add_abort(self, marker: BatchHeader) -> None:
        opened = {transaction.producer_id: transaction.first_offset for transaction in self._tracker.open}
        first = opened.pop(marker.producer_id, None)
        if first is None:
            return  # the transaction has no data in this partition, or compaction has removed it
        stable = min(opened.values(), default=marker.next_offset)
        entry = AbortedTransaction(marker.producer_id, first, marker.base_offset, stable)
        self._aborted += _ABORTED_ENTRY.pack(0, *entry)


def is_abort(batch: bytes) -> bool:
    """True if a marker aborts: its only record, never compressed, has a key of version and type, two bytes each."""
    at = _after_varint(batch, _BATCH_HEADER) + 1  # length, attributes
    for _ in range(3):
        at = _after_varint(batch, at)  # timestamp delta, offset delta, key length
    return int.from_bytes(batch[at + 2 : at + 4], "big") == _ABORT


def _after_varint(data: bytes, at: int) -> int:
    while data[at] & 0x80:
        at += 1
    return at + 1
