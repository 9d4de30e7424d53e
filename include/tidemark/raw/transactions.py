"""The rules that decide transactions: the end of the decided offsets, and the aborted transactions.

A transaction is undecided at the end of a segment if and only if the segment's manifest lists it as open there.
Otherwise it was aborted if and only if a ``.txnindex`` at or below that end lists it; the entry lies in the segment
that holds its marker, not in the segments that hold its data.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidemark.formats.raw.manifest import OpenTransaction
from tidemark.formats.table.plan import Aborted
from tidemark.kafka_log import AbortedTransaction, BatchHeader, Lineage, carry_forward
from tidemark.raw.segments import Segment, is_whole


def decided_end(end: int, open_transactions: Iterable[OpenTransaction]) -> tuple[int, tuple[OpenTransaction, ...]]:
    """(the end, at most ``end``, of the decided offsets; the transactions that hold it back there)."""
    pending = [transaction for transaction in open_transactions if transaction.first_offset < end]
    if not pending:
        return end, ()
    first = min(transaction.first_offset for transaction in pending)
    return first, tuple(transaction for transaction in pending if transaction.first_offset == first)


def decided_by(segments: Iterable[Segment], lineage: Lineage, end: int) -> int:
    """The end, at most ``end``, of the decided offsets, according to the valid segment that reaches furthest.

    A segment counts if it is valid to its own end; see :func:`is_whole`. The result is 0 if no segment counts.
    """
    counting = [segment for segment in segments if is_whole(segment, lineage, segment.end - 1)]
    last = max(counting, key=lambda segment: (segment.end, segment.base), default=None)
    return 0 if last is None else decided_end(min(end, last.end), last.open_transactions)[0]


def opened_after(before: Iterable[OpenTransaction], headers: Iterable[BatchHeader]) -> tuple[OpenTransaction, ...]:
    """The transactions open after ``headers``, given the transactions open ``before``."""
    return tuple(map(OpenTransaction.of, carry_forward((transaction.unfinished for transaction in before), headers)))


def aborted_from(start: int, aborted: Iterable[AbortedTransaction]) -> tuple[Aborted, ...]:
    """The aborted transactions that matter to offsets from ``start`` on, without duplicates, by their markers."""
    later = (transaction for transaction in aborted if transaction.last_offset >= start)
    unique = {(transaction.last_offset, transaction.first_offset, transaction.producer_id) for transaction in later}
    return tuple(
        Aborted(producer_id=producer, first_offset=first, last_offset=last) for last, first, producer in sorted(unique)
    )
