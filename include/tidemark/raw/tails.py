"""Tails as segments: the ranges of packs behind a partition's seals, in the form that readers of seals use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from threading import Lock

from tidemark.errors import FormatError, StoreError
from tidemark.formats.keys import PackName, PartitionKeys
from tidemark.formats.raw.head import HeadEntry
from tidemark.formats.raw.pack import PackedRange, read_range_line
from tidemark.formats.raw.slots import origin_of
from tidemark.kafka_log import AbortedTransaction, Lineage
from tidemark.raw.packs import ReadLine, chain, live_end
from tidemark.raw.segments import Segment
from tidemark.store import Store


class Tails:
    """The ranges behind one partition's seals, from the ``entries`` of heads; each chain is read as far as necessary.

    A chain that cannot be read as a whole has no ranges, unless ``on_error`` raises the error that it gets.
    """

    def __init__(
        self,
        store: Store,
        keys: PartitionKeys,
        entries: Iterable[HeadEntry],
        lineage: Lineage,
        on_error: Callable[[FormatError | StoreError], None],
        read: ReadLine = read_range_line,
    ) -> None:
        self._store, self._on_error, self._line = store, on_error, read
        self._control = keys.control
        self._lock = Lock()
        self._read: dict[int, tuple[int, list[Segment]]] = {}
        self.ends: Sequence[tuple[int, HeadEntry]] = [(live_end(entry, lineage), entry) for entry in entries]
        """The offset at which each entry's tail ends or leaves the lineage."""

    @property
    def end(self) -> int:
        """The highest offset at which a tail ends or leaves the lineage; 0 without tails."""
        return max((end for end, _ in self.ends), default=0)

    def segments(self, end_of_seals: int) -> list[Segment]:
        """The ranges that reach beyond ``end_of_seals``. A missing pack ends a chain.

        They may overlap, as those of two leaders do; :func:`tidemark.raw.segments.cover` takes each offset once.

        Raises:
            StoreError: the store failed, and ``on_error`` raised the error.
        """
        chains = (self._chain(number, end_of_seals) for number, (end, _) in enumerate(self.ends) if end > end_of_seals)
        return [segment for segments in chains for segment in segments if segment.end > end_of_seals]

    def _chain(self, number: int, end_of_seals: int) -> list[Segment]:
        with self._lock:
            if number not in self._read or self._read[number][0] > end_of_seals:
                self._read[number] = end_of_seals, self._ranges(self.ends[number][1], end_of_seals)
            return self._read[number][1]

    def _ranges(self, entry: HeadEntry, end_of_seals: int) -> list[Segment]:
        try:
            ranges = chain(self._store, self._control, entry, end_of_seals, self._line)
        except (FormatError, StoreError) as error:
            self._on_error(error)
            return []
        return [segment_of_range(packed, self._store.url) for packed in ranges]


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
        aborted=tuple(
            AbortedTransaction(abort.producer_id, abort.first_offset, abort.last_offset, 0) for abort in range_.aborts
        ),
    )
