"""The choice of stored segments that hold a partition's offsets, each offset once, on the valid lineage.

Replicas do not share segment boundaries, so segments of two leaders overlap; after an unclean election their content
may differ. A segment is valid for an offset only if its own lineage gives that offset the epoch that the partition's
newest lineage gives it.

Segments also decide transactions. A transaction is undecided at the end of a segment if and only if the segment's
manifest lists it as open there. Otherwise it was aborted if and only if a ``.txnindex`` at or below that end lists it;
the entry lies in the segment that holds its marker, not in the segments that hold its data.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from typing import NamedTuple

from tidemark.errors import FormatError
from tidemark.formats.keys import MANIFEST_EXTENSION, SegmentName
from tidemark.formats.raw.manifest import ObjectSum, Origin, PackedPart, SegmentManifest
from tidemark.intervals import Interval, Intervals
from tidemark.kafka_log import AbortedTransaction, BatchHeader, Lineage, OpenTransaction, carry_forward


@dataclass(frozen=True, slots=True)
class Segment:
    """A stored segment, as its manifest describes it, or a range of a pack, which serves as a small segment.

    The segment accounts for the offsets ``[base, end)``, which lie in ``size`` bytes of the object ``key`` from byte
    ``position`` on. ``etag`` is empty for a pack, which is never replaced. ``open_transactions`` are those open at
    its end. ``max_timestamp`` (milliseconds) is that of its batches, if known. ``aborts`` is its ``.txnindex``, None
    without one; ``aborted`` are the transactions that a range lists itself. ``parts`` are the ranges that had been
    packed before; the time when they were shipped bounds the times of their records.

    The log of a segment may be another system's object: then ``home`` is the store and the folder of the segment's
    other objects, and they are those of the log otherwise.
    """

    store: str
    key: str
    etag: str
    size: int
    base: int
    end: int
    origin: Origin
    compacted: bool
    lineage: Lineage
    open_transactions: tuple[OpenTransaction, ...]
    uploaded_at: datetime
    has_index: bool
    aborts: ObjectSum | None
    max_timestamp: int | None = None
    suffix: str = ""
    position: int = 0
    aborted: tuple[AbortedTransaction, ...] = ()
    parts: tuple[PackedPart, ...] = ()
    home: tuple[str, str] | None = None

    @property
    def name(self) -> SegmentName:
        """The common name of the segment's objects."""
        return SegmentName(self.base, self.suffix)

    @property
    def stop(self) -> int:
        """The byte of the object after the segment's last one."""
        return self.position + self.size

    @property
    def packed(self) -> bool:
        """True for a range of a pack, which has no other objects beside it."""
        return not self.etag

    def sibling(self, extension: str) -> str:
        """The key of another file of the segment: ``index``, ``txnindex``; it lies in :attr:`sibling_store`."""
        folder = self.key.rpartition("/")[0] if self.home is None else self.home[1]
        return f"{folder}/{self.name.file(extension)}"

    @property
    def sibling_store(self) -> str:
        """The store of the segment's other files."""
        return self.store if self.home is None else self.home[0]

    @property
    def referred(self) -> bool:
        """True if the log is another system's object, which that system may delete."""
        return self.home is not None


class SegmentPiece(NamedTuple):
    """The offsets ``[start, end)`` of a partition, to be read from ``segment``."""

    segment: Segment
    start: int
    end: int


def segment_of(manifest: SegmentManifest, key: str, store: str) -> Segment:
    """The segment that the manifest under ``key`` describes.

    In a corrupt segment only the offsets before the damage count. Offsets between the last batch and the next segment
    belong to a compacted segment, whose tail was emptied; in any other segment they are missing.

    Raises:
        FormatError: the manifest does not list the segment's log, or lies under another segment's name.
    """
    name = manifest.name
    log, refers = manifest.log, manifest.refers
    if log is None or not key.endswith(f"/{name.file(MANIFEST_EXTENSION)}"):
        rule = f"objects: does not list {manifest.log_name}" if log is None else f"is that of {manifest.log_name}"
        raise FormatError(key, rule)
    if manifest.damage:
        size, end = manifest.damage.position, manifest.damage.offset
    else:
        size, end = log.size, manifest.next_offset if manifest.compacted else manifest.last_batch_end
    folder = key.rpartition("/")[0]
    return Segment(
        store=store if refers is None else refers.store,
        key=f"{folder}/{manifest.log_name}" if refers is None else refers.key,
        etag=log.etag,
        size=size,
        base=manifest.base_offset,
        end=end,
        origin=manifest.origin,
        compacted=manifest.compacted,
        lineage=Lineage.of(manifest.lineage, key, manifest.restores),
        open_transactions=manifest.open_transactions,
        uploaded_at=manifest.uploaded_at,
        has_index=name.file("index") in manifest.objects,
        aborts=manifest.objects.get(name.file("txnindex")),
        max_timestamp=None if manifest.damage else manifest.max_timestamp,
        suffix=manifest.suffix,
        parts=manifest.parts,
        home=None if refers is None else (store, folder),
    )


def whole_lineage(newest: Lineage, older: Lineage, segments: Iterable[Segment]) -> Lineage:
    """``newest``, extended by the older lineages of the ledger and the segments below its first start.

    A segment also states the epochs that ``newest`` lacks below an epoch of both: up to its end the two logs are the
    same. Retention had removed these from the leader's log when it wrote ``newest``.
    """
    lineage, epochs = newest.with_history(older), newest.epochs
    for segment in sorted(segments, key=lambda segment: (segment.uploaded_at, segment.base), reverse=True):
        lineage = lineage.with_history(segment.lineage)
        if segment.lineage.epochs & epochs:
            shared = segment.lineage.truncated(live_end(segment, lineage))
            lineage = lineage.with_batches(shared.entries)
    return lineage


def agrees(segment: Segment, lineage: Lineage, offset: int) -> bool:
    """True if the log of ``segment`` has ``offset`` on ``lineage``, readable or not."""
    return segment.lineage.divergence(lineage, offset + 1) is None


def live_until(segment: Segment, lineage: Lineage, offset: int) -> int:
    """The end of the offsets from ``offset`` on for which ``segment`` is valid; ``offset`` if there are none."""
    if not segment.base <= offset < segment.end:
        return offset
    return max(offset, live_end(segment, lineage))


def live_end(segment: Segment, lineage: Lineage) -> int:
    """The offset at which ``segment`` ends or leaves ``lineage``."""
    at = segment.lineage.divergence(lineage, segment.end)
    return segment.end if at is None else at


def is_whole(segment: Segment, lineage: Lineage, offset: int) -> bool:
    """True if ``segment`` is valid from ``offset`` to its own end, so that its open transactions count."""
    return live_until(segment, lineage, offset) == segment.end


def cover(
    segments: Sequence[Segment], lineage: Lineage, wanted: Intervals
) -> tuple[list[SegmentPiece], Interval | None]:
    """(pieces that hold ``wanted``, each offset once, in order, up to the first hole; that hole or None).

    At each offset :func:`piece_at` chooses. This depends only on the segments.
    """
    pieces: list[SegmentPiece] = []
    by_base = sorted(segments, key=lambda segment: segment.base)
    begun = 0
    near: list[Segment] = []  # the segments around `at`, few of however many
    for start, end in wanted:
        at = start
        while at < end:
            while begun < len(by_base) and by_base[begun].base <= at:
                near.append(by_base[begun])
                begun += 1
            near = [segment for segment in near if segment.end > at]
            piece = piece_at(near, lineage, at)
            if piece is None:
                return pieces, Interval(at, _next_live(segments, lineage, at, end))
            pieces.append(piece._replace(end=min(piece.end, end)))
            at = pieces[-1].end
    return pieces, None


def piece_at(segments: Iterable[Segment], lineage: Lineage, offset: int) -> SegmentPiece | None:
    """The offsets from ``offset`` on that one of ``segments`` holds; None if none of them is valid there.

    A seal is taken before any range of a pack, unless a transaction is open at its end: compaction may have run between
    the two, landed records must be those that raw keeps, and a range of a compacted log may not list the transactions
    that it decides. Of several segments the one that reaches furthest is taken, then the one with the highest base,
    then the last rewriting.
    """
    live = [
        SegmentPiece(segment, offset, reach)
        for segment in segments
        if (reach := live_until(segment, lineage, offset)) > offset
    ]
    seals = [piece for piece in live if not piece.segment.packed and not piece.segment.open_transactions]
    rank = attrgetter("end", "segment.base", "segment.name.erasure")
    return max(seals or live, key=rank, default=None)


def _next_live(segments: Sequence[Segment], lineage: Lineage, after: int, end: int) -> int:
    """The first offset above ``after`` and below ``end`` from which on a segment is valid, or ``end``."""
    starts = {segment.base for segment in segments} | {start for _, start in lineage.entries}
    candidates = sorted(start for start in starts if after < start < end)
    return next(
        (start for start in candidates if any(live_until(segment, lineage, start) > start for segment in segments)), end
    )


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
    return carry_forward(before, headers)


def aborted_from(start: int, aborted: Iterable[AbortedTransaction]) -> tuple[AbortedTransaction, ...]:
    """The aborted transactions that matter to offsets from ``start`` on, without duplicates, by their markers."""
    later = (transaction for transaction in aborted if transaction.last_offset >= start)
    unique = {(transaction.last_offset, transaction.first_offset, transaction.producer_id) for transaction in later}
    return tuple(AbortedTransaction(producer, first, last) for last, first, producer in sorted(unique))
