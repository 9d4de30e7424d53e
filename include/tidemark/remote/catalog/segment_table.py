"""The listed segments of a partition, kept in a few bytes each: 10,000 take 400 KB."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import Final

from tidemark.formats.keys import SegmentName
from tidemark.raw.objects import ListedObject

UNKNOWN: Final = -(1 << 63)
"""The end or time of a segment with a manifest that was not read."""

NO_TIME: Final = -1
"""The largest timestamp of a segment without one."""


ANY_TIME: Final = (1 << 63) - 1
"""The largest timestamp of a segment that has to be opened to know it."""


class SegmentTable:
    """The segments by name, with the ends and largest timestamps from the manifests that were read.

    Each has a digest of its manifest's ETag, so that a listing shows if it was made again.
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
