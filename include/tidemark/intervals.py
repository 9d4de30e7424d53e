"""Arithmetic on sets of offsets: coverage, missing offsets, contiguous ranges.

An interval is half-open, ``[start, end)``, in offsets, as everywhere in Tidemark: ``end`` is the next offset.
:class:`Intervals` is immutable and always normal: sorted, disjoint, never adjacent, never empty. Two sets of
offsets are equal if and only if their :class:`Intervals` are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol, Self


class Interval(NamedTuple):
    """The offsets ``start`` to ``end - 1``."""

    start: int
    end: int

    @property
    def size(self) -> int:
        """Number of offsets."""
        return self.end - self.start


class Bounded(Protocol):
    """A thing with the offsets ``[start, end)``."""

    @property
    def start(self) -> int:
        """The first offset."""

    @property
    def end(self) -> int:
        """The offset after the last."""


@dataclass(frozen=True, slots=True, init=False)
class Intervals:
    """A set of offsets."""

    parts: tuple[Interval, ...]

    def __init__(self, parts: Iterable[tuple[int, int]] = ()) -> None:
        """Normalise ``parts``, which may overlap, touch, be empty and come in any order.

        Raises:
            ValueError: an interval ends before it starts.
        """
        object.__setattr__(self, "parts", tuple(_normalise(parts)))

    @classmethod
    def of(cls, bounded: Iterable[Bounded]) -> Self:
        """The offsets of all ``bounded``."""
        return cls((part.start, part.end) for part in bounded)

    def __iter__(self) -> Iterator[Interval]:
        return iter(self.parts)

    def __bool__(self) -> bool:
        return bool(self.parts)

    def __len__(self) -> int:
        return len(self.parts)

    def __contains__(self, offset: int) -> bool:
        return any(start <= offset < end for start, end in self.parts)

    @property
    def size(self) -> int:
        """Number of offsets in all."""
        return sum(part.size for part in self.parts)

    def __or__(self, other: Intervals) -> Intervals:
        return Intervals((*self.parts, *other.parts))

    def __and__(self, other: Intervals) -> Intervals:
        return Intervals(_intersect(self.parts, other.parts))

    def __sub__(self, other: Intervals) -> Intervals:
        return Intervals(_subtract(self.parts, other.parts))

    def clip(self, start: int, end: int) -> Intervals:
        """The part within ``[start, end)``."""
        return self & Intervals([(start, max(start, end))])

    def missing(self, start: int, end: int) -> Intervals:
        """The offsets of ``[start, end)`` that are not in this set."""
        return Intervals([(start, max(start, end))]) - self

    def covers(self, start: int, end: int) -> bool:
        """True if the set has all of ``[start, end)``."""
        return start >= end or any(part.start <= start and end <= part.end for part in self.parts)

    def contiguous_from(self, offset: int) -> int:
        """The first offset at or after ``offset`` that is not in the set."""
        for start, end in self.parts:
            if start <= offset < end:
                return end
        return offset

    def to_json(self) -> list[list[int]]:
        """``[[start, end], …]``."""
        return [[start, end] for start, end in self.parts]


def _normalise(parts: Iterable[tuple[int, int]]) -> Iterator[Interval]:
    current: Interval | None = None
    for start, end in sorted(parts):
        if end < start:
            raise ValueError(f"interval [{start}, {end}) ends before it starts")
        if end == start:
            continue
        if current is None:
            current = Interval(start, end)
        elif start <= current.end:
            current = Interval(current.start, max(current.end, end))
        else:
            yield current
            current = Interval(start, end)
    if current is not None:
        yield current


def _intersect(left: tuple[Interval, ...], right: tuple[Interval, ...]) -> Iterator[Interval]:
    i = j = 0
    while i < len(left) and j < len(right):
        start, end = max(left[i].start, right[j].start), min(left[i].end, right[j].end)
        if start < end:
            yield Interval(start, end)
        if left[i].end <= right[j].end:
            i += 1
        else:
            j += 1


def _subtract(left: tuple[Interval, ...], right: tuple[Interval, ...]) -> Iterator[Interval]:
    j = 0
    for part in left:
        start, end = part
        while j < len(right) and right[j].end <= start:
            j += 1
        k = j
        while k < len(right) and right[k].start < end:
            if start < right[k].start:
                yield Interval(start, right[k].start)
            start = max(start, right[k].end)
            k += 1
        if start < end:
            yield Interval(start, end)
