"""Which aborted transactions touch a stretch: those that its segment and the ones after it list.

A transaction's end is recorded in the segment that holds its marker. So the transactions open at a segment's end are
looked up in the later segments until each is decided: no longer listed as open there, and not above the last stable
offset. The result for a transaction is kept, so that one which spans many segments is searched for once.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from tidemark.errors import PreconditionFailed
from tidemark.formats.manifest import OpenTransaction
from tidemark.kafka_log import AbortedTransaction, Lineage
from tidemark.raw.objects import aborts_of
from tidemark.raw.segments import Segment, SegmentPiece, agrees, is_whole, live_until
from tidemark.store import Store

_KEPT: Final = 4096


class Step(NamedTuple):
    """The first ``piece`` at or after an offset, None at the end; and the segments of a gap on the way there.

    The records of those cannot be read, but the transactions that they list count.
    """

    piece: SegmentPiece | None
    skipped: Sequence[Segment]


Next = Callable[[int], Step]


class Verdicts:
    """The outcomes of transactions that were open at a segment's end, along one branch of the log. Thread-safe.

    When the log leaves its branch, or a hole is filled, markers may differ. A new object is used then, so that a reader
    that is still on the old branch adds nothing for readers on the new one.
    """

    def __init__(self) -> None:
        """Nothing is known yet."""
        self._lock = threading.Lock()
        self._found: OrderedDict[tuple[int, int], tuple[AbortedTransaction, ...]] = OrderedDict()

    def get(self, opened: OpenTransaction) -> tuple[AbortedTransaction, ...] | None:
        """The aborts of a transaction, none if it committed; None if it is not known."""
        with self._lock:
            return self._found.get((opened.producer_id, opened.first_offset))

    def keep(self, opened: OpenTransaction, found: tuple[AbortedTransaction, ...]) -> None:
        """Remember what :meth:`get` answers."""
        with self._lock:
            self._found[opened.producer_id, opened.first_offset] = found
            if len(self._found) > _KEPT:
                self._found.popitem(last=False)


class Aborts:
    """The aborted transactions of one partition. Thread-safe; no lock is held during a request."""

    def __init__(self, store: Store, refused: Callable[[Segment], None]) -> None:
        """Nothing is known yet. ``refused`` is called with a segment whose ``.txnindex`` is not its manifest's."""
        self._store = store
        self._refused = refused
        self._lock = threading.Lock()
        self._lists: OrderedDict[tuple[str, str], tuple[AbortedTransaction, ...]] = OrderedDict()

    def of(
        self, piece: SegmentPiece, lineage: Lineage, verdicts: Verdicts, following: Next
    ) -> tuple[AbortedTransaction, ...]:
        """The aborted transactions of ``piece``, whose offsets are all decided, by their markers."""
        bound = piece.end
        found: set[AbortedTransaction] = set()
        at, skipped = Step(piece, ())
        while at is not None:
            listed = [one for segment in (*skipped, at.segment) for one in self._listed(segment, lineage)]
            found |= {one for one in listed if one.first_offset < bound}
            if is_whole(at.segment, lineage, at.start):
                opened = [one for one in at.segment.open_transactions if one.first_offset < bound]
                found |= {one for each in opened for one in self._verdict(each, at, lineage, verdicts, following)}
                break
            at, skipped = following(live_until(at.segment, lineage, at.start))
        return tuple(sorted(found, key=lambda one: (one.last_offset, one.first_offset)))

    def _verdict(
        self,
        opened: OpenTransaction,
        piece: SegmentPiece,
        lineage: Lineage,
        verdicts: Verdicts,
        following: Next,
    ) -> tuple[AbortedTransaction, ...]:
        """The outcome of a transaction that is open at the end of ``piece``: its abort, or nothing if it committed."""
        known = verdicts.get(opened)
        if known is not None:
            return known
        found: tuple[AbortedTransaction, ...] = ()
        at, skipped = following(piece.segment.end)
        while at is not None:
            listed = [one for segment in (*skipped, at.segment) for one in self._listed(segment, lineage)]
            found = tuple(
                one
                for one in listed
                if one.producer_id == opened.producer_id and one.first_offset <= opened.first_offset <= one.last_offset
            )
            if found or (is_whole(at.segment, lineage, at.start) and not _is_open(opened, at.segment)):
                break
            at, skipped = following(live_until(at.segment, lineage, at.start))
        if at is None:
            return found  # nothing decides it yet
        verdicts.keep(opened, found)
        return found

    def _listed(self, segment: Segment, lineage: Lineage) -> list[AbortedTransaction]:
        """What the segment or its ``.txnindex`` lists, where the marker lies on ``lineage``."""
        return [one for one in self._all_listed(segment) if agrees(segment, lineage, one.last_offset)]

    def _all_listed(self, segment: Segment) -> Sequence[AbortedTransaction]:
        if segment.aborts is None:
            return segment.aborted
        name = segment.key, segment.etag
        with self._lock:
            known = self._lists.get(name)
        if known is None:
            try:
                known = tuple(aborts_of(self._store, segment))
            except PreconditionFailed:
                self._refused(segment)
                raise
            with self._lock:
                self._lists[name] = known
                if len(self._lists) > _KEPT // 64:
                    self._lists.popitem(last=False)
        return known


def _is_open(opened: OpenTransaction, segment: Segment) -> bool:
    return any(
        one.producer_id == opened.producer_id and one.first_offset == opened.first_offset
        for one in segment.open_transactions
    )
