"""Two histories of one partition, the stored one and that of the disk: are they the same, and where do they part?

Lineages tell two branches of one history apart. They prove nothing once brokers or their metadata were restored from a
backup: Kafka then gives an epoch again, from the same offset on, to other records. Only the batches show that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import takewhile
from typing import Final, NamedTuple
from zlib import crc32

from crc32c import crc32c

from tidemark.errors import ContinuityError, FormatError, NotFound, PreconditionFailed, TidemarkError
from tidemark.formats.raw.pack import PackedRange
from tidemark.intervals import Intervals
from tidemark.kafka_log import BatchHeader, Lineage, parse_offset_index, scan_batches
from tidemark.kafka_log.batch import CRC_START, described, is_same, overlapping
from tidemark.kafka_log.indexes import MAX_OFFSET
from tidemark.raw.objects import PIECE_BYTES, REACH, pieces_between, read_manifest
from tidemark.raw.packs import live_part, read_range_bytes
from tidemark.raw.segments import Segment, live_end, segment_of
from tidemark.storage import PartitionStore
from tidemark.store import Store
from uploader_agent.disk.segment_files import OpenFile, SegmentFiles, batch_headers, entry_up_to, file_name

_READ_WHOLE: Final = 64 << 10
"""The size up to which a segment is read without its index."""

_UNREADABLE: Final = (NotFound, PreconditionFailed, FormatError)


class HistoryDiffers(TidemarkError):
    """A batch of the disk is not the stored one at its offsets: the whole histories have to be compared."""

    def __init__(self, name: str, stored: BatchHeader, local: BatchHeader) -> None:
        super().__init__(f"{name}: the store has {described(stored)}, and the disk {described(local)}")


class HistoriesPart(ContinuityError):
    """The log is another history than the stored one: nothing more of it is stored until a person has decided."""


class Parting(NamedTuple):
    """The offset from which on the stored history and that of the disk are different ones.

    Below ``at`` both have the same batches, as far as the disk goes: if its log begins at ``at`` (``log_start``), they
    may part below. ``stored`` and ``local`` are the first batches that differ; ``local`` is None if the disk's log ends
    at ``at``. ``stored_end`` is the end of the offsets in seals and packs, ``log_end`` that of the disk's log.
    """

    at: int
    stored_end: int
    log_start: int
    log_end: int
    stored: BatchHeader | None
    local: BatchHeader | None

    def __str__(self) -> str:
        begun = ", where the disk's log begins" if self.at == self.log_start and self.at else ""
        theirs = f"the store has {described(self.stored)}, and ends at {self.stored_end}"
        ours = f"the disk has {described(self.local)}, and ends at {self.log_end}"
        return f"another history than the stored one from offset {self.at} on{begun}: {theirs}; {ours}"


class Shared(NamedTuple):
    """The part of a stored history below ``end``, where the disk's lineage leaves it: all of it counts as the disk's.

    Its segments and packs alone may be of an epoch that the disk's lineage does not have there: then an epoch was given
    again from an earlier offset on.
    """

    lineage: Lineage
    end: int


class LocalBatch(NamedTuple):
    """A batch of the disk, whose checksum was not verified."""

    header: BatchHeader
    log: OpenFile

    @property
    def is_sound(self) -> bool:
        """True if the bytes have the checksum that the header states: damage is no other history."""
        header = self.header
        data = self.log.pread(header.position, header.size)[CRC_START[header.magic] :]
        return (crc32c(data) if header.magic == 2 else crc32(data)) == header.crc


def local_batches(files: SegmentFiles, start: int) -> Iterator[LocalBatch]:
    """The batches of the disk that end above ``start``, in order, up to bytes that are no whole batch."""
    base = files.previous_base(start + 1)
    base = files.next_base(-1) if base is None else base
    while base is not None:
        log = files.open(file_name(base, "log"))
        if log is None:
            return  # removed since the listing: nothing is concluded
        for header in batch_headers(log, _position(files, log, base, start)):
            if header.next_offset > start:
                yield LocalBatch(header, log)
        base = files.next_base(base)


def _position(files: SegmentFiles, log: OpenFile, base: int, start: int) -> int:
    entry = None
    if start > base:
        with suppress(FormatError):  # a damaged index only costs a longer walk
            entry = entry_up_to(files, log, base, start - 1)
    return entry.position if entry else 0


def log_bounds(files: SegmentFiles) -> tuple[int, int] | None:
    """The first offset of the disk's first segment and the end of its last batch; None without a segment."""
    first, last = files.next_base(-1), files.previous_base(MAX_OFFSET)
    log = None if last is None else files.open(file_name(last, "log"))
    if first is None or last is None or log is None:
        return None
    end = last
    for header in batch_headers(log, _position(files, log, last, MAX_OFFSET)):
        end = header.next_offset
    return first, end


def local_difference(files: SegmentFiles, stored: BatchHeader) -> BatchHeader | None:
    """The sound batch of the disk at the offsets of ``stored`` that shows another history; None without one."""
    found = first_difference([stored], local_batches(files, stored.base_offset))
    return found[1] if found else None


def first_difference(
    stored: Iterable[BatchHeader], local: Iterable[LocalBatch]
) -> tuple[BatchHeader, BatchHeader] | None:
    """The first stored and local batch that share an offset and are not the same; None without such a pair.

    Both are in the order of offsets. A batch that one of them lacks is no difference: compaction may have removed it.
    """
    pairs = overlapping(stored, local, lambda header: header, lambda batch: batch.header)
    return next(
        (
            (header, batch.header)
            for header, batch in pairs
            if is_same(header, batch.header) is False and batch.is_sound
        ),
        None,
    )


def find_parting(
    partition: PartitionStore,
    files: SegmentFiles,
    lineage: Lineage,
    ranges: Sequence[PackedRange] = (),
    *,
    end: int,
    shared: Sequence[Shared] = (),
    since: int = MAX_OFFSET,
    thorough: bool = False,
) -> Parting | None:
    """The parting of the stored offsets below ``end`` and the disk's log; None if the disk shows none.

    ``lineage`` is the disk's, and what is stored on another branch does not count, unless one of ``shared`` has it.
    ``ranges`` are the packed ranges that no seal has. Newest first, it looks for the last piece with the disk's last
    batch; from there on it compares batch by batch, also what reaches into that piece from below: that may have been
    stored before a restore, and the piece after it. If they were found to part at ``since``, it compares from there on:
    more of the disk's may have been stored meanwhile. With ``thorough`` it compares everything: an agent of an earlier
    version may have gone on with the disk's history. A stored batch that begins below the offset at which the lineages
    part, and ends above it, counts beside what the disk has below: the epoch was given again. What cannot be read,
    since it is lost or damaged, tells nothing. Raises StoreError and FormatError.
    """
    bounds = log_bounds(files)
    if bounds is None:
        return None
    log_start, log_end = bounds
    suspects: list[_Piece] = []
    known: int | None = None
    for piece in _pieces(partition, [Shared(lineage, end), *shared], ranges, log_start, end):
        if known is not None and piece.end <= min(known, since):
            break
        suspects.append(piece)
        if not thorough and known is None and (last := piece.last()) is not None and _has(files, last):
            known = piece.start
    for piece in reversed(suspects):
        below = takewhile(partial(_begins_below, piece.end), local_batches(files, piece.start))
        found = first_difference(piece.batches(), below)
        if found is not None:
            theirs, ours = found
            at = max(log_start, min(theirs.base_offset, ours.base_offset))
            return Parting(at, end, log_start, log_end, theirs, ours)
    if log_end < end:
        beyond = (header for piece in reversed(suspects) for header in piece.batches() if header.last_offset >= log_end)
        return Parting(log_end, end, log_start, log_end, next(beyond, None), None)
    return None


def _begins_below(end: int, batch: LocalBatch) -> bool:
    return batch.header.base_offset < end


def _has(files: SegmentFiles, stored: BatchHeader) -> bool:
    """True if the disk has exactly this batch."""
    ours = next(local_batches(files, stored.base_offset), None)
    return ours is not None and is_same(stored, ours.header) is True


class _Piece:
    """Stored batches that begin on the lineage: a segment, or a range of a pack, up to the offset ``end``."""

    def __init__(self, place: PartitionStore, start: int, end: int, source: Segment | PackedRange) -> None:
        self.start = start
        self.end = end
        self._place = place
        self._source = source

    def batches(self) -> Iterator[BatchHeader]:
        """All batches, up to lost or damaged bytes. Raises StoreError."""
        with suppress(*_UNREADABLE):
            for header in scan_batches(self._chunks(), self._source.key, self.start):
                if header.base_offset >= self.end:
                    return
                yield header

    def _chunks(self) -> Iterable[bytes]:
        if isinstance(self._source, Segment):
            segment = self._source
            store = self._place.store_at(segment.store)
            return pieces_between(store, segment.key, 0, segment.size, segment.etag)
        return [read_range_bytes(self._place.store, self._source)]

    def last(self) -> BatchHeader | None:
        """The last batch; None if it cannot be read."""
        if isinstance(self._source, Segment):
            with suppress(*_UNREADABLE):
                before, split = last_batches(self._place, self._source, self.end)
                return split or before
            return None
        last = None
        for header in self.batches():
            last = header
        return last


def _pieces(
    partition: PartitionStore,
    shared: Sequence[Shared],
    ranges: Sequence[PackedRange],
    log_start: int,
    end: int,
) -> Iterator[_Piece]:
    """The stored pieces below ``end`` that reach above ``log_start``, the newest first."""
    for packed in sorted(ranges, key=lambda packed: packed.range.first, reverse=True):
        live = Intervals()
        for one in shared:
            live |= live_part(packed.range, one.lineage).clip(log_start, min(one.end, end))
        for part in reversed(live.parts):
            yield _Piece(partition, packed.range.first, part.end, packed)
    listed = [*partition.manifests(max(0, log_start - REACH), end)]
    for entry in reversed(listed):
        stored = read_manifest(partition, entry.name)
        segment = (
            segment_of(stored.manifest, partition.keys.manifest(entry.name), partition.store.url) if stored else None
        )
        if segment is None:
            continue
        stop = min(end, max(min(one.end, live_end(segment, one.lineage)) for one in shared))
        if stop > max(segment.base, log_start):
            yield _Piece(partition, segment.base, stop, segment)


def last_batch(place: PartitionStore, segment: Segment, end: int) -> BatchHeader | None:
    """The last batch of a segment below the offset ``end``; None without one."""
    return last_batches(place, segment, end)[0]


def last_batches(place: PartitionStore, segment: Segment, end: int) -> tuple[BatchHeader | None, BatchHeader | None]:
    """The last batch of a segment below the offset ``end``, and the one that begins below and ends above it, if any.

    If the segment has more than a few batches, they are found by the index.
    """
    entries = []
    if segment.has_index and segment.size > _READ_WHOLE:
        try:
            body = place.store.get(key := segment.sibling("index")).body
        except NotFound:
            return None, None
        entries = parse_offset_index(body, segment.base, segment.size, key)
    start = max((entry.position for entry in entries if entry.last_offset < end), default=0)
    last = None
    for header in scan_batches(_small_pieces(place.store_at(segment.store), segment, start), segment.key, segment.base):
        if header.next_offset > end:
            return last, header if header.base_offset < end else None
        last = header
    return last, None


def _small_pieces(store: Store, segment: Segment, start: int) -> Iterator[bytes]:
    """The bytes of a segment from ``start`` on, a few at first: Kafka's index has an entry for every few KiB."""
    step, at = _READ_WHOLE, start
    while at < segment.size:
        end = min(at + step, segment.size)
        yield store.get_range(segment.key, at, end, if_match=segment.etag)
        step, at = min(2 * step, PIECE_BYTES), end
