"""Which stored segments hold a partition's offsets, each offset once, on the lineage that counts.

Replicas do not share segment boundaries, so segments of two leaders overlap; after an unclean election they may
differ in what they hold. A segment speaks for an offset only as long as its own lineage gives that offset to the
same epoch as the partition's newest lineage does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from tidemark.errors import FormatError
from tidemark.formats.manifest import ObjectSum, OpenTransaction, SegmentManifest
from tidemark.intervals import Interval, Intervals
from tidemark.kafka_log import Lineage, segment_name


@dataclass(frozen=True, slots=True)
class Segment:
    """A stored segment, as its manifest describes it.

    It accounts for the offsets ``[base, end)``, which lie in the first ``size`` bytes of the object ``key``.
    ``open_transactions`` are those open at its end, ``max_timestamp`` (milliseconds) is that of its batches, if known.
    ``log_size`` and ``crc32c`` are those of the whole object; ``aborts`` is its ``.txnindex``, None without one.
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
    log_size: int = 0
    crc32c: str = ""

    def sibling(self, extension: str) -> str:
        """The key of another file of the segment: ``index``, ``txnindex``."""
        return f"{self.key.rpartition('.')[0]}.{extension}"


class SegmentPiece(NamedTuple):
    """The offsets ``[start, end)`` of a partition, to be read from ``segment``."""

    segment: Segment
    start: int
    end: int


def segment_of(manifest: SegmentManifest, key: str, store: str) -> Segment:
    """The segment that the manifest under ``key`` describes.

    Of a corrupt segment only what precedes the damage counts. Offsets between the last batch and the next segment
    belong to a compacted segment, whose tail was emptied; in any other they are missing.

    Raises:
        FormatError: the manifest does not list the segment's log.
    """
    extension = "corrupt" if manifest.damage else "log"
    stem = segment_name(manifest.base_offset)
    log = manifest.objects.get(f"{stem}.{extension}")
    if log is None:
        raise FormatError(key, f"objects: does not list {stem}.{extension}")
    if manifest.damage:
        size, end = manifest.damage.position, manifest.damage.offset
    else:
        size, end = log.size, manifest.next_offset if manifest.compacted else manifest.last_batch_end
    return Segment(
        store=store,
        key=f"{key.removesuffix('manifest.json')}{extension}",
        etag=log.etag,
        size=size,
        base=manifest.base_offset,
        end=end,
        compacted=manifest.compacted,
        lineage=Lineage.of(manifest.lineage, key),
        open_transactions=manifest.open_transactions,
        uploaded_at=manifest.uploaded_at,
        has_index=f"{stem}.index" in manifest.objects,
        aborts=manifest.objects.get(f"{stem}.txnindex"),
        max_timestamp=None if manifest.damage else manifest.max_timestamp,
        log_size=log.size,
        crc32c=log.crc32c,
    )


def whole_lineage(newest: Lineage, older: Lineage, segments: Iterable[Segment]) -> Lineage:
    """``newest``, with what the ledger and the segments know of offsets below its first start."""
    found = newest.with_history(older)
    for segment in sorted(segments, key=lambda one: (one.uploaded_at, one.base), reverse=True):
        found = found.with_history(segment.lineage)
    return found


def agrees(segment: Segment, lineage: Lineage, offset: int) -> bool:
    """Whether the log that ``segment`` was taken from has ``offset`` of ``lineage``, be it readable there or not."""
    own, newest = segment.lineage.epoch_at(offset), lineage.epoch_at(offset)
    return own is None or newest is None or own == newest


def live_until(segment: Segment, lineage: Lineage, offset: int) -> int:
    """The end of the run of offsets from ``offset`` for which ``segment`` speaks; ``offset`` if it does not."""
    if not segment.base <= offset < segment.end:
        return offset
    starts = {start for _, start in (*segment.lineage.entries, *lineage.entries) if offset < start < segment.end}
    for at in sorted({offset, *starts}):
        if not agrees(segment, lineage, at):
            return at
    return segment.end


def cover(
    segments: Sequence[Segment], lineage: Lineage, wanted: Intervals
) -> tuple[list[SegmentPiece], Interval | None]:
    """Pieces that hold ``wanted``, each offset once, in order, up to the first hole, and that hole.

    At each offset the segment that reaches furthest is taken, of several the one with the highest base: a rule that
    depends on nothing but the segments.
    """
    pieces: list[SegmentPiece] = []
    by_base = sorted(segments, key=lambda one: one.base)
    begun = 0
    near: list[Segment] = []  # those that begin at or below `at` and end above it: never all, of however many
    for start, end in wanted:
        at = start
        while at < end:
            while begun < len(by_base) and by_base[begun].base <= at:
                near.append(by_base[begun])
                begun += 1
            near = [one for one in near if one.end > at]
            reach, _, best = max(
                ((live_until(one, lineage, at), one.base, one) for one in near),
                key=lambda found: found[:2],
                default=(at, 0, None),
            )
            if best is None or reach == at:
                return pieces, Interval(at, _next_live(segments, lineage, at, end))
            pieces.append(SegmentPiece(best, at, min(reach, end)))
            at = min(reach, end)
    return pieces, None


def _next_live(segments: Sequence[Segment], lineage: Lineage, after: int, end: int) -> int:
    """The first offset above ``after`` and below ``end`` at which a segment begins to speak; ``end`` if none does."""
    starts = {one.base for one in segments} | {start for _, start in lineage.entries}
    candidates = sorted(start for start in starts if after < start < end)
    return next((at for at in candidates if any(live_until(one, lineage, at) > at for one in segments)), end)
