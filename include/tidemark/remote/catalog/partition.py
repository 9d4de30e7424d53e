"""A stored partition. It reads the watermark first, then a listing, then those manifests that are needed.

Everything below the watermark is in the listing, since an agent writes the watermark last. Overlaps, replacements and
dead branches are resolved by lineage, as in plans (:mod:`tidemark.raw.segments`).
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, TypeVar

from tidemark.errors import NotFound, OutOfRange, PreconditionFailed
from tidemark.formats.acknowledgements import acknowledged
from tidemark.formats.gaps import Gap
from tidemark.formats.keys import ControlKeys, PartitionKeys
from tidemark.formats.watermark import Watermark
from tidemark.intervals import Intervals
from tidemark.kafka_log import Lineage
from tidemark.raw.objects import fetched_marks, first_left, marks_of
from tidemark.raw.segments import Segment, SegmentPiece, is_whole
from tidemark.raw.transactions import decided_end
from tidemark.remote.catalog.aborted_transactions import Aborts, Step, Verdicts
from tidemark.remote.catalog.offset_lookup import IndexObjects
from tidemark.remote.catalog.segment_index import StoredSegments
from tidemark.remote.catalog.storage import Storage
from tidemark.remote.catalog.stretch import OffsetForTime, Stretch
from tidemark.remote.catalog.time_lookup import first_at
from tidemark.remote.catalog.watermark_view import PartitionView, left_branch, offsets_of, readable_end, split

_ATTEMPTS: Final = 3

Result = TypeVar("Result")

Observe = Callable[[int, int, int], tuple[int, datetime] | None]
"""(incarnation, partition, highest leader epoch) → the log end that an agent saw last, and when."""


@dataclass(frozen=True, slots=True)
class PartitionPlace:
    """A partition of one incarnation, and where its objects lie."""

    topic: str
    partition: int
    incarnation: int
    topic_id: str | None
    keys: PartitionKeys


class RemotePartition:
    """A partition of one incarnation, as the remote tier has it.

    Thread-safe. Only :meth:`refresh` changes what is known. Methods that read the store raise
    :class:`tidemark.errors.StoreError` or one of its kinds, and :class:`tidemark.errors.FormatError` for an object
    that does not parse; none retries.
    """

    def __init__(self, storage: Storage, place: PartitionPlace, indexes: IndexObjects, observe: Observe) -> None:
        """Nothing is read yet: refresh it once."""
        self.topic, self.partition = place.topic, place.partition
        self.incarnation, self.topic_id = place.incarnation, place.topic_id
        self._storage, self._keys = storage, place.keys
        self._store = storage.store(place.keys.endpoint.store)
        self._indexes, self._observe = indexes, observe
        self._segments = StoredSegments(self._store, place.keys)
        self._aborts = Aborts(self._store, self.invalidate)
        self._refreshing = threading.Lock()
        self._view = PartitionView()
        self._looked_back = ""  # the ETag of the watermark under which all was listed again for a hole

    def refresh(self) -> None:
        """Read the watermark, the tombstones of retention, and what is new, by a few small requests.

        While nothing has changed, this takes one GET and a listing of tombstones; otherwise also one listing from the
        newest base on, and the manifest of the newest segment. All segments are listed again if the log left its
        branch, line 1 of the watermark went down, or a hole was filled, as its segment may start anywhere below.
        """
        with self._refreshing:
            fetched = fetched_marks(self._store, self._keys)
            if fetched is None:
                self._view = PartitionView(branch=self._view.branch)
                return
            before = self._view
            if before.watermark is not None and fetched.etag == before.etag:
                now = self._same(before)
            else:
                now = self._moved(before, *marks_of(fetched.body, self._keys, self.topic_id), fetched.etag)
            start = first_left(self._store, self._keys, now.start)
            now = replace(now, start=start, end=max(start, now.end))
            if (now.etag, now.end) != (before.etag, before.end):
                now = replace(now, stable=self._decided(now))
            self._view = replace(now, stable=max(start, now.stable))

    def _same(self, before: PartitionView) -> PartitionView:
        """The view by the same watermark: a person may have acknowledged gaps."""
        if before.watermark is None or not before.gaps:
            return before
        gaps, passed = split(before.watermark, self._acknowledged())
        end = readable_end(before.watermark, passed)
        return replace(before, gaps=gaps, passed=passed, end=end)

    def _moved(self, before: PartitionView, line_1: int, watermark: Watermark, etag: str) -> PartitionView:
        """The view by another watermark, with what is listed since."""
        gaps, passed = split(watermark, self._acknowledged() if watermark.gaps else Intervals())
        end = readable_end(watermark, passed)
        filled = before.missing - passed - offsets_of(gaps)
        lineage = Lineage(watermark.lineage)
        left = left_branch(before, lineage, end)
        again = before.watermark is None or left or line_1 < before.line_1 or bool(filled)
        self._segments.relist(0 if again else min(before.line_1, self._segments.newest))
        return PartitionView(
            watermark=watermark,
            lineage=lineage,
            line_1=line_1,
            etag=etag,
            start=watermark.start_offset,
            gaps=gaps,
            passed=passed,
            end=end,
            branch=before.branch + left,
            verdicts=Verdicts() if again else before.verdicts,
        )

    @property
    def start(self) -> int:
        """The first offset that can be read now; retention of raw moves it."""
        return self._view.start

    @property
    def branch(self) -> int:
        """Grows when the lineage has changed below what could have been read before."""
        return self._view.branch

    def end(self, *, committed: bool) -> int:
        """The offset after the last that can be read; ``committed``: the remote last stable offset. No request."""
        view = self._view
        return view.stable if committed else view.end

    def gap_at(self, offset: int) -> Gap | None:
        """The recorded, unacknowledged gap that ``offset`` lies in. No request."""
        return self._view.gap_at(offset)

    def diverged(self, offset: int, leader_epoch: int) -> int | None:
        """Where, below ``offset``, the log left the branch of a reader that last saw ``leader_epoch``; None: nowhere.

        As Kafka's OffsetsForLeaderEpoch (KIP-320). No request.
        """
        return self._view.diverged(offset, leader_epoch)

    def observed_log_end(self) -> tuple[int, datetime] | None:
        """The log end offset that the leader's agent saw last, and when; None if no agent has reported it."""
        watermark = self._view.watermark
        highest = sys.maxsize if watermark is None else watermark.leader_epoch  # no leader has a later one yet
        return self._observe(self.incarnation, self.partition, highest)

    def invalidate(self, segment: Segment) -> None:
        """Read the manifest of ``segment`` again when it is needed: a repair made its objects again, or it is gone."""
        self._segments.forget(segment.name)

    def next_stretch(self, offset: int, *, committed: bool) -> Stretch | Gap | None:
        """What to read at ``offset``.

        The result is a gap if ``offset`` lies in a recorded gap that is not acknowledged, or if the store lacks it
        without a record (reason ``unknown``). Acknowledged gaps are skipped: the stretch starts later then. None if
        there is nothing at or after ``offset`` yet.

        Raises:
            OutOfRange: ``offset`` lies below :attr:`start`.
            PreconditionFailed: a repair is making a segment's objects again; ask again.
        """
        return self._on_what_is_there(lambda: self._stretch(offset, committed=committed))

    def _stretch(self, offset: int, *, committed: bool) -> Stretch | Gap | None:
        view = self._view
        found = self._at(view, offset, view.stable if committed else view.end)
        if not isinstance(found, SegmentPiece):
            return found
        segment = found.segment
        try:
            position = self._indexes.position(self._store, segment, found.start)
        except (PreconditionFailed, NotFound):
            self.invalidate(segment)
            raise
        aborted = (
            self._aborts.of(found, view.lineage, view.verdicts, lambda at: self._following(view, at))
            if committed
            else ()
        )
        return Stretch(segment, found.start, found.end, position, aborted)

    def _on_what_is_there(self, call: Callable[[], Result]) -> Result:
        """``call``, again where it met a segment that was made again or removed since its manifest was read."""
        for _ in range(_ATTEMPTS):
            try:
                return call()
            except PreconditionFailed:
                continue  # its manifest is read again
            except NotFound:
                self.refresh()
        return call()

    def offset_for_time(
        self, timestamp_ms: int, *, committed: bool = False, markers: bool = True
    ) -> OffsetForTime | None:
        """The first record with at least this timestamp, as Kafka's ListOffsets finds it (KIP-79); None if none has.

        To Kafka a transaction's marker is a record, with the broker's time: without ``markers`` only data counts.
        """
        view = self._view
        found = self._on_what_is_there(lambda: self._first_at(timestamp_ms, markers=markers))
        return found if found is not None and found.offset < (view.stable if committed else view.end) else None

    def _first_at(self, timestamp: int, *, markers: bool) -> OffsetForTime | None:
        view = self._view
        return first_at(
            timestamp, self._segments, view.lineage, view.start, self._store, self._indexes, markers=markers
        )

    def _at(self, view: PartitionView, offset: int, end: int) -> SegmentPiece | Gap | None:
        """What there is at ``offset``, up to ``end`` at most."""
        if offset < view.start:
            raise OutOfRange(self.topic, self.partition, offset, view.start, view.end)
        at = view.passed.contiguous_from(offset)
        if (gap := view.gap_at(at)) is not None:
            return gap
        if at >= end:
            return None
        piece = self._piece(view, at)
        if piece is not None:
            return piece._replace(end=min(piece.end, end, view.clear_until(at)))
        self.refresh()  # retention may have removed the segment
        now = self._view
        if (now.etag, now.start) != (view.etag, view.start):
            return self._at(now, offset, min(end, now.end))
        gap = self._unrecorded(now, at)
        given_up = offsets_of([gap]) & self._acknowledged()
        if not given_up:
            return gap
        with self._refreshing:
            if self._view is now:
                self._view = replace(now, passed=now.passed | given_up)
        return self._at(self._view, offset, end)

    def _piece(self, view: PartitionView, offset: int) -> SegmentPiece | None:
        """The piece at ``offset``. Before the result is None, all is listed again, once for each watermark."""
        piece = self._segments.piece(offset, view.lineage)
        if piece is None and self._looked_back != view.etag:
            while piece is None and self._segments.look_back(offset):
                piece = self._segments.piece(offset, view.lineage)
            if piece is None:
                self._looked_back = view.etag
        return piece

    def _unrecorded(self, view: PartitionView, offset: int) -> Gap:
        """The hole at ``offset`` of which no agent knows: a segment below the watermark is missing."""
        assert view.watermark is not None
        after = self._segments.next_piece(offset, view.end, view.lineage)
        fields = {
            "from": offset,
            "to": min(after.start if after else view.end, view.clear_until(offset)),
            "reason": "unknown",
            "detected_at": view.watermark.written_at,
        }
        return Gap.model_validate(fields)

    def _following(self, view: PartitionView, offset: int) -> Step:
        """The first piece at or after ``offset``, beyond whatever is missing."""
        piece = self._next(view, offset)
        end = piece.start if piece else view.end
        return Step(piece, self._segments.within(offset, end) if end > offset else ())

    def _next(self, view: PartitionView, offset: int) -> SegmentPiece | None:
        at = max(offset, view.start)
        while at < view.end:
            missing = view.missing.contiguous_from(at)
            if missing > at:
                at = missing
                continue
            return self._piece(view, at) or self._segments.next_piece(at, view.end, view.lineage)
        return None

    def _decided(self, view: PartitionView) -> int:
        """How far up to the end of ``view`` all transactions are decided.

        The last segment that is valid up to its end decides. A segment that leaves the lineage before its end lists the
        transactions open on its own branch. So may one that continues beyond the view's end.
        """
        at, limit = view.end, view.end
        while at > view.start:
            missing = next((part for part in view.missing if part.start < at <= part.end), None)
            if missing is not None:
                at = missing.start
                continue
            piece = self._piece(view, at - 1)
            if piece is not None and is_whole(piece.segment, view.lineage, at - 1):
                return decided_end(limit, piece.segment.open_transactions)[0]
            at = piece.segment.base if piece is not None else self._segments.last_end(at - 1, view.lineage)
            limit = at
        return view.start

    def _acknowledged(self) -> Intervals:
        default = self._storage.default()
        control = ControlKeys(default.prefix, self._storage.cluster)
        return acknowledged(self._storage.store(default.store), control, self._keys)
