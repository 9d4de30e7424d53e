"""Reads the bytes of a task's small ranges ahead, several requests at a time: a tail has hundreds of such ranges.

Memory is bounded by the requests under way: 16 ranges of at most 1 MiB.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from tidemark.concurrency import THREADS
from tidemark.formats.table.plan import SegmentRange
from tidemark.store import StoreOptions, open_store

SMALL: Final = 1 << 20
"""Largest range that is read ahead as a whole; larger ranges are read in windows."""

_UNDER_WAY: Final = 16

Ahead = Future[bytes]
"""The bytes of a range, or the error of its request."""


def read_ahead(ranges: Sequence[SegmentRange], options: StoreOptions) -> Generator[tuple[SegmentRange, Ahead | None]]:
    """Each of ``ranges``, with its bytes if it is small. Close the generator if it is not exhausted."""
    if sum(_is_small(part) for part in ranges) < 2:
        yield from ((part, None) for part in ranges)
        return
    with ThreadPoolExecutor(THREADS) as pool:
        waiting: deque[tuple[SegmentRange, Ahead | None]] = deque()
        try:
            for part in ranges:
                waiting.append((part, pool.submit(_bytes, part, options) if _is_small(part) else None))
                if len(waiting) == _UNDER_WAY:
                    yield waiting.popleft()
            while waiting:
                yield waiting.popleft()
        finally:
            pool.shutdown(cancel_futures=True)


def _is_small(part: SegmentRange) -> bool:
    return part.end - part.start <= SMALL


def _bytes(part: SegmentRange, options: StoreOptions) -> bytes:
    return open_store(part.store, options).get_range(part.key, part.start, part.end, if_match=part.etag or None)
