"""The ranges of packs that hold a partition's offsets behind its seals, and the rule which of them count.

A head's entry names the last range of a chain, and each range the one before it. The content of a range counts
according to the lineage of its batches alone. It does not matter whose head names it, or whether that head is old.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import pairwise
from threading import Lock
from typing import Final, NamedTuple

from tidemark.errors import FormatError, NotFound, StoreError
from tidemark.formats.keys import PackName
from tidemark.formats.raw.cluster import origin_of
from tidemark.formats.raw.head import HeadEntry
from tidemark.formats.raw.pack import (
    MOST_UNSEALED_RANGES,
    PackedRange,
    Range,
    RangePointer,
    check_range_bytes,
    lines_of,
    range_of_line,
)
from tidemark.intervals import Interval, Intervals
from tidemark.kafka_log import Lineage, OpenTransaction
from tidemark.raw.segments import Segment, SegmentPiece, cover, is_whole
from tidemark.storage import ClusterStore, PartitionStore
from tidemark.store import Store

MOST_CHAIN: Final = 2 * MOST_UNSEALED_RANGES
"""Most ranges of a chain that are read: as many as an agent leaves unsealed, and as many while it seals these."""


def read_footer(store: Store, key: str, size: int | None = None) -> list[PackedRange]:
    """All ranges of the pack ``key``; requests and errors are those of :func:`read_lines`."""
    return [*read_lines(store, key, size).values()]


def read_lines(store: Store, key: str, size: int | None = None) -> dict[int, PackedRange]:
    """All ranges of the pack ``key``, in order, by the position of their lines.

    One or two GETs; another HEAD without ``size``, which listings have.

    Raises:
        NotFound: there is no such pack.
        FormatError: the object is no pack, is damaged or cut short, or breaks a limit.
        StoreError: the store failed.
    """
    size = store.head(key).size if size is None else size
    return lines_of(partial(store.get_range, key), key, size)


def read_range_line(cluster: ClusterStore, pointer: RangePointer) -> PackedRange:
    """The range with the line at ``pointer``, in one GET. No checksum covers a single line.

    Raises:
        NotFound: there is no such pack.
        FormatError: the bytes at ``pointer`` are no line of a footer.
        StoreError: the store failed, or the pack has no such bytes.
    """
    key, end = cluster.keys.pack(pointer.name), pointer.position + pointer.length
    return range_of_line(cluster.store.get_range(key, pointer.position, end), key, pointer)


def read_range_bytes(store: Store, packed: PackedRange) -> bytes:
    """The batches of a range, in one GET.

    Raises:
        NotFound: there is no such pack.
        FormatError: the bytes are not those that the agent wrote.
        StoreError: the store failed, or the pack has no such bytes.
    """
    return check_range_bytes(store.get_range(packed.key, packed.range.position, packed.range.end), packed)


ReadLine = Callable[[ClusterStore, RangePointer], PackedRange]
"""The signature of :func:`read_range_line`."""


class RangeLines:
    """A cache of the lines of packs, which many partitions share. Thread-safe.

    The first requested line of a pack is read alone. The next request reads all lines of the pack, since many
    partitions of a topic, and many topics, have their ranges in the same packs. A pack that the store failed to return
    is not requested again: each caller would wait as long.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._packs: dict[str, _KnownLines] = {}

    def read(self, cluster: ClusterStore, pointer: RangePointer) -> PackedRange:
        """The range of a line; raises errors of :func:`read_range_line`."""
        key = cluster.keys.pack(pointer.name)
        with self._lock:
            known = self._packs.setdefault(f"{cluster.store.url}/{key}", _KnownLines())
        with known.lock:
            if pointer.position not in known.lines:
                if known.failure is not None:
                    raise known.failure
                try:
                    if not known.lines:
                        known.lines = {pointer.position: read_range_line(cluster, pointer)}
                    else:
                        known.lines = read_lines(cluster.store, key)
                except StoreError as error:
                    known.failure = error
                    raise
            if pointer.position not in known.lines:
                rule = f"byte {pointer.position}: no line of the footer begins there"
                raise FormatError(key, f"{rule}; wait until its agent has sealed the partition")
            return known.lines[pointer.position]


class _KnownLines:
    """The lines of one pack that were read, by position, and the error that prevents reading others."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.lines: dict[int, PackedRange] = {}
        self.failure: StoreError | None = None


def live_end(entry: HeadEntry, lineage: Lineage) -> int:
    """The offset at which the tail of ``entry`` ends or leaves ``lineage``. Later offsets of the tail do not count.

    The chain of a tail that leaves the lineage at or below the end of the seals need not be read.
    """
    at = entry.history.divergence(lineage, entry.tail_end)
    return entry.tail_end if at is None else at


def packed_end(entry: HeadEntry, lineage: Lineage) -> int:
    """The :func:`live_end` of a tail of which something is on ``lineage``; else 0.

    An entry's lineage begins at the epoch in which the seals had ended. If the two part there or below, the seals had
    left this lineage before, and what lies between is in none of the tail's packs.
    """
    end = live_end(entry, lineage)
    return end if not entry.lineage or end > entry.lineage[0][1] else 0


def chain(
    cluster: ClusterStore, entry: HeadEntry, end_of_seals: int, read: ReadLine = read_range_line
) -> list[PackedRange]:
    """The ranges of the tail of ``entry`` that reach beyond ``end_of_seals``, in the order of their offsets.

    One GET for each, the last one first. The first range begins at or below ``end_of_seals``, unless the chain begins
    above it, or a pack is missing: retention may have removed sealed packs, or a store may show a pack late. Then the
    offsets below are found elsewhere. ``cluster`` is that of the head. ``read`` may take lines from a cache.

    Raises:
        FormatError: a line is damaged; a range is not of the entry's topic id, partition, leadership or broker, or does
            not end where the next one begins; or there are more than :data:`MOST_CHAIN`. Offsets decrease from range to
            range, so that a chain never repeats.
        StoreError: the store failed, or a pack has no such bytes.
    """
    ranges: list[PackedRange] = []
    pointer: RangePointer | None = entry.last
    end = entry.tail_end
    while pointer is not None and end > end_of_seals:
        if len(ranges) == MOST_CHAIN:
            rule = f"has more than {MOST_CHAIN} ranges above offset {end_of_seals}, and its agent seals before that"
            raise FormatError(ranges[-1].key, f"the chain of {ranges[-1].range} {rule}: see why it does not seal")
        try:
            packed = read(cluster, pointer)
        except NotFound:
            break
        _check(packed, pointer, entry, end)
        ranges.append(packed)
        pointer, end = packed.range.previous, packed.range.first
    return ranges[::-1]


def live_part(range_: Range, lineage: Lineage) -> Intervals:
    """The offsets of a range on ``lineage``: up to the first end of the newest epoch that both have (KIP-101).

    They end at the restore that parts the two logs, if not before. So offsets that compaction has emptied between two
    epochs belong to the range. Below the first start of ``lineage``, only batches without an epoch and the offsets
    before the first batch do.
    """
    first, after, epochs = range_.epochs[0][1], range_.next, range_.epochs
    if (parted := lineage.parted_at(range_.restores)) is not None:
        lineage, after = lineage.truncated(parted), min(after, parted)
        epochs = tuple(entry for entry in epochs if entry[1] < parted)
    known = lineage.entries[0][1] if lineage.entries else after
    spans = [(epoch, start, end) for (epoch, start), (_, end) in pairwise([*epochs, (-1, after)])]
    live = [Interval(start, min(end, known)) for epoch, start, end in spans if epoch < 0]
    for epoch, _, end in [span for span in spans if span[0] in lineage.epochs][-1:]:
        ending = lineage.end_offset(epoch, end)
        assert ending is not None
        live.append(Interval(max(first, known), min(end, ending[1])))
    offsets = Intervals(part for part in live if part.size > 0)
    return offsets | Intervals([(range_.first, first)]) if first in offsets else offsets


def _check(packed: PackedRange, pointer: RangePointer, entry: HeadEntry, end: int) -> None:
    """Raise FormatError if the range that ``pointer`` names cannot end the chain of ``entry`` at ``end``."""
    key, range_ = packed
    rule = None
    if (range_.topic, range_.topic_id, range_.partition) != (entry.topic, entry.topic_id, entry.partition):
        rule = f"is of {range_.topic}-{range_.partition} with the topic id {range_.topic_id}"
    elif range_.leader_epoch != entry.epoch:
        rule = f"leader_epoch: is {range_.leader_epoch}"
    elif pointer.name.broker != entry.last.name.broker:
        rule = f"is of broker {pointer.name.broker}"
    elif range_.next != end:
        rule = f"next: is {range_.next}, and should be {end}, where the chain continues"
    if rule is not None:
        chained = f"the chain of {entry.topic}-{entry.partition}, topic id {entry.topic_id}, epoch {entry.epoch}"
        place = f"line at byte {pointer.position}: {rule}"
        raise FormatError(key, f"{place}, in {chained}: damaged; wait until its agent has sealed the partition")


class TailPieces(NamedTuple):
    """Ranges behind the seals, in order, up to the first hole.

    ``opened`` are the transactions that are open at the end, from a range that is valid up to its own end there; None
    if no such range is known. ``damage`` is the reason of the end if a head names more and its chain is damaged.
    """

    pieces: tuple[SegmentPiece, ...] = ()
    opened: tuple[OpenTransaction, ...] | None = None
    damage: FormatError | None = None


class TailRanges:
    """The known ranges of packs behind one partition's seals; a range is read once, when it is needed. Thread-safe.

    A range stays until seals hold it, even if its head is gone: packs do not change, and the lineage alone decides
    which batches count. The ranges of two leaders may overlap; :func:`tidemark.raw.segments.cover` takes each offset
    once. A missing pack ends a chain, and a chain that cannot be read as a whole has no ranges.
    """

    def __init__(self, partition: PartitionStore, read: ReadLine = read_range_line) -> None:
        """Start with no known range. ``read`` reads a line."""
        self._cluster, self._read = partition.cluster, read
        self._lock = Lock()
        self._lines: dict[RangePointer, PackedRange] = {}
        self._ranges: dict[tuple[str, int], Segment] = {}
        self._covered_by = Lineage(), Intervals()
        self._pieces: list[SegmentPiece] = []

    def segments(
        self,
        entries: Iterable[HeadEntry],
        lineage: Lineage,
        end_of_seals: int,
        on_error: Callable[[FormatError | StoreError], None],
    ) -> list[Segment]:
        """All ranges of ``entries`` that reach beyond ``end_of_seals``. Raises what ``on_error`` does."""
        found: list[Segment] = []
        with self._lock:
            for entry in entries:
                if live_end(entry, lineage) > end_of_seals:
                    try:
                        found += self._follow(entry, end_of_seals)
                    except (FormatError, StoreError) as error:
                        on_error(error)
        return found

    def pieces(
        self, entries: Sequence[HeadEntry], lineage: Lineage, end_of_seals: int, missing: Intervals
    ) -> TailPieces:
        """The pieces behind ``end_of_seals`` on ``lineage``; the offsets ``missing`` are recorded as lost.

        Reads the lines that are new: of each chain, back to the end of the known ones.

        Raises:
            StoreError: the store failed.
        """
        with self._lock:
            self._lines = {pointer: line for pointer, line in self._lines.items() if line.range.next > end_of_seals}
            self._ranges = {place: segment for place, segment in self._ranges.items() if segment.end > end_of_seals}
            pieces = self._covered(lineage, end_of_seals, missing)
            end = pieces[-1].end if pieces else end_of_seals
            damaged: list[tuple[int, FormatError]] = []
            for entry in entries:
                until = live_end(entry, lineage)
                if until > end:
                    damaged += [(until, error) for error in self._damage_met(entry, end)]
                    pieces = self._covered(lineage, end_of_seals, missing)
                    end = pieces[-1].end if pieces else end_of_seals
            if not pieces:
                return TailPieces(damage=_beyond(damaged, end))
            if self._opened(lineage, end) is None:  # a cut left the last range: another leader's may end there
                for entry in entries:
                    if live_end(entry, lineage) == end:
                        self._damage_met(entry, end - 1)
            return TailPieces(tuple(pieces), self._opened(lineage, end), _beyond(damaged, end))

    def _follow(self, entry: HeadEntry, end: int) -> list[Segment]:
        """The ranges of a chain that reach beyond ``end``. Raises FormatError and StoreError."""
        followed: list[Segment] = []
        for packed in chain(self._cluster, entry, end, self._line):
            segment = segment_of_range(packed, self._cluster.store.url)
            followed.append(self._ranges.setdefault((segment.key, segment.position), segment))
        return followed

    def _damage_met(self, entry: HeadEntry, end: int) -> list[FormatError]:
        """Learn the ranges of a chain that reach beyond ``end``; return the damage met."""
        try:
            self._follow(entry, end)
        except FormatError as error:
            return [error]
        return []

    def _opened(self, lineage: Lineage, end: int) -> tuple[OpenTransaction, ...] | None:
        ending = (last for last in self._ranges.values() if last.end == end and is_whole(last, lineage, end - 1))
        return next((last.open_transactions for last in ending), None)

    def _covered(self, lineage: Lineage, start: int, missing: Intervals) -> list[SegmentPiece]:
        """The pieces of the known ranges from ``start`` on. While the lineage stays, only new ranges are covered."""
        kept: list[SegmentPiece] = []
        if self._covered_by == (lineage, missing):
            before = (piece for piece in self._pieces if piece.end > start)
            kept = [piece if piece.start >= start else piece._replace(start=start) for piece in before]
            kept = kept if kept and kept[0].start == start else []
        at = kept[-1].end if kept else start
        beyond = [segment for segment in self._ranges.values() if segment.end > at]
        end = max((segment.end for segment in beyond), default=at)
        self._covered_by = lineage, missing
        self._pieces = [*kept, *cover(beyond, lineage, Intervals([(at, end)]) - missing)[0]]
        return self._pieces

    def _line(self, cluster: ClusterStore, pointer: RangePointer) -> PackedRange:
        if pointer not in self._lines:
            self._lines[pointer] = self._read(cluster, pointer)
        return self._lines[pointer]


def _beyond(damaged: Sequence[tuple[int, FormatError]], end: int) -> FormatError | None:
    """The damage that keeps a tail that ends at ``end`` from its true end."""
    return next((error for until, error in damaged if until > end), None)


def segment_of_range(packed: PackedRange, store: str) -> Segment:
    """A range as a segment. Its lineage is that of its batches, and begins at the range's first offset.

    The lineage of a head's entry is not used: it begins at the end of the seals, which an unclean election may move
    back, and has nothing below it. Packs are never replaced, so no ETag is needed to read them.
    """
    key, range_ = packed
    starts = [range_.first, *(start for _, start in range_.epochs[1:])]
    lineage = tuple((epoch, start) for (epoch, _), start in zip(range_.epochs, starts, strict=True) if epoch >= 0)
    return Segment(
        store=store,
        key=key,
        etag="",
        size=range_.size,
        base=range_.first,
        end=range_.next,
        origin=origin_of(PackName.parse("/".join(key.split("/")[-2:])).broker),
        compacted=range_.compacted,
        lineage=Lineage(lineage, range_.restores),
        open_transactions=range_.open,
        uploaded_at=range_.shipped_at,
        has_index=False,
        aborts=None,
        max_timestamp=range_.max_timestamp,
        position=range_.position,
        aborted=range_.aborts,
    )
