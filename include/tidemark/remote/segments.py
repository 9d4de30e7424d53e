"""The segments of one partition for a reader that goes on: which there are, and what was read last of their objects.

They are listed once, and listed on from the newest. A manifest is read when an offset near it is needed. The byte of a
segment's log to read an offset from is found by its ``.index``, and a batch header proves it.

The aborted transactions of a stretch are in the lists of its segment and of later segments. A transaction's end is
recorded in the segment that holds its marker. So the transactions open at a segment's end are looked up in the later
segments until each is decided: no longer listed as open there, and not above the last stable offset. The result for a
transaction is kept, so that a transaction that spans many segments is searched for once.
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import takewhile
from struct import Struct
from typing import Final, TypeVar

from tidemark.concurrency import Lru, in_parallel
from tidemark.errors import NotFound, PreconditionFailed
from tidemark.formats import object_sizes
from tidemark.formats.keys import SegmentName
from tidemark.kafka_log import AbortedTransaction, Lineage, OffsetIndexEntry, OpenTransaction, confirms_cut
from tidemark.kafka_log.batch import HEADER_SIZE, read_header
from tidemark.kafka_log.indexes import INDEX_ENTRY_SIZE
from tidemark.raw.objects import LOOK_BACK, REACH, aborts_of, read_segment
from tidemark.raw.segments import Segment, SegmentPiece, agrees, is_whole, live_until, piece_at, whole_lineage
from tidemark.storage import ListedObject, PartitionStore
from tidemark.store import Store

_KEPT_MANIFESTS: Final = 128
"""The most manifests in memory: about a KB each, and there may be many partitions."""

_KEPT_INDEX_BYTES: Final = 4 << 20
"""The most bytes of indexes in memory; the index of a segment of 1 GiB has 2 MiB by Kafka's default."""

KEPT_VERDICTS: Final = 4096
_KEPT_LISTS: Final = 64

_AT_ONCE: Final = 8
_OFFSET_ENTRY: Final = Struct(">ii")

Result = TypeVar("Result")

UNKNOWN: Final = -(1 << 63)
"""The end or time of a segment with a manifest that was not read."""

NO_TIME: Final = -1
"""The largest timestamp of a segment without one."""

ANY_TIME: Final = (1 << 63) - 1
"""The largest timestamp of a segment that has to be opened to know it."""

Verdicts = Lru[tuple[int, int], tuple[AbortedTransaction, ...]]
"""The outcomes of transactions that were open at a segment's end, along one branch of the log.

By producer and first offset: the aborts, none if it committed. When the log leaves its branch, or a hole is filled,
markers may differ. New ones are begun then, so that a reader that is still on the old branch adds nothing for readers
on the new one.
"""

Next = Callable[[int], tuple[SegmentPiece | None, Sequence[Segment]]]
"""(The first piece at or after an offset, None at the end; the segments of a gap on the way there).

The gap's records cannot be read, but the transactions that its segments list count.
"""


class StoredSegments:
    """A partition's listed segments, and the manifests read last. Thread-safe; no lock is held during a request."""

    def __init__(self, partition: PartitionStore) -> None:
        """Start with nothing listed."""
        self._partition = partition
        self._lock = threading.Lock()
        self._table = SegmentTable()
        self._read: Lru[SegmentName, Segment] = Lru(_KEPT_MANIFESTS)
        self._gone = 0  # listed segments that were found gone

    @property
    def newest(self) -> int:
        """The highest known base, from which on to list; 0 if there is none."""
        bases = self._table.bases
        return bases[-1] if bases else 0

    def relist(self, first: int, end: int | None = None) -> bool:
        """List the segments that start in ``[first, end)``; return true if any is new, replaced or gone."""
        entries = list(self._partition.manifests(first, end))
        with self._lock:
            self._table, changed = self._table.listed(first, end, entries)
            for name in changed:
                self._read.forget(name)
        return bool(changed)

    def look_back(self, offset: int) -> bool:
        """List the segments that start below ``offset``, in growing distances, until one of them is new.

        A leader with other segment boundaries may have stored a segment that starts far below the newest known.
        """
        for distance in LOOK_BACK:
            first = max(0, offset - distance)
            if self.relist(first, offset + 1):
                return True
            if first == 0:
                break
        return False

    def forget(self, name: SegmentName) -> None:
        """Have the manifest of the segment ``name`` read again when it is needed."""
        with self._lock:
            self._read.forget(name)
            self._table.forget(name)

    def piece(self, offset: int, lineage: Lineage) -> SegmentPiece | None:
        """The offsets from ``offset`` on for which a stored segment is valid; None if there is none.

        The nearest segment at or below ``offset`` is tried first: sequential reading costs one manifest per segment.
        """
        return self._of_present(lambda: self._piece(offset, lineage))

    def _of_present(self, call: Callable[[], Result]) -> Result:
        """The result of ``call``, again if it met a segment that is gone: a rewriting may have its offsets."""
        while True:
            gone = self._gone
            result = call()
            if gone == self._gone:
                return result

    def _piece(self, offset: int, lineage: Lineage) -> SegmentPiece | None:
        unknown = lineage.epoch_at(offset) is None
        for names in _growing(self._table.reaching(offset, offset - REACH), _AT_ONCE if unknown else 1):
            segments = [segment for segment in in_parallel(self.segment, names) if segment is not None]
            known = whole_lineage(lineage, Lineage(), segments) if unknown else lineage
            if (piece := piece_at(segments, known, offset)) is not None:
                return piece
        return None

    def last_end(self, offset: int, lineage: Lineage) -> int:
        """The end, at or below ``offset``, of the offsets for which the nearest segment below it is valid, else 0."""
        return self._of_present(lambda: self._last_end(offset, lineage))

    def _last_end(self, offset: int, lineage: Lineage) -> int:
        for name in self._table.below(offset):
            segment = self.segment(name)
            end = min(segment.end, offset) if segment else 0
            if segment and end > segment.base and live_until(segment, lineage, end - 1) >= end:
                return end
        return 0

    def within(self, start: int, end: int) -> list[Segment]:
        """The segments that start in ``[start, end)``."""
        return self._of_present(lambda: self._within(start, end))

    def _within(self, start: int, end: int) -> list[Segment]:
        names = list(takewhile(lambda name: name.base < end, self._table.above(start - 1)))
        return [segment for segment in in_parallel(self.segment, names) if segment is not None]

    def next_piece(self, offset: int, end: int, lineage: Lineage) -> SegmentPiece | None:
        """The first piece that starts above ``offset`` and below ``end``."""
        starts = {start for _, start in lineage.entries if start > offset}
        for base in dict.fromkeys(name.base for name in self._table.above(offset)):
            if base >= end:
                break
            for at in sorted(start for start in starts if start < base):
                starts.discard(at)
                if piece := self.piece(at, lineage):
                    return piece
            if piece := self.piece(base, lineage):
                return piece
        return next((piece for at in sorted(starts) if at < end and (piece := self.piece(at, lineage))), None)

    def segment(self, name: SegmentName) -> Segment | None:
        """The segment ``name``; None if it is gone. Then its base is listed again."""
        if (known := self._read.get(name)) is not None:
            return known
        segment = read_segment(self._partition, name)
        if segment is None:
            with self._lock:
                self._table = self._table.without(name)
                self._gone += 1
            self.relist(name.base, name.base + 1)
            return None
        with self._lock:
            damaged = segment.name.is_of_damage  # its manifest's time is that of the damaged part as well
            self._table.learn(name, segment.end, ANY_TIME if damaged else segment.max_timestamp)
            self._read.keep(name, segment)
        return segment

    def read_all(self, threads: int) -> None:
        """Read every manifest that was not read yet."""
        self._of_present(lambda: in_parallel(self.segment, self._table.unread(), threads))

    def late_enough(self, timestamp: int, offset: int) -> Iterator[SegmentName]:
        """The segments of :meth:`SegmentTable.late_enough`, if their manifests were read."""
        return self._table.late_enough(timestamp, offset)


def _growing(names: Iterator[SegmentName], first: int) -> Iterator[Sequence[SegmentName]]:
    """``names`` in groups of ``first``, then of as many as are read at once."""
    group: list[SegmentName] = []
    size = first
    for name in names:
        group.append(name)
        if len(group) == size:
            yield group
            group, size = [], _AT_ONCE
    if group:
        yield group


class SegmentTable:
    """The segments by name, with the ends and largest timestamps from the manifests that were read.

    Each takes a few bytes (10,000 take 400 KB), and has a digest of its manifest's ETag, so that a listing shows if it
    was made again.
    """

    def __init__(self) -> None:
        """Start with nothing listed."""
        self.bases = array("q")
        self._suffixes: list[str] = []
        self._marks = array("q")
        self._ends = array("q")
        self._times = array("q")

    def __len__(self) -> int:
        return len(self.bases)

    def listed(
        self, first: int, end: int | None, entries: Iterable[ListedObject]
    ) -> tuple[SegmentTable, list[SegmentName]]:
        """This table, with the segments that start in ``[first, end)`` as they are listed now.

        Also returns the segments in there that are new, made again or gone.
        """
        low = bisect_left(self.bases, first)
        high = len(self) if end is None else bisect_left(self.bases, end)
        fresh = SegmentTable()
        fresh._extend(self, 0, low)
        changed: list[SegmentName] = []
        at = low
        for name, _, info in sorted(entries, key=lambda entry: entry.name):
            while at < high and self._name(at) < name:
                changed.append(self._name(at))
                at += 1
            mark = hash(info.etag)
            known = at < high and self._name(at) == name
            if known and self._marks[at] == mark:
                fresh._extend(self, at, at + 1)
            else:
                changed.append(name)
                fresh._append(name, mark)
            at += known
        changed += [self._name(index) for index in range(at, high)]
        fresh._extend(self, high, len(self))
        return fresh, changed

    def without(self, name: SegmentName) -> SegmentTable:
        """This table without the segment ``name``."""
        index, fresh = self._index(name), SegmentTable()
        if index is None:
            return self
        fresh._extend(self, 0, index)
        fresh._extend(self, index + 1, len(self))
        return fresh

    def learn(self, name: SegmentName, end: int, max_timestamp: int | None) -> None:
        """Record the manifest of the segment ``name``."""
        index = self._index(name)
        if index is not None:
            self._ends[index] = end
            self._times[index] = NO_TIME if max_timestamp is None else max_timestamp

    def forget(self, name: SegmentName) -> None:
        """Mark the manifest of the segment ``name`` as not read."""
        index = self._index(name)
        if index is not None:
            self._ends[index] = self._times[index] = UNKNOWN

    def reaching(self, offset: int, lowest: int) -> Iterator[SegmentName]:
        """The segments from ``offset`` down to ``lowest`` that may hold ``offset``, the nearest first."""
        for index in range(bisect_right(self.bases, offset) - 1, -1, -1):
            if self.bases[index] < lowest:
                return
            if self._ends[index] == UNKNOWN or self._ends[index] > offset:
                yield self._name(index)

    def above(self, offset: int) -> Iterator[SegmentName]:
        """The segments that start above ``offset``, in order."""
        yield from [self._name(index) for index in range(bisect_right(self.bases, offset), len(self))]

    def below(self, offset: int) -> Iterator[SegmentName]:
        """The segments that start below ``offset``, the nearest first."""
        yield from [self._name(index) for index in range(bisect_left(self.bases, offset) - 1, -1, -1)]

    def unread(self) -> list[SegmentName]:
        """The segments with manifests that have not been read."""
        return [self._name(index) for index, end in enumerate(self._ends) if end == UNKNOWN]

    def late_enough(self, timestamp: int, offset: int) -> Iterator[SegmentName]:
        """The segments that end above ``offset`` and have a record of ``timestamp`` or later, in order."""
        for index, (end, latest) in enumerate(zip(self._ends, self._times, strict=True)):
            if latest >= timestamp and end > offset:
                yield self._name(index)

    def _name(self, index: int) -> SegmentName:
        return SegmentName(self.bases[index], self._suffixes[index])

    def _index(self, name: SegmentName) -> int | None:
        for index in range(bisect_left(self.bases, name.base), bisect_right(self.bases, name.base)):
            if self._suffixes[index] == name.suffix:
                return index
        return None

    def _extend(self, other: SegmentTable, start: int, end: int) -> None:
        self.bases.extend(other.bases[start:end])
        self._suffixes.extend(other._suffixes[start:end])
        self._marks.extend(other._marks[start:end])
        self._ends.extend(other._ends[start:end])
        self._times.extend(other._times[start:end])

    def _append(self, name: SegmentName, mark: int) -> None:
        self.bases.append(name.base)
        self._suffixes.append(name.suffix)
        self._marks.append(mark)
        self._ends.append(UNKNOWN)
        self._times.append(UNKNOWN)


class IndexObjects:
    """The ``.index`` and ``.timeindex`` objects read last. Thread-safe; no lock is held during a request."""

    def __init__(self) -> None:
        """Start with no object read."""
        self._read: Lru[tuple[str, str, str, str], bytes] = Lru(_KEPT_INDEX_BYTES, len, at_least=1)

    def position(self, place: PartitionStore, segment: Segment, offset: int) -> int:
        """The byte of the segment's object where a batch at or below ``offset`` starts; its first without an index.

        A range of a pack has no index.
        """
        if offset <= segment.base or not segment.has_index:
            return segment.position
        entry = floor_entry(self._sibling(place.store, segment, "index"), segment, offset)
        if entry is None:
            return 0
        end = min(entry.position + HEADER_SIZE[2], segment.size)
        try:
            log = place.store_at(segment.store)
            head = log.get_range(segment.key, entry.position, end, if_match=segment.etag)
        except NotFound:
            if segment.referred:
                return 0  # its owner has deleted it, which is told where it is read
            raise
        if not confirms_cut(head, entry, segment.base, segment.size):
            return 0
        return entry.position if read_header(head, 0, entry.position).base_offset <= offset else 0

    def times(self, store: Store, segment: Segment) -> bytes:
        """The segment's ``.timeindex``; empty if it has none, like a range of a pack."""
        return b"" if segment.packed else self._sibling(store, segment, "timeindex")

    def _sibling(self, store: Store, segment: Segment, extension: str) -> bytes:
        name = segment.store, segment.key, segment.etag, extension
        if (body := self._read.get(name)) is not None:
            return body
        try:
            body = store.get(segment.sibling(extension), limit=object_sizes.SEGMENT_INDEX).body
        except NotFound:
            body = b""  # only a hint: without it the segment is read from its start
        self._read.keep(name, body)
        return body


def floor_entry(raw: bytes, segment: Segment, offset: int) -> OffsetIndexEntry | None:
    """The last entry of an ``.index`` at or below ``offset``, by bisection: there may be 260,000 entries.

    Follows ``OffsetIndex.lookup``. Entries that are out of order, or point out of the log, only give a worse hint.
    """
    low, high = 0, len(raw) // INDEX_ENTRY_SIZE
    while low < high:
        middle = (low + high) // 2
        relative, position = _OFFSET_ENTRY.unpack_from(raw, middle * INDEX_ENTRY_SIZE)
        if 0 < position < segment.size and 0 <= relative <= offset - segment.base:
            low = middle + 1
        else:
            high = middle
    if low == 0:
        return None
    relative, position = _OFFSET_ENTRY.unpack_from(raw, (low - 1) * INDEX_ENTRY_SIZE)
    return OffsetIndexEntry(segment.base + relative, position)


class Aborts:
    """The aborted transactions of one partition. Thread-safe; no lock is held during a request."""

    def __init__(self, store: Store, refused: Callable[[Segment], None]) -> None:
        """``refused`` is called with a segment if its ``.txnindex`` differs from the one in its manifest."""
        self._store = store
        self._refused = refused
        self._lists: Lru[tuple[str, str], tuple[AbortedTransaction, ...]] = Lru(_KEPT_LISTS)

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
        named = opened.producer_id, opened.first_offset
        known = verdicts.get(named)
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
        verdicts.keep(named, aborts)
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
