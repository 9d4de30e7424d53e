"""Whether two batches at the same offsets are one.

Compaction removes records from a batch, or the whole batch. Of a batch that is left, offsets, epoch, producer and base
sequence stay (``MemoryRecords.filterTo`` of Kafka 4.3.1), and its checksum, times and number of records change. An
erasure changes the same in a stored batch. So a difference is told only if no rewriting explains it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Final, TypeVar

from tidemark.kafka_log.batch import APPEND_TIME, CODEC_MASK, CONTROL, TRANSACTIONAL, BatchHeader

_KIND: Final = APPEND_TIME | TRANSACTIONAL | CONTROL
"""The attributes that every rewriting keeps."""

_END_OF_TIME: Final = 253_402_300_800_000
"""The year 10,000, in milliseconds since 1970: producers state any time."""

One = TypeVar("One")
Other = TypeVar("Other")


def is_same(one: BatchHeader, other: BatchHeader) -> bool | None:
    """True if two batches that share an offset are one, False if they are not; None if rewriting hides it."""
    if one.magic != other.magic:
        return False
    if one.magic < 2:  # a message of its own, or a wrapper, which compaction makes smaller
        if one.crc == other.crc and one.base_offset == other.base_offset:
            return True
        return None if (one.attributes | other.attributes) & CODEC_MASK else False
    if _identity(one) != _identity(other):
        return False
    if one.crc == other.crc:
        return True
    return None if _may_be_rewritten(one) or _may_be_rewritten(other) else False


def overlapping(
    ones: Iterable[One],
    others: Iterable[Other],
    header_of_one: Callable[[One], BatchHeader],
    header_of_other: Callable[[Other], BatchHeader],
) -> Iterator[tuple[One, Other]]:
    """The pairs that share an offset, of two logs in the order of offsets. A batch may be in several pairs."""
    ours, theirs = iter(ones), iter(others)
    mine, other = next(ours, None), next(theirs, None)
    while mine is not None and other is not None:
        left, right = header_of_one(mine), header_of_other(other)
        if left.base_offset <= right.last_offset and right.base_offset <= left.last_offset:
            yield mine, other
        if left.last_offset <= right.last_offset:
            mine = next(ours, None)
        if right.last_offset <= left.last_offset:
            other = next(theirs, None)


def described(header: BatchHeader | None) -> str:
    """What a log has at some offsets, in words."""
    if header is None:
        return "nothing there"
    sane = 0 <= header.max_timestamp < _END_OF_TIME
    moment = f" of {datetime.fromtimestamp(header.max_timestamp / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC" if sane else ""
    return f"a batch from {header.base_offset} to {header.last_offset} under epoch {header.leader_epoch}{moment}"


def _identity(header: BatchHeader) -> tuple[int, ...]:
    producer = header.producer_id, header.producer_epoch, header.base_sequence
    return header.base_offset, header.last_offset, header.leader_epoch, header.attributes & _KIND, *producer


def _may_be_rewritten(header: BatchHeader) -> bool:
    """True if records may be missing: a producer's batch has one for each of its offsets."""
    return header.has_delete_horizon or header.record_count <= header.last_offset_delta
