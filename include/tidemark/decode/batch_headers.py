"""Scans a segment's bytes, or a range of them, for batch headers; the first step of Spark's tasks.

Promises: for equal bytes the result is that of :class:`tidemark.kafka_log.SegmentScanner`: rule, position, offset.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from zlib import crc32

import numpy as np
from crc32c import crc32c
from numba import from_dtype, types
from numpy.typing import NDArray

from tidemark.decode.jit import READ_ONLY_BYTES, helper, kernel
from tidemark.errors import SegmentError
from tidemark.kafka_log.batch import (
    CONTROL,
    CRC_START,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAX_BATCH_BYTES,
    MAX_RELATIVE_OFFSET,
    PREFIX_SIZE,
    TRANSACTIONAL,
    Buffer,
    Rule,
)
from tidemark.kafka_log.transactions import AbortedTransaction

HEADER_DTYPE = np.dtype(
    [
        ("position", np.int64),
        ("base_offset", np.int64),
        ("size", np.int64),
        ("leader_epoch", np.int32),
        ("magic", np.int32),
        ("crc", np.uint32),
        ("attributes", np.int32),
        ("last_offset_delta", np.int64),
        ("base_timestamp", np.int64),
        ("max_timestamp", np.int64),
        ("producer_id", np.int64),
        ("producer_epoch", np.int32),
        ("base_sequence", np.int32),
        ("record_count", np.int64),
    ],
    align=True,
)
"""The fields of :class:`tidemark.kafka_log.BatchHeader` in its order, for ``BatchHeader(*row)``."""

Headers = NDArray[Any]
"""A one-dimensional array of HEADER_DTYPE, in the order of the log."""

HEADERS = from_dtype(HEADER_DTYPE)[::1]
"""The type of a Headers array in kernels."""

_ROWS_PER_CALL = 1 << 15

_NONE, _TRUNCATED, _ZEROED, _MAGIC, _LENGTH, _OFFSET, _DELTA, _RANGE, _COUNT, _CODEC, _EPOCH, _CRC = (
    int(rule) for rule in Rule
)


def scan_headers(
    data: Buffer | NDArray[np.uint8],
    name: str,
    base_offset: int,
    *,
    position: int = 0,
    expected: int | None = None,
    allow_partial_tail: bool = False,
    max_batch_bytes: int = MAX_BATCH_BYTES,
    verify: bool = True,
) -> Headers:
    """The headers of all batches in ``data``, with their checksums verified, unless ``verify`` is false.

    ``data`` is a segment based at ``base_offset``, or the part of it from byte ``position``, which must be the start
    of a batch; then ``expected`` is the lowest offset that may come next, if known. Raises :class:`SegmentError` for
    the first broken rule; with ``allow_partial_tail`` an unfinished batch, or zeros to the end, only end the scan.
    """
    buffer = as_array(data)
    at, next_offset = 0, base_offset if expected is None else expected
    rule, value = Rule.NONE, 0
    parts: list[Headers] = []
    while at < len(buffer) and rule is Rule.NONE:
        rows = np.empty(_ROWS_PER_CALL, HEADER_DTYPE)
        count, at, after, code, value = _scan(buffer, at, position, base_offset, next_offset, max_batch_bytes, rows)
        if verify:
            _verify_checksums(buffer, rows[:count], name, position, next_offset)
        next_offset = after
        parts.append(rows[:count])
        rule = Rule(code)
    tail = rule is Rule.TRUNCATED or (rule is Rule.ZEROED and not buffer[at:].any())
    if rule is not Rule.NONE and not (tail and allow_partial_tail):
        raise SegmentError(name, position + at, next_offset, rule.text(value))
    return np.concatenate(parts) if parts else np.empty(0, HEADER_DTYPE)


def as_array(data: Buffer | NDArray[np.uint8]) -> NDArray[np.uint8]:
    """``data`` as a read-only array of bytes, without a copy: kernels are compiled for that one type."""
    array = np.frombuffer(data, np.uint8)
    array.flags.writeable = False
    return array


def _verify_checksums(buffer: NDArray[np.uint8], rows: Headers, name: str, position: int, expected: int) -> None:
    """Raise the error of the first damaged batch; ``expected`` is the offset that had to come before ``rows``."""
    view = buffer.data
    fields = (rows["position"] - position, rows["size"], rows["magic"], rows["crc"])
    for index, (at, size, magic, crc) in enumerate(zip(*(field.tolist() for field in fields), strict=True)):
        body = view[at + CRC_START[magic] : at + size]
        if (crc32c(body) if magic == 2 else crc32(body)) != crc:
            if index:
                expected = int(rows["base_offset"][index - 1] + rows["last_offset_delta"][index - 1]) + 1
            raise SegmentError(name, position + at, expected, Rule.CRC.text(crc))


@helper
def _signed(buffer: NDArray[np.uint8], at: int, size: int) -> int:
    """A big-endian two's complement number."""
    value = int(np.int8(buffer[at]))
    for index in range(at + 1, at + size):
        value = (value << 8) | int(buffer[index])
    return value


@kernel(READ_ONLY_BYTES, *[types.int64] * 5, HEADERS)
def _scan(  # noqa: C901  # a rule per line, in the order of check_prefix and check_header
    buffer: NDArray[np.uint8],
    at: int,
    position: int,
    base_offset: int,
    expected: int,
    max_batch_bytes: int,
    rows: Headers,
) -> tuple[int, int, int, int, int]:
    """Fill ``rows`` from ``buffer[at:]``: (rows filled, index after them, offset expected next, rule, its value)."""
    count = 0
    while count < len(rows) and at < len(buffer):
        if at + PREFIX_SIZE > len(buffer):
            return count, at, expected, _TRUNCATED, 0
        offset, length, magic = _signed(buffer, at, 8), _signed(buffer, at + 8, 4), _signed(buffer, at + 16, 1)
        if offset == 0 and length == 0 and magic == 0 and _signed(buffer, at + 12, 4) == 0:
            return count, at, expected, _ZEROED, 0
        if magic < 0 or magic > 2:
            return count, at, expected, _MAGIC, magic
        header_size = HEADER_SIZE[magic]
        size = length + LOG_OVERHEAD
        if size < header_size or size > max_batch_bytes:
            return count, at, expected, _LENGTH, length
        if at + header_size > len(buffer):
            return count, at, expected, _TRUNCATED, 0
        row = rows[count]
        _read_header(buffer, at, magic, row)
        row.position, row.base_offset, row.size = position + at, offset, size
        delta = row.last_offset_delta
        if offset < expected:
            return count, at, expected, _OFFSET, offset
        if delta < 0:
            return count, at, expected, _DELTA, delta
        if offset - base_offset > MAX_RELATIVE_OFFSET - delta:
            return count, at, expected, _RANGE, offset - base_offset + delta
        if magic == 2 and (row.record_count < 0 or row.record_count > delta + 1):
            return count, at, expected, _COUNT, row.record_count
        codec = row.attributes & 7
        if codec > (4 if magic == 2 else 3):
            return count, at, expected, _CODEC, codec
        if row.leader_epoch < -1:
            return count, at, expected, _EPOCH, row.leader_epoch
        if size > len(buffer) - at:
            return count, at, expected, _TRUNCATED, 0
        expected = offset + delta + 1
        at += size
        count += 1
    return count, at, expected, _NONE, 0


@helper
def _read_header(buffer: NDArray[np.uint8], at: int, magic: int, row: Any) -> None:
    """Set the fields of ``row`` but for the first three."""
    row.magic = magic
    if magic == 2:
        row.leader_epoch = _signed(buffer, at + 12, 4)
        row.crc = np.uint32(_signed(buffer, at + 17, 4))
        row.attributes = _signed(buffer, at + 21, 2)
        row.last_offset_delta = _signed(buffer, at + 23, 4)
        row.base_timestamp = _signed(buffer, at + 27, 8)
        row.max_timestamp = _signed(buffer, at + 35, 8)
        row.producer_id = _signed(buffer, at + 43, 8)
        row.producer_epoch = _signed(buffer, at + 51, 2)
        row.base_sequence = _signed(buffer, at + 53, 4)
        row.record_count = _signed(buffer, at + 57, 4)
        return
    timestamp = _signed(buffer, at + 18, 8) if magic == 1 else np.int64(-1)
    row.leader_epoch = -1
    row.crc = np.uint32(_signed(buffer, at + 12, 4))
    row.attributes = _signed(buffer, at + 17, 1) & (0x0F if magic == 1 else 0x07)
    row.last_offset_delta = 0
    row.base_timestamp = timestamp
    row.max_timestamp = timestamp
    row.producer_id = -1
    row.producer_epoch = -1
    row.base_sequence = -1
    row.record_count = -1 if row.attributes & 7 else 1


def aborted_mask(headers: Headers, aborted: Iterable[AbortedTransaction]) -> NDArray[np.bool_]:
    """True for each data batch of a transaction in ``aborted``, which may be in any order.

    ``aborted`` comes from the ``.txnindex`` of the segment and of those after it
    (:func:`tidemark.kafka_log.parse_txn_index`). A producer's transactions do not overlap, so a batch can belong only
    to the last one that starts at or before it.
    """
    data = headers["attributes"] & (TRANSACTIONAL | CONTROL) == TRANSACTIONAL
    mask = np.zeros(len(headers), np.bool_)
    unique = {(transaction.producer_id, transaction.first_offset, transaction.last_offset) for transaction in aborted}
    producer_ids, firsts, lasts = np.array(sorted(unique), np.int64).reshape(-1, 3).T
    producers, starts = np.unique(producer_ids, return_index=True)
    bounds = np.append(starts, len(producer_ids))
    candidates = np.flatnonzero(data & np.isin(headers["producer_id"], producers))
    order = candidates[np.argsort(headers["producer_id"][candidates], kind="stable")]
    sorted_ids = headers["producer_id"][order]
    for number, producer in enumerate(producers):
        batches = order[np.searchsorted(sorted_ids, producer) : np.searchsorted(sorted_ids, producer, "right")]
        own = slice(bounds[number], bounds[number + 1])
        offsets = headers["base_offset"][batches]
        places = np.searchsorted(firsts[own], offsets, "right") - 1
        mask[batches] = (places >= 0) & (offsets <= lasts[own][places])
    return mask
