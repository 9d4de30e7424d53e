"""A stored partition: which offsets it has, and the bytes to read each of them from.

It looks at heads and watermark, then lists the segments, then reads the manifests it needs. Everything below the
watermark is in the listing, since an agent writes the watermark last. Overlaps, replacements and dead branches are
resolved by lineage, as in plans (:mod:`tidemark.raw.segments`).
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from tidemark.concurrency import Lru
from tidemark.decode.offset_mask import OffsetMask
from tidemark.errors import FormatError, NotFound, OutOfRange, PreconditionFailed, StoreError
from tidemark.formats.raw.gaps import Gap, split_acknowledged
from tidemark.formats.raw.masks import MaskName
from tidemark.formats.raw.watermark import Watermark
from tidemark.intervals import Intervals
from tidemark.kafka_log import AbortedTransaction, Lineage
from tidemark.raw.heads import LiveEnd
from tidemark.raw.masks import TopicMasks
from tidemark.raw.objects import first_left, read_watermark
from tidemark.raw.packs import TailPieces, TailRanges
from tidemark.raw.partition import RawPartition, StoredPartition
from tidemark.raw.segments import Segment, SegmentPiece, decided_end, is_whole
from tidemark.remote.segments import KEPT_VERDICTS, Aborts, IndexObjects, StoredSegments, Verdicts
from tidemark.remote.time_lookup import OffsetForTime, first_at
from tidemark.storage import Storage, StoredWatermark

if TYPE_CHECKING:
    from tidemark.remote.topics import Observations

_ATTEMPTS: Final = 3
_FOR_EVER: Final = 1 << 63

Result = TypeVar("Result")


class Stretch(NamedTuple):
    """Offsets ``[start, end)`` of a partition, to be read from one stored segment or range of a pack.

    Read the segment's object ``key`` in the store ``segment.store`` (:meth:`Storage.store`) under
    ``If-Match: segment.etag``, if it has one, from byte ``position`` (a batch starts there, at or below ``start``) to
    at most ``segment.stop``. ``aborted`` are the transactions to leave out, none for read_uncommitted.
    ``mask`` has the erased records to leave out.
    """

    segment: Segment
    start: int
    end: int
    position: int
    aborted: tuple[AbortedTransaction, ...]
    mask: OffsetMask


@dataclass(frozen=True, slots=True)
class WatermarkView:
    """A partition at one moment. ``gaps`` are not acknowledged, ``passed`` are acknowledged gaps.

    Below ``sealed`` seals hold the offsets, from there on the ranges of ``tail``, without a hole. ``end`` is the offset
    after the last readable one. Up to ``stable`` all transactions are decided. ``masks`` is None while the masks could
    not be read: then nothing is delivered.
    """

    stored: StoredWatermark | None = None
    start: int = 0
    gaps: tuple[Gap, ...] = ()
    passed: Intervals = field(default_factory=Intervals)
    sealed: int = 0
    tail: TailPieces = field(default_factory=TailPieces)
    end: int = 0
    stable: int = 0
    branch: int = 0
    verdicts: Verdicts = field(default_factory=lambda: Lru(KEPT_VERDICTS), compare=False)
    masks: tuple[MaskName, ...] | None = None

    @property
    def etag(self) -> str:
        """The ETag of ``offset.wm``; empty without one."""
        return self.stored.etag if self.stored is not None else ""

    @property
    def lineage(self) -> Lineage:
        """The leader's whole lineage."""
        return self.stored.lineage if self.stored is not None else Lineage()

    @property
    def brokers(self) -> frozenset[int]:
        """The brokers that may have packed offsets that are not sealed."""
        return self.stored.watermark.tail_brokers if self.stored is not None else frozenset()

    @property
    def missing(self) -> Intervals:
        """All missing offsets of the watermark, acknowledged or not."""
        return Intervals.of(self.gaps) | self.passed

    def packed(self, offset: int) -> SegmentPiece | None:
        """The tail's piece from ``offset`` on; None if that does not lie in the tail."""
        pieces = self.tail.pieces
        index = bisect_right(pieces, offset, key=lambda piece: piece.start) - 1
        return pieces[index]._replace(start=offset) if index >= 0 and offset < pieces[index].end else None

    def gap_at(self, offset: int) -> Gap | None:
        """The unacknowledged gap around ``offset``; None if there is none."""
        return next((gap for gap in self.gaps if gap.start <= offset < gap.end), None)

    def clear_until(self, offset: int) -> int:
        """The next missing offset above ``offset``; far away if there is none."""
        starts = [part.start for part in self.missing if part.start > offset]
        return min(starts, default=_FOR_EVER)

    def diverged(self, offset: int, leader_epoch: int) -> int | None:
        """The offset below ``offset`` at which the log left the branch of ``leader_epoch``; None if it did not."""
        if self.stored is None or leader_epoch < 0:
            return None
        ended = self.lineage.end_offset(leader_epoch, _FOR_EVER)
        return ended[1] if ended is not None and ended[1] < offset else None


class RemotePartition:
    """A partition of one incarnation in the remote tier.

    Thread-safe. Only :meth:`refresh` changes this knowledge. Methods that read the store raise
    :class:`tidemark.errors.StoreError` or one of its kinds, and :class:`tidemark.errors.FormatError` for an object
    that does not parse; none retries.
    """

    def __init__(
        self,
        storage: Storage,
        topic: str,
        part: RawPartition,
        indexes: IndexObjects,
        live_end: LiveEnd,
        masks: TopicMasks,
        observations: Observations,
        *,
        kafka_too: bool = False,
    ) -> None:
        """Start with nothing read: refresh the partition once. ``kafka_too`` is that of :func:`open_and_passed`."""
        self._kafka_too = kafka_too
        self.topic, self.partition = topic, part.keys.partition
        self.incarnation, self.topic_id = part.incarnation, part.topic_id
        self._cluster, self._stored = storage.cluster_store(), storage.partition_store(part.keys)
        self._indexes, self._observations = indexes, observations
        self._live_end, self._masks = live_end, masks
        self._mask: tuple[tuple[MaskName, ...], tuple[int, ...], OffsetMask] = (), (), OffsetMask()
        """The masks of the last stretch, in a log with these restores."""
        self._tail = TailRanges(self._stored, live_end.read_line)
        self._segments = StoredSegments(self._stored)
        self._looked_back = ""  # the ETag of the watermark under which all was listed again for a hole
        self._aborts = Aborts(self._stored.store, self.invalidate)
        self._refreshing = threading.Lock()
        self._view = WatermarkView()
        self._buried_at = float("-inf")  # when tombstones were listed last

    def refresh(self, start_max_age: float = 0.0) -> None:
        """Read the masks, the watermark, the tombstones of retention, and all that is new, by a few small requests.

        While nothing has changed, this takes one GET, and a listing of tombstones unless that was done less than
        ``start_max_age`` seconds ago. Partitions share the GET of their topic's masks. If the watermark names tails, it
        also takes its part in the look at the heads and in the GET of the lines of new ranges, which partitions share.
        If the watermark has moved, there are also one listing from the newest base on, and the manifest of the newest
        segment. All segments are listed again if the log left its branch, line 1 of the watermark went down, or a hole
        was filled, as its segment may start anywhere below.
        """
        with self._refreshing:
            self._view = before = self._masked(self._view)
            found = self._look(before)
            if found is None:
                self._view = WatermarkView(branch=before.branch, masks=before.masks)
                return
            now = self._same(before) if found.stored is before.stored else self._moved(before, found.stored)
            start = self._first_left(before, now, start_max_age)
            sealed = max(start, now.sealed)
            tail = self._tail.pieces(found.entries, now.lineage, sealed, now.missing)
            end = tail.pieces[-1].end if tail.pieces else sealed
            now = replace(now, start=start, sealed=sealed, tail=tail, end=end)
            if (now.etag, now.end, now.tail) != (before.etag, before.end, before.tail):
                now = replace(now, stable=self._decided(now))
            self._view = replace(now, stable=max(start, now.stable))

    def _first_left(self, before: WatermarkView, now: WatermarkView, start_max_age: float) -> int:
        """The first offset of raw. A caller that finds that retention has removed more refreshes, and lists again."""
        began = time.monotonic()
        if before.start >= now.start and began - self._buried_at < start_max_age:
            return before.start
        start = first_left(self._stored, now.start)
        self._buried_at = began
        return start

    def _masked(self, view: WatermarkView) -> WatermarkView:
        """``view`` with the masks that count now. A failure forgets them: without them nothing may be delivered."""
        try:
            masks = self._masks.of(self.partition)
        except Exception:
            self._view = replace(view, masks=None)
            raise
        return view if masks == view.masks else replace(view, masks=masks)

    def _look(self, before: WatermarkView) -> StoredPartition | None:
        """What is there. Of a head that does not parse nothing is read before it is sealed."""

        def current() -> StoredWatermark | None:
            return read_watermark(self._stored, self.topic_id, before.stored)

        found = self._live_end.look(self._stored, current, before.brokers)
        for error in found.errors if found is not None else ():
            if isinstance(error, StoreError):
                raise error
        return found

    def _same(self, before: WatermarkView) -> WatermarkView:
        """The view with the same watermark: a person may have acknowledged gaps."""
        if before.stored is None or not before.gaps:
            return before
        gaps, passed = open_and_passed(before.stored.watermark, self._acknowledged(), kafka_too=self._kafka_too)
        sealed = readable_end(before.stored.watermark, passed | Intervals.of(gaps))
        return replace(before, gaps=gaps, passed=passed, sealed=sealed)

    def _moved(self, before: WatermarkView, stored: StoredWatermark) -> WatermarkView:
        """The view with another watermark and the segments listed since; without its tail."""
        watermark = stored.watermark
        acknowledged = self._acknowledged() if watermark.gaps else Intervals()
        gaps, passed = open_and_passed(watermark, acknowledged, kafka_too=self._kafka_too)
        sealed = readable_end(watermark, passed | Intervals.of(gaps))
        filled = before.missing - passed - Intervals.of(gaps)
        left = left_branch(before, stored.lineage, sealed)
        known = before.stored
        again = known is None or left or stored.base_offset < known.base_offset or bool(filled)
        self._segments.relist(0 if known is None or again else min(known.base_offset, self._segments.newest))
        return WatermarkView(
            stored=stored,
            start=watermark.start_offset,
            gaps=gaps,
            passed=passed,
            sealed=sealed,
            branch=before.branch + left,
            verdicts=Lru(KEPT_VERDICTS) if again else before.verdicts,
            masks=before.masks,
        )

    @property
    def start(self) -> int:
        """The first offset that can be read now; retention of raw moves it."""
        return self._view.start

    @property
    def branch(self) -> int:
        """A number that grows when the lineage has changed below an offset that could have been read before."""
        return self._view.branch

    @property
    def basis(self) -> tuple[int, tuple[MaskName, ...] | None]:
        """The branch and the masks. If they change, records that were read ahead are void: read them again."""
        view = self._view
        return view.branch, view.masks

    def end(self, *, committed: bool) -> int:
        """The offset after the last readable one; with ``committed``, the remote last stable offset. No request."""
        view = self._view
        return view.stable if committed else view.end

    def gap_at(self, offset: int) -> Gap | None:
        """The recorded, unacknowledged gap around ``offset``, if any. No request."""
        return self._view.gap_at(offset)

    def diverged(self, offset: int, leader_epoch: int) -> int | None:
        """The offset below ``offset`` at which the log left the branch of a reader in ``leader_epoch``, None if none.

        Follows Kafka's OffsetsForLeaderEpoch (KIP-320). No request.
        """
        return self._view.diverged(offset, leader_epoch)

    def observed_log_end(self) -> tuple[int, datetime] | None:
        """The log end offset that the leader's agent last saw, and when; None if no agent has reported it."""
        stored = self._view.stored
        latest = None if stored is None else stored.watermark.leadership  # no leader has a later one yet
        return self._observations.log_end(self.topic, self.incarnation, self.partition, latest)

    def invalidate(self, segment: Segment) -> None:
        """Have the manifest of ``segment`` read again when needed: a repair made its objects again, or it is gone.

        A range of a pack stays, until seals hold it.
        """
        if not segment.packed:
            self._segments.forget(segment.name)

    def next_stretch(self, offset: int, *, committed: bool) -> Stretch | Gap | None:
        """The stretch to read at ``offset``.

        The result is a gap if ``offset`` lies in a recorded gap that is not acknowledged, or if the store lacks it
        without a record (reason ``unknown``). Acknowledged gaps are skipped: the stretch starts later then. None if
        there is nothing at or after ``offset`` yet.

        Raises:
            FormatError: the tail ends at ``offset``, because a head's object for it is damaged.
            OutOfRange: ``offset`` lies below :attr:`start`.
            PreconditionFailed: a repair is making a segment's objects again; ask again.
        """
        return self._on_what_is_there(lambda: self._stretch(offset, committed=committed))

    def packed_stretch(self, offset: int, *, committed: bool) -> Stretch | None:
        """The stretch of :meth:`next_stretch` if it is a range of the tail without masks, else None.

        Makes no request.
        """
        view = self._view
        piece, end = view.packed(offset), view.stable if committed else view.end
        if piece is None or offset >= end or view.masks is None or _overlapping(view.masks, offset, piece.end):
            return None
        return self._stretch_of(view, piece._replace(end=min(piece.end, end)), committed=committed)

    def _stretch(self, offset: int, *, committed: bool) -> Stretch | Gap | None:
        view = self._with_masks()
        source = self._at(view, offset, view.stable if committed else view.end)
        return self._stretch_of(view, source, committed=committed) if isinstance(source, SegmentPiece) else source

    def _stretch_of(self, view: WatermarkView, piece: SegmentPiece, *, committed: bool) -> Stretch:
        try:
            position = self._indexes.position(self._stored, piece.segment, piece.start)
        except (PreconditionFailed, NotFound):
            self.invalidate(piece.segment)
            raise
        aborted: tuple[AbortedTransaction, ...] = ()
        if committed:
            aborted = self._aborts.of(piece, view.lineage, view.verdicts, lambda at: self._following(view, at))
        return Stretch(piece.segment, piece.start, piece.end, position, aborted, self._mask_of(view, *piece[1:]))

    def _with_masks(self) -> WatermarkView:
        """The view; the masks are read again if the last try failed. Raises errors of :meth:`refresh`."""
        while (view := self._view).masks is None:
            self.refresh()
        return view

    def _mask_of(self, view: WatermarkView, start: int, end: int) -> OffsetMask:
        """The erased offsets of the masks around ``[start, end)``."""
        assert view.masks is not None
        masks, restores = _overlapping(view.masks, start, end), view.lineage.restores
        *known, mask = self._mask
        if [masks, restores] != known:
            mask = self._masks.read(masks, restores)
            self._mask = masks, restores, mask
        return mask

    def _on_what_is_there(self, call: Callable[[], Result]) -> Result:
        """Call ``call``, again if it met a segment that was made again or removed since its manifest was read."""
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

        For Kafka a transaction's marker is a record, with the broker's time: without ``markers`` only data counts. An
        erased record is passed over.
        """
        view = self._view
        record = self._on_what_is_there(lambda: self._first_at(timestamp_ms, markers=markers))
        return record if record is not None and record.offset < (view.stable if committed else view.end) else None

    def _first_at(self, timestamp: int, *, markers: bool) -> OffsetForTime | None:
        view = self._with_masks()

        def mask_of(start: int, end: int) -> OffsetMask:
            return self._mask_of(view, start, end)

        return first_at(timestamp, self._segments, view, self._stored, self._indexes, mask_of, markers=markers)

    def _at(self, view: WatermarkView, offset: int, end: int) -> SegmentPiece | Gap | None:
        """The piece or gap at ``offset``, up to ``end`` at most; None if there is nothing yet."""
        if offset < view.start:
            raise OutOfRange(self.topic, self.partition, offset, view.start, view.end)
        at = view.passed.contiguous_from(offset)
        if (gap := view.gap_at(at)) is not None:
            return gap
        if at >= end:
            damage = view.tail.damage
            if damage is not None and at >= view.end:
                raise FormatError(damage.name, damage.rule)
            return None
        piece = self._piece(view, at)
        if piece is not None:
            return piece._replace(end=min(piece.end, end, view.clear_until(at)))
        self.refresh()  # retention may have removed the segment
        now = self._view
        if (now.etag, now.start) != (view.etag, view.start):
            return self._at(now, offset, min(end, now.end))
        gap = self._unrecorded(now, at)
        given_up = Intervals.of([gap]) & self._acknowledged()
        if not given_up:
            return gap
        with self._refreshing:
            if self._view is now:
                self._view = replace(now, passed=now.passed | given_up)
        return self._at(self._view, offset, end)

    def _acknowledged(self) -> Intervals:
        return self._cluster.acknowledged(self._stored.keys.place, self.partition)

    def _piece(self, view: WatermarkView, offset: int) -> SegmentPiece | None:
        """The piece at ``offset``, None if there is none; below the end of the seals, all is listed again before that.

        That is done once for each watermark.
        """
        if offset >= view.sealed:
            return view.packed(offset)
        piece = self._segments.piece(offset, view.lineage)
        if piece is None and self._looked_back != view.etag:
            while piece is None and self._segments.look_back(offset):
                piece = self._segments.piece(offset, view.lineage)
            if piece is None:
                self._looked_back = view.etag
        return piece

    def _unrecorded(self, view: WatermarkView, offset: int) -> Gap:
        """The hole at ``offset`` that no agent knows: a segment below the watermark is missing."""
        assert view.stored is not None
        after = self._segments.next_piece(offset, view.sealed, view.lineage)
        fields = {
            "from": offset,
            "to": min(after.start if after else view.sealed, view.clear_until(offset)),
            "reason": "unknown",
            "detected_at": view.stored.watermark.written_at,
        }
        return Gap.model_validate(fields)

    def _following(self, view: WatermarkView, offset: int) -> tuple[SegmentPiece | None, Sequence[Segment]]:
        """The first piece at or after ``offset``, beyond all missing offsets."""
        piece = self._next(view, offset)
        end = piece.start if piece else view.end
        return piece, self._segments.within(offset, end) if end > offset else ()

    def _decided(self, view: WatermarkView) -> int:
        """The end, up to that of ``view``, of the offsets with all transactions decided.

        The last segment or range that is valid up to its end decides. A segment that leaves the lineage before its end
        lists the transactions open on its own branch. So may one that continues beyond the view's end.
        """
        if view.tail.opened is not None:
            return decided_end(view.end, view.tail.opened)[0]
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

    def _next(self, view: WatermarkView, offset: int) -> SegmentPiece | None:
        at = max(offset, view.start)
        while at < view.end:
            missing = view.missing.contiguous_from(at)
            if missing > at:
                at = missing
            elif at >= view.sealed:
                return view.packed(at)
            elif piece := self._piece(view, at) or self._segments.next_piece(at, view.sealed, view.lineage):
                return piece
            else:
                at = view.sealed
        return None


def left_branch(before: WatermarkView, lineage: Lineage, sealed: int) -> bool:
    """True if offsets that ``before`` had, its tail's too, are taken back, or of another epoch now."""
    if before.stored is None:
        return False
    return sealed < before.sealed or before.lineage.divergence(lineage, before.end) is not None


def readable_end(watermark: Watermark, missing: Intervals) -> int:
    """The offset after the last sealed one, above recorded gaps as well, but not above an unrecorded hole.

    Beyond such a hole an upload is under way; those offsets can be read once the hole is filled or recorded.
    """
    start = watermark.start_offset
    present = Intervals([(start, max(start, watermark.next_offset)), *watermark.ranges_above])
    recorded = Intervals.of((*watermark.gaps, *watermark.acknowledged_gaps))
    limit = (present | recorded).contiguous_from(start)
    readable = present.clip(start, max(start, limit)) - missing
    return readable.parts[-1].end if readable else start


def open_and_passed(
    watermark: Watermark, acknowledged: Intervals, *, kafka_too: bool
) -> tuple[tuple[Gap, ...], Intervals]:
    """(the gaps that still stop readers, the offsets that a person acknowledged as lost).

    An acknowledgement may be newer than the watermark. If it covers offsets that are not missing, these are read. A
    reader of Kafka, too, is always stopped by what Kafka's own remote tier still has.
    """
    before = Intervals.of(watermark.acknowledged_gaps)
    holding, passed = split_acknowledged(watermark.gaps, acknowledged | before)
    passed = (*watermark.acknowledged_gaps, *passed)
    if kafka_too:
        holding = tuple(sorted((*holding, *(gap for gap in passed if gap.in_remote_tier)), key=lambda gap: gap.start))
    return holding, Intervals.of(passed) - Intervals.of(holding)


def _overlapping(masks: tuple[MaskName, ...], start: int, end: int) -> tuple[MaskName, ...]:
    """The masks that may hold offsets of ``[start, end)``."""
    return tuple(mask for mask in masks if mask.start < end and mask.end > start)
