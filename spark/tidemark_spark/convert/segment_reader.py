"""Reads a range of a segment or of a pack in windows of whole batches with correct checksums."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from tidemark import decode
from tidemark.errors import ContinuityError, SegmentError
from tidemark.formats.table.plan import SegmentRange
from tidemark.kafka_log import BatchHeader
from tidemark.kafka_log.batch import HEADER_SIZE, PREFIX_SIZE, check_header, check_prefix, read_header
from tidemark.store import Store
from tidemark_spark.convert.classify import BatchVerdict, PartitionRules, judge, missing
from tidemark_spark.convert.read_ahead import Ahead

WINDOW_BYTES: Final = 16 << 20
"""Bytes of a window; a single larger batch makes it larger."""


class BadBatch(NamedTuple):
    """The first bad batch of a window; its offsets lie below ``end`` if its header is right."""

    error: SegmentError
    end: int


class ReadWindow(NamedTuple):
    """Bytes of a segment from byte ``position`` on, and the headers of the sound batches at their start."""

    data: bytes
    position: int
    headers: decode.Headers
    damage: BadBatch | None = None


def windows(store: Store, part: SegmentRange, ahead: Ahead | None = None) -> Iterator[ReadWindow]:
    """The batches of ``part``, up to its last wanted offset or the first damage among wanted batches.

    Its bytes may have been read ``ahead``.

    Raises:
        PreconditionFailed: a repair has made the segment again since the plan.
        NotFound: the segment was removed.
    """
    at, size, expected = part.start, WINDOW_BYTES, part.base_offset
    while at < part.end and expected < part.to_offset:
        end = min(at + size, part.end)
        if ahead is None:
            data = store.get_range(part.key, at, end, if_match=part.etag or None)
        else:
            data = ahead.result()[at - part.start : end - part.start]
        headers, error = _scan(data, part, at, expected, final=end == part.end)
        position = at
        if len(headers):
            last = BatchHeader(*headers[-1].item())
            at, expected = last.end, last.next_offset
        elif error is None:
            size *= 2  # a single batch is larger than the window
        if error is None or expected >= part.to_offset:
            yield ReadWindow(data, position, headers)
            continue
        bad = _bad_batch(data, position, error, part.base_offset)
        if bad is None or bad.next_offset > part.from_offset:
            end_offset = min(bad.next_offset, part.to_offset) if bad else part.to_offset
            yield ReadWindow(data, position, headers, BadBatch(error, end_offset))
            return
        yield ReadWindow(data, position, headers)
        at, expected = bad.end, bad.next_offset  # damaged, but below the wanted offsets


def judged(
    store: Store, part: SegmentRange, rules: PartitionRules, ahead: Ahead | None = None
) -> Iterator[tuple[ReadWindow, BatchVerdict, int]]:
    """The windows of ``part`` with their verdicts, and the first offset that each accounts for.

    The batches before a hole or damage come first, and then the error.

    Raises:
        SegmentError: a batch is damaged.
        ContinuityError: an offset is missing.
        PreconditionFailed, NotFound: see :func:`windows`.
    """
    expected = part.from_offset
    for window in windows(store, part, ahead):
        verdict = judge(window.headers, expected, part, rules)
        yield window, verdict, expected
        expected = verdict.next_offset
        if verdict.stop:
            raise ContinuityError(verdict.stop.detail)
        if window.damage:
            raise window.damage.error
    if expected < part.to_offset and not part.compacted:
        raise ContinuityError(missing(part, expected, part.to_offset).detail)


def _scan(
    data: bytes, part: SegmentRange, position: int, expected: int, *, final: bool
) -> tuple[decode.Headers, SegmentError | None]:
    """The headers up to the first broken rule, and its error."""
    base = part.base_offset
    try:
        return decode.scan_headers(
            data, part.key, base, position=position, expected=expected, allow_partial_tail=not final
        ), None
    except SegmentError as error:
        sound = memoryview(data)[: error.position - position]
        if not sound:
            return np.empty(0, decode.HEADER_DTYPE), error
        return decode.scan_headers(sound, part.key, base, position=position, expected=expected), error


def _bad_batch(data: bytes, position: int, error: SegmentError, base_offset: int) -> BatchHeader | None:
    """The header of the bad batch, if only its checksum is wrong."""
    at = error.position - position
    if len(data) - at < PREFIX_SIZE or check_prefix(data, at) is not None:
        return None
    if len(data) - at < HEADER_SIZE[data[at + PREFIX_SIZE - 1]]:
        return None
    header = read_header(data, at, error.position)
    return header if check_header(header, base_offset, error.offset) is None else None
