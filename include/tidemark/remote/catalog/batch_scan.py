"""A stored log read forward in windows, as batch headers with their bytes; every checksum is verified."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from tidemark.decode import Headers, scan_headers
from tidemark.kafka_log.batch import LOG_OVERHEAD, PREFIX_SIZE
from tidemark.raw.segments import Segment
from tidemark.store import Store

_FIRST_BYTES: Final = 64 << 10
_MOST_BYTES: Final = 4 << 20


class BatchSpan(NamedTuple):
    """Batches in ``data``, all whole: it starts at the log's byte ``position``, and ``headers`` are their headers."""

    data: bytes
    headers: Headers
    position: int


def windows(store: Store, segment: Segment, position: int) -> Iterator[BatchSpan]:
    """The batches of ``segment`` from byte ``position`` of its object on, where a batch starts.

    Small windows first, then larger ones.

    Raises:
        SegmentError: a batch is damaged, or the log ends inside one.
        PreconditionFailed: the segment was replaced; also other kinds of StoreError.
    """
    size = _FIRST_BYTES
    while position < segment.stop:
        end = min(position + size, segment.stop)
        data = store.get_range(segment.key, position, end, if_match=segment.etag or None)
        last = end == segment.stop
        headers = scan_headers(data, segment.key, segment.base, position=position, allow_partial_tail=not last)
        if len(headers):
            yield BatchSpan(data, headers, position)
            position = int(headers["position"][-1] + headers["size"][-1])
            size = min(2 * size, _MOST_BYTES)
        else:  # a batch larger than the window: its length field has its size
            size = max(2 * size, _batch_size(data))


def _batch_size(data: bytes) -> int:
    return int.from_bytes(data[8:12], "big") + LOG_OVERHEAD if len(data) >= PREFIX_SIZE else 0
