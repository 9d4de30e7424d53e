"""The segments of a partition as they are listed, kept in a few bytes each: 10,000 take 320 KB."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import Final

from tidemark.raw.objects import Listed

UNKNOWN: Final = -(1 << 63)
"""The value for a segment whose manifest has not been read."""

NO_TIME: Final = -1
"""The largest timestamp of a segment without one."""


ANY_TIME: Final = (1 << 63) - 1
"""... and of one that has to be opened to know it."""


class SegmentTable:
    """Base offsets in order and, of those whose manifests were read, where they end and their largest timestamp.

    Each base has a digest of its manifest's ETag, so that a listing tells what was replaced.
    """

    def __init__(self) -> None:
        """Nothing is listed yet."""
        self.bases = array("q")
        self._marks = array("q")
        self._ends = array("q")
        self._times = array("q")

    def __len__(self) -> int:
        return len(self.bases)

    def listed(self, first: int, end: int | None, found: Iterable[Listed]) -> tuple[SegmentTable, list[int]]:
        """This table, with the segments that start in ``[first, end)`` as they are listed now.

        Also returns the bases in there that are new, replaced or gone.
        """
        low = bisect_left(self.bases, first)
        high = len(self) if end is None else bisect_left(self.bases, end)
        fresh = SegmentTable()
        fresh._extend(self, 0, low)
        changed: list[int] = []
        at = low
        for base, _, info in found:
            while at < high and self.bases[at] < base:
                changed.append(self.bases[at])
                at += 1
            mark = hash(info.etag)
            if at < high and self.bases[at] == base and self._marks[at] == mark:
                fresh._extend(self, at, at + 1)
            else:
                changed.append(base)
                fresh._append(base, mark)
            at += at < high and self.bases[at] == base
        changed += self.bases[at:high]
        fresh._extend(self, high, len(self))
        return fresh, changed

    def without(self, base: int) -> SegmentTable:
        """This table without the segment at ``base``."""
        return self.listed(base, base + 1, [])[0]

    def learn(self, base: int, end: int, max_timestamp: int | None) -> None:
        """The manifest at ``base`` was read."""
        index = self._index(base)
        if index is not None:
            self._ends[index] = end
            self._times[index] = NO_TIME if max_timestamp is None else max_timestamp

    def forget(self, base: int) -> None:
        """The manifest at ``base`` is to be read again."""
        index = self._index(base)
        if index is not None:
            self._ends[index] = self._times[index] = UNKNOWN

    def reaching(self, offset: int, lowest: int) -> Iterator[int]:
        """The bases from ``offset`` down to ``lowest`` of segments that may hold ``offset``, the nearest first."""
        for index in range(bisect_right(self.bases, offset) - 1, -1, -1):
            if self.bases[index] < lowest:
                return
            if self._ends[index] == UNKNOWN or self._ends[index] > offset:
                yield self.bases[index]

    def above(self, offset: int) -> Iterator[int]:
        """The bases above ``offset``, in order."""
        yield from self.bases[bisect_right(self.bases, offset) :]

    def below(self, offset: int) -> Iterator[int]:
        """The bases below ``offset``, the nearest first."""
        yield from reversed(self.bases[: bisect_left(self.bases, offset)])

    def unread(self) -> list[int]:
        """The bases whose manifests have not been read."""
        return [base for base, end in zip(self.bases, self._ends, strict=True) if end == UNKNOWN]

    def late_enough(self, timestamp: int, offset: int) -> Iterator[int]:
        """The bases of segments that end above ``offset`` and have a record of ``timestamp`` or later, in order."""
        for base, end, latest in zip(self.bases, self._ends, self._times, strict=True):
            if latest >= timestamp and end > offset:
                yield base

    def _index(self, base: int) -> int | None:
        index = bisect_left(self.bases, base)
        return index if index < len(self) and self.bases[index] == base else None

    def _extend(self, other: SegmentTable, start: int, end: int) -> None:
        self.bases.extend(other.bases[start:end])
        self._marks.extend(other._marks[start:end])
        self._ends.extend(other._ends[start:end])
        self._times.extend(other._times[start:end])

    def _append(self, base: int, mark: int) -> None:
        self.bases.append(base)
        self._marks.append(mark)
        self._ends.append(UNKNOWN)
        self._times.append(UNKNOWN)
