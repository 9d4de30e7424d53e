"""Tails as segments: the ranges of packs behind a partition's seals, in the form in which seals are covered and read.

A reader takes ``offset.wm``, which names in ``tails`` who may have packed; then the heads of these brokers; then
``offset.wm`` again, and if that names others, again; and the manifests last. In another order a seal and a shorter tail
may replace a longer one between two reads, and the offsets between seem to be missing (docs/live-end-design.md,
"Readers").
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from threading import Lock

from tidemark.errors import FormatError, StoreError
from tidemark.formats.head import HeadEntry
from tidemark.formats.keys import PartitionKeys
from tidemark.formats.pack import PackedRange, read_range_line
from tidemark.kafka_log import AbortedTransaction, Lineage
from tidemark.raw.packs import ReadLine, chain, live_end
from tidemark.raw.segments import Segment
from tidemark.store import Store


class Tails:
    """The ranges behind one partition's seals, by the ``entries`` of heads; each chain is read as far as it must be.

    A chain of which something cannot be read has no ranges, unless ``on_error`` raises the error that it is told.
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
        """Where each entry's tail ends or leaves the lineage."""

    @property
    def end(self) -> int:
        """Where the longest tail ends or leaves the lineage; 0 if there is none."""
        return max((end for end, _ in self.ends), default=0)

    def segments(self, end_of_seals: int) -> list[Segment]:
        """The ranges that reach beyond ``end_of_seals``. A pack that is gone ends a chain.

        They may overlap, as those of two leaders do; :func:`tidemark.raw.segments.cover` takes each offset once.

        Raises:
            StoreError: the store failed, and ``on_error`` raised that.
        """
        chains = (self._chain(number, end_of_seals) for number, (end, _) in enumerate(self.ends) if end > end_of_seals)
        return [one for segments in chains for one in segments if one.end > end_of_seals]

    def _chain(self, number: int, end_of_seals: int) -> list[Segment]:
        with self._lock:
            if number not in self._read or self._read[number][0] > end_of_seals:
                self._read[number] = end_of_seals, self._ranges(self.ends[number][1], end_of_seals)
            return self._read[number][1]

    def _ranges(self, entry: HeadEntry, end_of_seals: int) -> list[Segment]:
        try:
            found = chain(self._store, self._control, entry, end_of_seals, self._line)
        except (FormatError, StoreError) as error:
            self._on_error(error)
            return []
        return [segment_of_range(packed, self._store.url) for packed in found]


def segment_of_range(packed: PackedRange, store: str) -> Segment:
    """A range as a segment. Its lineage is that of its batches, and begins where the range does.

    That of a head's entry begins at the end of the seals, which an unclean election may take back: of what lies below,
    it says nothing. Packs are never replaced, so no ETag is needed to read them.
    """
    key, one = packed
    starts = [one.first, *(start for _, start in one.epochs[1:])]
    lineage = tuple((epoch, start) for (epoch, _), start in zip(one.epochs, starts, strict=True) if epoch >= 0)
    return Segment(
        store=store,
        key=key,
        etag="",
        size=one.size,
        base=one.first,
        end=one.next,
        compacted=one.compacted,
        lineage=Lineage(lineage),
        open_transactions=one.open,
        uploaded_at=one.shipped_at,
        has_index=False,
        aborts=None,
        max_timestamp=one.max_timestamp,
        position=one.position,
        aborted=tuple(
            AbortedTransaction(abort.producer_id, abort.first_offset, abort.last_offset, 0) for abort in one.aborts
        ),
    )
