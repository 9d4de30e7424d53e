"""A segment's index files: their names, the valid entries of a broker's, and those made of a sealed run's batches.

An active segment's index file is preallocated (10 MiB by default). Its tail is zeros or, after a truncation, old
entries. Entries are valid while they increase and point into the log. A segment is cut where they point.

Source: Kafka's ``LogFileUtils.filenamePrefixFromOffset``, ``OffsetIndex``, ``TimeIndex`` and ``LogSegment.append``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from struct import Struct
from typing import Final, Literal, NamedTuple, cast

from tidemark.errors import FormatError
from tidemark.kafka_log.batch import HEADER_SIZE, BatchHeader, Buffer, check_header, check_prefix, read_header
from tidemark.kafka_log.transactions import OpenTransaction, TransactionTracker

SegmentFileKind = Literal["log", "index", "timeindex", "txnindex", "snapshot"]

MAX_OFFSET: Final = (1 << 63) - 1

_MAX_BASE_OFFSET: Final = MAX_OFFSET - (1 << 32)
"""A higher base is damage; below it no arithmetic on offsets of a segment leaves 64 bits."""

_NAME: Final = re.compile(r"([0-9]{20})\.(log|index|timeindex|txnindex|snapshot)", re.ASCII)


def segment_name(base_offset: int) -> str:
    """The stem of a segment's file names: ``00000000000000000042``. Raises ValueError for an impossible offset."""
    if not 0 <= base_offset <= _MAX_BASE_OFFSET:
        raise ValueError(f"{base_offset} is not an offset")
    return f"{base_offset:020d}"


def parse_segment_file(name: str) -> tuple[int, SegmentFileKind] | None:
    """(base offset, kind) of a file of a partition's directory; None for any other name, among them ``….log.deleted``.

    The offset in the name of a ``snapshot`` is that of the segment's END, where the producer state was taken.
    """
    match = _NAME.fullmatch(name)
    if match is None or int(match[1]) > _MAX_BASE_OFFSET:
        return None
    return int(match[1]), cast("SegmentFileKind", match[2])


INDEX_ENTRY_SIZE: Final = 8
"""Bytes of an ``.index`` entry: relative offset and position, 4 each."""

TIME_INDEX_ENTRY_SIZE: Final = 12
"""Bytes of a ``.timeindex`` entry: timestamp (8) and relative offset (4)."""

_INDEX_ENTRY = Struct(">ii")
_TIME_INDEX_ENTRY = Struct(">qi")

_INDEX_INTERVAL = 4096
"""Kafka's default ``index.interval.bytes``: the least distance of two entries."""

_MOST_ENTRIES = 1 << 16
"""The approximate limit of entries: the files of a run of 1 GiB, which are made in memory, have 1.3 MiB."""

_SEARCHED_FOR_EVER = 2
"""The number of entries that an ``.index`` never has. With it, Pinterest's consumer of tiered storage would search for
ever for an offset before the first one (``S3OffsetIndexHandler.getMinimumPositionForOffset``, up to 1.0.4)."""

_ABORTED_ENTRY = Struct(">hqqqq")
_BATCH_HEADER = 61
_ABORT = 0


class OffsetIndexEntry(NamedTuple):
    """One append to the log: the LAST offset that it brought, and the byte at which its first batch starts."""

    last_offset: int
    position: int


def parse_offset_index(raw: bytes, base_offset: int, log_size: int, name: str) -> list[OffsetIndexEntry]:
    """The valid entries of the ``.index`` of a ``.log`` with ``log_size`` bytes; both fields strictly increase.

    Raises :class:`FormatError` for a partial entry.
    """
    _check_whole(raw, INDEX_ENTRY_SIZE, name)
    entries: list[OffsetIndexEntry] = []
    relative, position = -1, 0
    for next_relative, next_position in _INDEX_ENTRY.iter_unpack(raw):
        if next_relative <= relative or not position < next_position < log_size:
            break
        relative, position = next_relative, next_position
        entries.append(OffsetIndexEntry(base_offset + relative, position))
    return entries


def parse_time_index(raw: bytes, base_offset: int, next_offset: int, name: str) -> list[tuple[int, int]]:
    """The valid entries of a ``.timeindex`` of a log that ends before ``next_offset``; both fields strictly increase.

    An entry is (the largest timestamp of the segment up to an offset, the offset). It proves that a segment ends before
    some time, never that it starts after one.

    Raises :class:`FormatError` for a partial entry.
    """
    _check_whole(raw, TIME_INDEX_ENTRY_SIZE, name)
    entries: list[tuple[int, int]] = []
    timestamp, relative = -1, -1
    for next_timestamp, next_relative in _TIME_INDEX_ENTRY.iter_unpack(raw):
        if next_timestamp <= timestamp or next_relative <= relative or base_offset + next_relative >= next_offset:
            break
        timestamp, relative = next_timestamp, next_relative
        entries.append((timestamp, base_offset + relative))
    return entries


def cut_points(entries: Sequence[OffsetIndexEntry], log_size: int, target_bytes: int) -> list[int]:
    """Bounds of the ranges of about ``target_bytes`` in which to read a segment: ``[0, …, log_size]``.

    A cut is the first indexed position at or after each multiple of ``target_bytes``, so that it depends on the index
    alone. A last range of less than half of ``target_bytes`` is not cut off. Range k holds the batches that start in
    [bounds[k], bounds[k + 1]). Prove each cut with :func:`confirms_cut` before using it.
    """
    bounds = [0]
    for entry in entries:
        if log_size - entry.position < target_bytes // 2:
            break
        if entry.position // target_bytes > bounds[-1] // target_bytes:
            bounds.append(entry.position)
    return [*bounds, log_size]


def confirms_cut(head: Buffer, entry: OffsetIndexEntry, base_offset: int, log_size: int) -> bool:
    """True if a batch starts where the entry says; an index is only a hint: stale entries can look sound.

    ``head`` is the log from ``entry.position`` on: 61 bytes, or fewer at its end.
    """
    if len(head) < HEADER_SIZE[0] or check_prefix(head, 0) is not None or len(head) < HEADER_SIZE[head[16]]:
        return False
    header = read_header(head, 0, entry.position)
    broken = check_header(header, base_offset, base_offset)
    return broken is None and header.end <= log_size and header.last_offset <= entry.last_offset


def _check_whole(raw: bytes, entry_size: int, name: str) -> None:
    if len(raw) % entry_size:
        raise FormatError(name, f"{len(raw)} bytes are not a whole number of {entry_size}-byte entries")


class DerivedIndexes:
    """The index files of one sealed run, grown batch by batch as Kafka makes them.

    They depend only on the bytes and the transactions open before them. The broker's own indexes differ from replica to
    replica, because an entry is written for each append, and a follower appends batches as it fetched them. So they
    would have to be replaced in the store when another replica's agent completes a segment.

    Source: Kafka's ``LogSegment.recover`` and ``append`` (indexes), ``UnifiedLog.updateProducers``,
    ``ControlRecordType``.
    """

    def __init__(self, base_offset: int, size: int, open_before: Iterable[OpenTransaction] = ()) -> None:
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

    def add(self, header: BatchHeader, marker: bytes) -> None:
        """Add the next batch; ``marker`` are its bytes if it is a transaction's marker, and do not matter otherwise."""
        if header.max_timestamp > self._largest[0]:
            self._largest = header.max_timestamp, header.last_offset
        if header.position - self._indexed > self._interval:
            self._index += _INDEX_ENTRY.pack(header.last_offset - self._base_offset, header.position)
            self._add_time()
            self._indexed = header.position
        if header.is_transactional:
            if header.is_marker and is_abort(marker):
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
            self._times += _TIME_INDEX_ENTRY.pack(timestamp, offset - self._base_offset)
            self._last_time = timestamp

    def _add_abort(self, marker: BatchHeader) -> None:
        opened = {transaction.producer_id: transaction.first_offset for transaction in self._tracker.open}
        first = opened.pop(marker.producer_id, None)
        if first is None:
            return  # the transaction has no data in this partition, or compaction has removed it
        stable = min(opened.values(), default=marker.next_offset)
        self._aborted += _ABORTED_ENTRY.pack(0, marker.producer_id, first, marker.base_offset, stable)


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
