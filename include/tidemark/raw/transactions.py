"""Which offsets are decided, and which transactions were aborted.

A transaction is undecided at the end of a segment if and only if the segment's manifest lists it as open there.
Otherwise it was aborted if and only if a ``.txnindex`` at or below that end says so; the entry lies in the segment
that holds its marker, not in those that hold its data.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidemark.formats.manifest import OpenTransaction
from tidemark.formats.plan import Aborted
from tidemark.kafka_log import AbortedTransaction, BatchHeader, Lineage, carry_forward
from tidemark.raw.segments import Segment, is_whole


def decided_end(end: int, open_transactions: Iterable[OpenTransaction]) -> tuple[int, tuple[OpenTransaction, ...]]:
    """(how far up to ``end`` all is decided, the transactions that hold it back there)."""
    pending = [one for one in open_transactions if one.first_offset < end]
    if not pending:
        return end, ()
    first = min(one.first_offset for one in pending)
    return first, tuple(one for one in pending if one.first_offset == first)


def decided_by(segments: Iterable[Segment], lineage: Lineage, end: int) -> int:
    """How far up to ``end`` all transactions are decided, by the segment that reaches furthest of those that count.

    A segment counts if it is valid to its own end; see :func:`is_whole`. The result is 0 if no segment counts.
    """
    counting = [segment for segment in segments if is_whole(segment, lineage, segment.end - 1)]
    last = max(counting, key=lambda segment: (segment.end, segment.base), default=None)
    return 0 if last is None else decided_end(min(end, last.end), last.open_transactions)[0]


def opened_after(before: Iterable[OpenTransaction], headers: Iterable[BatchHeader]) -> tuple[OpenTransaction, ...]:
    """The transactions open after ``headers``, given those open ``before``."""
    return tuple(map(OpenTransaction.of, carry_forward((one.unfinished for one in before), headers)))


def aborted_from(start: int, found: Iterable[AbortedTransaction]) -> tuple[Aborted, ...]:
    """The aborted transactions that matter to offsets from ``start`` on, once each, in the order of their markers."""
    unique = {(one.last_offset, one.first_offset, one.producer_id) for one in found if one.last_offset >= start}
    return tuple(
        Aborted(producer_id=producer, first_offset=first, last_offset=last) for last, first, producer in sorted(unique)
    )
