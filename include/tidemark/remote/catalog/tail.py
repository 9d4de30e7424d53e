"""The tail of a partition: the known ranges of packs behind its seals.

A line of a pack is read once. A line that was read stays until seals hold its range, even if its head is gone: packs do
not change, and the lineage alone decides which batches count.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tidemark.errors import FormatError
from tidemark.formats.raw.head import HeadEntry
from tidemark.formats.raw.pack import PackedRange, RangePointer
from tidemark.intervals import Intervals
from tidemark.kafka_log import Lineage, OpenTransaction
from tidemark.raw.packs import ReadLine, chain, live_end, segment_of_range
from tidemark.raw.segments import Segment, SegmentPiece, cover, is_whole
from tidemark.storage import ClusterStore, PartitionStore


class TailPieces(NamedTuple):
    """Ranges behind the seals, in order, up to the first hole.

    ``opened`` are the transactions that are open at the end, from a range that is valid up to its own end there; None
    if no such range is known. ``damage`` is the reason of the end if a head names more and its chain is damaged.
    """

    pieces: tuple[SegmentPiece, ...] = ()
    opened: tuple[OpenTransaction, ...] | None = None
    damage: FormatError | None = None


class PackedTail:
    """The known ranges of one partition. Not thread-safe."""

    def __init__(self, partition: PartitionStore, read: ReadLine) -> None:
        """Start with no known range. ``read`` reads a line."""
        self._cluster, self._read = partition.cluster, read
        self._lines: dict[RangePointer, PackedRange] = {}
        self._ranges: dict[tuple[str, int], Segment] = {}
        self._covered_by = Lineage(), Intervals()
        self._pieces: list[SegmentPiece] = []

    def pieces(
        self, entries: Sequence[HeadEntry], lineage: Lineage, end_of_seals: int, missing: Intervals
    ) -> TailPieces:
        """The pieces behind ``end_of_seals`` on ``lineage``; the offsets ``missing`` are recorded as lost.

        Reads the lines that are new: of each chain, back to the end of the known ones.

        Raises:
            StoreError: the store failed.
        """
        self._lines = {pointer: line for pointer, line in self._lines.items() if line.range.next > end_of_seals}
        self._ranges = {place: segment for place, segment in self._ranges.items() if segment.end > end_of_seals}
        pieces = self._covered(lineage, end_of_seals, missing)
        end = pieces[-1].end if pieces else end_of_seals
        damaged: list[tuple[int, FormatError]] = []
        for entry in entries:
            until = live_end(entry, lineage)
            if until > end:
                damaged += [(until, error) for error in self._follow(entry, end)]
                pieces = self._covered(lineage, end_of_seals, missing)
                end = pieces[-1].end if pieces else end_of_seals
        if not pieces:
            return TailPieces(damage=_beyond(damaged, end))
        if self._opened(lineage, end) is None:  # a cut left the last range: another leader's may end there
            for entry in entries:
                if live_end(entry, lineage) == end:
                    self._follow(entry, end - 1)
        return TailPieces(tuple(pieces), self._opened(lineage, end), _beyond(damaged, end))

    def _follow(self, entry: HeadEntry, end: int) -> list[FormatError]:
        """Learn the ranges of a chain that reach beyond ``end``; return the damage met."""
        try:
            ranges = chain(self._cluster, entry, end, self._line)
        except FormatError as error:
            return [error]
        for packed in ranges:
            segment = segment_of_range(packed, self._cluster.store.url)
            self._ranges.setdefault((segment.key, segment.position), segment)
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
