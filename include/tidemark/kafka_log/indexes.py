"""A segment's ``.index`` and ``.timeindex``: their valid entries, and the positions at which to cut the segment.

An active segment's index file is preallocated (10 MiB by default). Its tail is zeros or, after a truncation, old
entries. Entries are valid while they increase and point into the log.
Source: Kafka's ``OffsetIndex``, ``TimeIndex`` and ``LogSegment.append``.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple

from tidemark.errors import FormatError
from tidemark.kafka_log.batch import HEADER_SIZE, Buffer, check_header, check_prefix, read_header

INDEX_ENTRY_SIZE: Final = 8
"""Bytes of an ``.index`` entry: relative offset and position, 4 each."""

TIME_INDEX_ENTRY_SIZE: Final = 12
"""Bytes of a ``.timeindex`` entry: timestamp (8) and relative offset (4)."""

_INDEX_ENTRY = Struct(">ii")
_TIME_INDEX_ENTRY = Struct(">qi")


class OffsetIndexEntry(NamedTuple):
    """One append to the log: the LAST offset that it brought, and the byte at which its first batch starts."""

    last_offset: int
    position: int


class TimeIndexEntry(NamedTuple):
    """``timestamp`` (ms since 1970) is the largest of the segment up to ``offset``: a running maximum.

    It proves that a segment ends before some time, never that it starts after one.
    """

    timestamp: int
    offset: int


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


def parse_time_index(raw: bytes, base_offset: int, next_offset: int, name: str) -> list[TimeIndexEntry]:
    """The valid entries of a ``.timeindex`` of a log that ends before ``next_offset``; both fields strictly increase.

    Raises :class:`FormatError` for a partial entry.
    """
    _check_whole(raw, TIME_INDEX_ENTRY_SIZE, name)
    entries: list[TimeIndexEntry] = []
    timestamp, relative = -1, -1
    for next_timestamp, next_relative in _TIME_INDEX_ENTRY.iter_unpack(raw):
        if next_timestamp <= timestamp or next_relative <= relative or base_offset + next_relative >= next_offset:
            break
        timestamp, relative = next_timestamp, next_relative
        entries.append(TimeIndexEntry(timestamp, base_offset + relative))
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
