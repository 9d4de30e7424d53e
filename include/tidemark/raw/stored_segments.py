"""The stored segments of one partition. They are listed once; a manifest is read when an offset near it is needed."""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import takewhile
from typing import Final, TypeVar

from tidemark.concurrency import in_parallel
from tidemark.formats.keys import SegmentName
from tidemark.kafka_log import Lineage
from tidemark.lru import Lru
from tidemark.raw.objects import LOOK_BACK, REACH, read_segment
from tidemark.raw.segments import Segment, SegmentPiece, live_until, piece_at, whole_lineage
from tidemark.storage import ListedObject, PartitionStore

_KEPT_MANIFESTS: Final = 128
"""The most manifests in memory: about a KB each, and there may be many partitions."""

_AT_ONCE: Final = 8

Result = TypeVar("Result")

UNKNOWN: Final = -(1 << 63)
"""The end or time of a segment with a manifest that was not read."""

NO_TIME: Final = -1
"""The largest timestamp of a segment without one."""

ANY_TIME: Final = (1 << 63) - 1
"""The largest timestamp of a segment that has to be opened to know it."""


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
