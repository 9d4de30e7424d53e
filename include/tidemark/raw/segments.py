"""Which stored segments hold a partition's offsets, each offset once, on the lineage that counts.

Replicas do not share segment boundaries, so segments of two leaders overlap; after an unclean election they may
differ in what they hold. A segment is valid for an offset only if its own lineage gives that offset to the same epoch
as the partition's newest lineage does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from tidemark.errors import FormatError
from tidemark.formats.keys import MANIFEST_EXTENSION, SegmentName
from tidemark.formats.manifest import ObjectSum, OpenTransaction, PackedPart, SegmentManifest
from tidemark.intervals import Interval, Intervals
from tidemark.kafka_log import AbortedTransaction, Lineage


@dataclass(frozen=True, slots=True)
class Segment:
    """A stored segment, as its manifest describes it, or a range of a pack, which is a small one.

    The segment accounts for the offsets ``[base, end)``, which lie in ``size`` bytes of the object ``key`` from byte
    ``position`` on. ``etag`` is empty for a pack, which is never made again. ``open_transactions`` are those open at
    its end. ``max_timestamp`` (milliseconds) is that of its batches, if known. ``aborts`` is its ``.txnindex``, None
    without one; ``aborted`` is what a range lists itself. ``parts`` are the ranges that had been packed before, whose
    records are judged by when these were shipped.
    """

    store: str
    key: str
    etag: str
    size: int
    base: int
    end: int
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

    @property
    def name(self) -> SegmentName:
        """What the segment's objects are called."""
        return SegmentName(self.base, self.suffix)

    @property
    def stop(self) -> int:
        """The byte of the object after the segment's last one."""
        return self.position + self.size

    @property
    def packed(self) -> bool:
        """Whether it is a range of a pack, which has no other objects beside it."""
        return not self.etag

    def sibling(self, extension: str) -> str:
        """The key of another file of the segment: ``index``, ``txnindex``."""
        return f"{self.key.rpartition('/')[0]}/{self.name.file(extension)}"


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
    log = manifest.objects.get(manifest.log_name)
    if log is None or not key.endswith(f"/{name.file(MANIFEST_EXTENSION)}"):
        rule = f"objects: does not list {manifest.log_name}" if log is None else f"is that of {manifest.log_name}"
        raise FormatError(key, rule)
    if manifest.damage:
        size, end = manifest.damage.position, manifest.damage.offset
    else:
        size, end = log.size, manifest.next_offset if manifest.compacted else manifest.last_batch_end
    return Segment(
        store=store,
        key=key.rpartition("/")[0] + f"/{manifest.log_name}",
        etag=log.etag,
        size=size,
        base=manifest.base_offset,
        end=end,
        compacted=manifest.compacted,
        lineage=Lineage.of(manifest.lineage, key),
        open_transactions=manifest.open_transactions,
        uploaded_at=manifest.uploaded_at,
        has_index=name.file("index") in manifest.objects,
        aborts=manifest.objects.get(name.file("txnindex")),
        max_timestamp=None if manifest.damage else manifest.max_timestamp,
        suffix=manifest.suffix,
        parts=manifest.parts,
    )


def whole_lineage(newest: Lineage, older: Lineage, segments: Iterable[Segment]) -> Lineage:
    """``newest``, extended by what the ledger and the segments know of offsets below its first start."""
    found = newest.with_history(older)
    for segment in sorted(segments, key=lambda one: (one.uploaded_at, one.base), reverse=True):
        found = found.with_history(segment.lineage)
    return found


def agrees(segment: Segment, lineage: Lineage, offset: int) -> bool:
    """Whether the log of ``segment`` has ``offset`` on ``lineage``, readable there or not."""
    return segment.lineage.divergence(lineage, offset + 1) is None


def live_until(segment: Segment, lineage: Lineage, offset: int) -> int:
    """The end of the run of offsets from ``offset`` for which ``segment`` is valid; ``offset`` if there are none."""
    if not segment.base <= offset < segment.end:
        return offset
    return max(offset, live_end(segment, lineage))


def live_end(segment: Segment, lineage: Lineage) -> int:
    """Where ``segment`` ends or leaves ``lineage``."""
    at = segment.lineage.divergence(lineage, segment.end)
    return segment.end if at is None else at


def is_whole(segment: Segment, lineage: Lineage, offset: int) -> bool:
    """Whether ``segment`` is valid from ``offset`` to its own end, so that its open transactions count."""
    return live_until(segment, lineage, offset) == segment.end


def cover(
    segments: Sequence[Segment], lineage: Lineage, wanted: Intervals
) -> tuple[list[SegmentPiece], Interval | None]:
    """Pieces that hold ``wanted``, each offset once, in order, up to the first hole, and that hole.

    At each offset a seal is taken before any range of a pack, unless a transaction is open at its end: compaction may
    have run between the two, what lands must be what raw keeps, and a range of a compacted log may not list what it
    decides. Of several segments the one that reaches furthest is taken, then the one with the highest base. This rule
    depends only on the segments.
    """
    pieces: list[SegmentPiece] = []
    by_base = sorted(segments, key=lambda segment: segment.base)
    begun = 0
    near: list[Segment] = []  # those that begin at or below `at` and end above it: never all, of however many
    for start, end in wanted:
        at = start
        while at < end:
            while begun < len(by_base) and by_base[begun].base <= at:
                near.append(by_base[begun])
                begun += 1
            near = [segment for segment in near if segment.end > at]
            live = [(reach, segment) for segment in near if (reach := live_until(segment, lineage, at)) > at]
            if not live:
                return pieces, Interval(at, _next_live(segments, lineage, at, end))
            seals = [found for found in live if not found[1].packed and not found[1].open_transactions]
            reach, best = max(seals or live, key=lambda found: (found[0], found[1].base))
            pieces.append(SegmentPiece(best, at, min(reach, end)))
            at = min(reach, end)
    return pieces, None


def _next_live(segments: Sequence[Segment], lineage: Lineage, after: int, end: int) -> int:
    """The first offset above ``after`` and below ``end`` from which on a segment is valid; ``end`` if none is."""
    starts = {one.base for one in segments} | {start for _, start in lineage.entries}
    candidates = sorted(start for start in starts if after < start < end)
    return next((at for at in candidates if any(live_until(one, lineage, at) > at for one in segments)), end)
