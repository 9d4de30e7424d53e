"""Aborted transactions of a stretch, from the lists of its segment and of later segments.

A transaction's end is recorded in the segment that holds its marker. So the transactions open at a segment's end are
looked up in the later segments until each is decided: no longer listed as open there, and not above the last stable
offset. The result for a transaction is kept, so that a transaction that spans many segments is searched for once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from tidemark.errors import NotFound, PreconditionFailed
from tidemark.kafka_log import AbortedTransaction, Lineage, OpenTransaction
from tidemark.lru import Lru
from tidemark.raw.objects import aborts_of
from tidemark.raw.segments import Segment, SegmentPiece, agrees, is_whole, live_until
from tidemark.store import Store

_KEPT: Final = 4096


Next = Callable[[int], tuple[SegmentPiece | None, Sequence[Segment]]]
"""(The first piece at or after an offset, None at the end; the segments of a gap on the way there).

The gap's records cannot be read, but the transactions that its segments list count.
"""


class Verdicts:
    """The outcomes of transactions that were open at a segment's end, along one branch of the log. Thread-safe.

    When the log leaves its branch, or a hole is filled, markers may differ. A new object is used then, so that a reader
    that is still on the old branch adds nothing for readers on the new one.
    """

    def __init__(self) -> None:
        """Start with no known outcome."""
        self._found: Lru[tuple[int, int], tuple[AbortedTransaction, ...]] = Lru(_KEPT)

    def get(self, opened: OpenTransaction) -> tuple[AbortedTransaction, ...] | None:
        """The aborts of a transaction, none if it committed; None if it is not known."""
        return self._found.get((opened.producer_id, opened.first_offset))

    def keep(self, opened: OpenTransaction, aborts: tuple[AbortedTransaction, ...]) -> None:
        """Remember the aborts for :meth:`get`."""
        self._found.keep((opened.producer_id, opened.first_offset), aborts)


class Aborts:
    """The aborted transactions of one partition. Thread-safe; no lock is held during a request."""

    def __init__(self, store: Store, refused: Callable[[Segment], None]) -> None:
        """``refused`` is called with a segment if its ``.txnindex`` differs from the one in its manifest."""
        self._store = store
        self._refused = refused
        self._lists: Lru[tuple[str, str], tuple[AbortedTransaction, ...]] = Lru(_KEPT // 64)

    def of(
        self, piece: SegmentPiece, lineage: Lineage, verdicts: Verdicts, following: Next
    ) -> tuple[AbortedTransaction, ...]:
        """The aborted transactions of ``piece``, by their markers; all of its offsets are decided."""
        bound = piece.end
        aborts: set[AbortedTransaction] = set()
        at: SegmentPiece | None = piece
        skipped: Sequence[Segment] = ()
        while at is not None:
            listed = [abort for segment in (*skipped, at.segment) for abort in self._listed(segment, lineage)]
            aborts |= {abort for abort in listed if abort.first_offset < bound}
            if is_whole(at.segment, lineage, at.start):
                opened = [opening for opening in at.segment.open_transactions if opening.first_offset < bound]
                aborts |= {abort for each in opened for abort in self._verdict(each, at, lineage, verdicts, following)}
                break
            at, skipped = following(live_until(at.segment, lineage, at.start))
        return tuple(sorted(aborts, key=lambda abort: (abort.last_offset, abort.first_offset)))

    def _verdict(
        self, opened: OpenTransaction, piece: SegmentPiece, lineage: Lineage, verdicts: Verdicts, following: Next
    ) -> tuple[AbortedTransaction, ...]:
        """The outcome of a transaction that is open at the end of ``piece``: its abort, or nothing if it committed."""
        known = verdicts.get(opened)
        if known is not None:
            return known
        aborts: tuple[AbortedTransaction, ...] = ()
        at, skipped = following(piece.segment.end)
        while at is not None:
            listed = [abort for segment in (*skipped, at.segment) for abort in self._listed(segment, lineage)]
            aborts = tuple(
                abort
                for abort in listed
                if abort.producer_id == opened.producer_id
                and abort.first_offset <= opened.first_offset <= abort.last_offset
            )
            if aborts or (is_whole(at.segment, lineage, at.start) and not _is_open(opened, at.segment)):
                break
            at, skipped = following(live_until(at.segment, lineage, at.start))
        if at is None:
            return aborts  # nothing decides it yet
        verdicts.keep(opened, aborts)
        return aborts

    def _listed(self, segment: Segment, lineage: Lineage) -> list[AbortedTransaction]:
        """Aborts that the segment or its ``.txnindex`` lists and that have their marker on ``lineage``."""
        return [abort for abort in self._all_listed(segment) if agrees(segment, lineage, abort.last_offset)]

    def _all_listed(self, segment: Segment) -> Sequence[AbortedTransaction]:
        if segment.aborts is None:
            return segment.aborted
        name = segment.key, segment.etag
        known = self._lists.get(name)
        if known is None:
            try:
                known = tuple(aborts_of(self._store, segment))
            except (PreconditionFailed, NotFound):
                self._refused(segment)
                raise
            self._lists.keep(name, known)
        return known


def _is_open(opened: OpenTransaction, segment: Segment) -> bool:
    return any(
        other.producer_id == opened.producer_id and other.first_offset == opened.first_offset
        for other in segment.open_transactions
    )
