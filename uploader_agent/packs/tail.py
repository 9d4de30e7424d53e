"""The packed and not yet sealed tail of one partition under one leadership, and the packed ranges that a seal may hold.

The thread of the partition's bucket owns the tail: that thread packs and keeps the head. The workers that seal read it,
and the loop and the watermark index report it.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import structlog

from tidemark.errors import FormatError, LaterFormat
from tidemark.formats.raw.head import HeadEntry
from tidemark.formats.raw.manifest import PackedPart
from tidemark.formats.raw.pack import PackedRange, RangePointer, WrittenRange
from tidemark.kafka_log import BatchHeader, Lineage, OpenTransaction
from tidemark.kafka_log.batch import header_bytes, read_header
from tidemark.raw.heads import read_head
from tidemark.raw.packs import packed_end
from uploader_agent.packs.broker_head import KnownRanges, Unsealed
from uploader_agent.packs.packed_run import known_ranges
from uploader_agent.packs.reading import LogPosition
from uploader_agent.stored.histories import Shared
from uploader_agent.upload.route import UploadRoute

logger = structlog.get_logger(__name__)


class NextRange(NamedTuple):
    """The start of the next range. ``last`` is the line with the transactions open there, if ``opened`` is None."""

    start: int
    previous: RangePointer | None = None
    place: LogPosition | None = None
    opened: tuple[OpenTransaction, ...] | None = None
    last: RangePointer | None = None


class LastRange(NamedTuple):
    """The end of the last range, without models, since there are as many as partitions."""

    next: int
    pack: str
    position: int
    length: int
    place: LogPosition
    header: bytes
    opened: tuple[OpenTransaction, ...]

    @property
    def pointer(self) -> RangePointer:
        """The place of its line in the pack."""
        return RangePointer(pack=self.pack, position=self.position, length=self.length)


class Packed(NamedTuple):
    """A range that is stored and named by the head, and the state that the next range needs."""

    written: WrittenRange
    place: LogPosition
    last: BatchHeader
    opened: tuple[OpenTransaction, ...]

    @property
    def next(self) -> int:
        """The end of the range."""
        return self.written.part.next


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Tail:
    """What is packed of a partition and not sealed yet, at one moment. It never changes: an update is another value.

    So all that one value tells belongs together, and two moments are the same state if they have the same object.
    """

    known: bool = False
    """True once the tail is known, from heads or from this broker's former index."""
    joined: int | None = None
    """The version of this broker's head that the tail continues from; None before it was read."""
    packing_from: int | None = None
    """The offset from which batches are being read for a pack that no head names yet; None while none are."""
    error: str | None = None
    """The reason that nothing was packed at the last try; None after a range was packed."""
    seal_to: int | None = None
    """The offset up to which the partition is to be sealed, although its segment is active."""
    stuck_at: int | None = None
    """The offset from which no range could be read at the last try."""
    last: LastRange | None = None
    """The last range that this process has packed."""
    ranges: KnownRanges | None = None
    """The ranges that this process has packed."""
    former: HeadEntry | None = None
    """This leadership's entry as a former process wrote it."""
    inherited: tuple[tuple[int, HeadEntry], ...] = ()
    """Tails of former leaders, and their ends on this leader's lineage."""
    former_last: BatchHeader | None = None
    """The last batch of what a former process or leader has packed, once it was read."""
    trusted_end: int = 0
    """The end of the tail in a former index, until this broker's head has been read; 0 from then on."""

    # -- where it ends ------------------------------------------------------------------------------------------------

    @property
    def end(self) -> int:
        """The end of the packed offsets; 0 if there are none."""
        return max(self._read_end, self.trusted_end)

    def agrees(self, tail_end: int | None) -> bool:
        """True if the tail is the one in the stored head, where this leadership's entry ends at ``tail_end``."""
        return not self.trusted_end and self._own_end == (tail_end or 0)

    @property
    def last_batch(self) -> BatchHeader | None:
        """The last packed batch; None if it is not known, or nothing is packed."""
        return read_header(self.last.header, 0, 0) if self.last is not None else self.former_last

    @property
    def last_pointer(self) -> RangePointer | None:
        """The last range of a former process or leader, at which the tail ends; None if it does not end with one."""
        end = self._read_end
        if self.last is not None or not end:
            return None
        return next((entry.last for at, entry in self._former_ends() if at == entry.tail_end == end), None)

    @property
    def cut(self) -> tuple[int, HeadEntry] | None:
        """The tail's end and the entry that has it, if that goes on, on a lineage that leaves this leader's there."""
        end = self._read_end
        if self.last is not None or not end:
            return None
        return next(((at, entry) for at, entry in self._former_ends() if at == end < entry.tail_end), None)

    def next_range(self, sealed_end: int) -> NextRange:
        """The start of the next range, if the seals end at ``sealed_end``."""
        last, former = self.last, self.former
        if last is not None and last.next >= sealed_end:
            return NextRange(last.next, last.pointer, last.place, last.opened)
        if last is None and former is not None and former.tail_end >= sealed_end:
            return NextRange(former.tail_end, former.last, last=former.last)
        # The seals are ahead of the chain, or there is none yet: the next range begins one, and points to no former.
        start = max(sealed_end, self._inherited_end)
        ends = (entry.last for end, entry in self.inherited if end == entry.tail_end == start)
        return NextRange(start, last=next(ends, None))

    # -- what a seal needs --------------------------------------------------------------------------------------------

    def packed_below(self, end: int) -> int | None:
        """The end of the packed offsets, at most ``end``; None while batches below ``end`` are being packed."""
        if self.packing_from is not None and self.packing_from < end:
            return None
        return min(end, self._read_end)

    def unsealed(self, sealed_end: int) -> Unsealed:
        """The packed ranges above ``sealed_end``, of this leadership and of former ones."""
        unsealed = self._own_ranges(sealed_end)
        for end, entry in self._former_ends():
            if end > sealed_end:
                unsealed = unsealed.plus(Unsealed(entry.ranges, entry.size, entry.since))
        return unsealed

    def own_unsealed(self, sealed_end: int) -> Unsealed:
        """The packed ranges above ``sealed_end`` of this leadership alone."""
        unsealed, former = self._own_ranges(sealed_end), self.former
        if former is not None and former.tail_end > sealed_end:
            unsealed = unsealed.plus(Unsealed(former.ranges, former.size, former.since))
        return unsealed

    def parts(self) -> tuple[PackedPart, ...]:
        """The ranges that this process has packed, as manifests list them."""
        return tuple(self.ranges.parts()) if self.ranges is not None else ()

    def entries(self) -> tuple[HeadEntry, ...]:
        """The entries of former processes and leaders, with ranges that must be read from the store."""
        return tuple(entry for _, entry in self._former_ends())

    def _own_ranges(self, sealed_end: int) -> Unsealed:
        return self.ranges.above(sealed_end).unsealed if self.ranges is not None else Unsealed()

    def _former_ends(self) -> Iterator[tuple[int, HeadEntry]]:
        if self.former is not None:
            yield self.former.tail_end, self.former
        yield from self.inherited

    @property
    def _read_end(self) -> int:
        """The end by what was packed, or read from heads, and not by a former index alone."""
        return max(self._own_end, self._inherited_end)

    @property
    def _own_end(self) -> int:
        if self.last is not None:
            return self.last.next
        return self.former.tail_end if self.former is not None else 0

    @property
    def _inherited_end(self) -> int:
        return max(end for end, _ in self.inherited) if self.inherited else 0

    # -- what follows it ----------------------------------------------------------------------------------------------

    def continued(self, former: HeadEntry | None, *, known: bool) -> Tail:
        """The tail that goes on from this leadership's entry in the stored head, or from none."""
        # What this process had packed goes, too: the head that was read may lack it, and readers believe the head.
        return replace(self, known=known, former=former, last=None, ranges=None, former_last=None, trusted_end=0)

    def followed_by(self, packed: Iterable[Packed], sealed_end: int) -> Tail:
        """The tail once the head names ``packed``, the partition's next ranges in order."""
        last, ranges, former = self.last, self.ranges, self.former
        for range_ in packed:
            written, at = range_.written, range_.written.pointer
            if ranges is None or written.begins_chain:
                ranges = KnownRanges(written.part.first)
            if written.begins_chain:  # no range points to the former process's chain any more: all of that is sealed
                former = None
            ranges = ranges.followed_by(written.part, written.size)
            place, header = range_.place, header_bytes(range_.last)
            last = LastRange(range_.next, at.pack, at.position, at.length, place, header, range_.opened)
        ranges = ranges.above(sealed_end) if ranges is not None else None
        return replace(self, last=last, ranges=ranges, former=former, error=None)


class TailState:
    """The current :class:`Tail`, and the wish for another plan. Thread-safe.

    Each change replaces the tail as a whole, under a lock. Any thread reads it without the lock.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tail = Tail()
        self._plan_wanted = False

    @property
    def tail(self) -> Tail:
        """The tail as it is known now. Who needs several values that belong together reads this once."""
        return self._tail

    # -- another plan -------------------------------------------------------------------------------------------------

    @property
    def plan_wanted(self) -> bool:
        """True if the loop is to plan the partition again: with the next scan, if the wake-up is lost."""
        return self._plan_wanted

    def plan_begins(self) -> None:
        """Note that the loop is about to plan. Only what changes from now on calls for another plan."""
        with self._lock:
            self._plan_wanted = False

    # -- the last try to pack ------------------------------------------------------------------------------------------

    def failed(self, error: str) -> None:
        """Note the reason that nothing was packed."""
        with self._lock:
            self._tail = replace(self._tail, error=error)

    def found_no_range(self, start: int) -> None:
        """Note that no range could be read from ``start`` on."""
        with self._lock:
            self._tail = replace(self._tail, stuck_at=start)
            self._plan_wanted = True

    def seal_up_to(self, end: int) -> bool:
        """Have the partition sealed up to ``end``; False if that or more was wanted before."""
        with self._lock:
            if end <= (self._tail.seal_to or 0):
                return False
            self._tail = replace(self._tail, seal_to=end)
            self._plan_wanted = True
            return True

    # -- the start of a new leader or a new process --------------------------------------------------------------------

    def trust(self, tail_end: int) -> None:
        """Assume the end of the tail in this broker's former index, until its head has been read."""
        with self._lock:
            if self._tail.joined is None and self._tail.former is None:
                self._tail = replace(self._tail, trusted_end=tail_end, known=True)

    def resume(self, own: HeadEntry | None) -> None:
        """Continue from this leadership's entry in the stored head, or from none, and drop the former state.

        Without an entry, the tail in a former index was one of former leaders, whose heads are not read yet.
        """
        with self._lock:
            self._tail = self._tail.continued(own, known=own is not None or self._tail.joined is not None)
            self._plan_wanted = True

    def join(self, version: int, own: HeadEntry | None, inherited: Iterable[HeadEntry], lineage: Lineage) -> None:
        """Continue from this leadership's entry in the stored head, and from the tails of former leaders.

        A former leader may have packed what an election has cut off. So its tail counts as far as this leader's
        ``lineage`` goes along with it, and this leader packs from there on: readers cut the entry at the same offset.
        """
        with self._lock:
            ends = tuple((packed_end(entry, lineage), entry) for entry in inherited)
            self._tail = replace(self._tail.continued(own, known=True), joined=version, inherited=ends)

    def begin_again(self) -> None:
        """Forget all packs, until they are joined again: they may be of another history than the log."""
        with self._lock:
            self._tail = Tail(error=self._tail.error)
            self._plan_wanted = True

    # -- packing -------------------------------------------------------------------------------------------------------

    def note_last(self, last: BatchHeader) -> None:
        """Note the last batch of :attr:`Tail.last_pointer`, or the last one below the end of :attr:`Tail.cut`."""
        with self._lock:
            self._tail = replace(self._tail, former_last=last)

    def begin_packing(self, start: int) -> None:
        """Note that batches from ``start`` on are about to be read for a pack, until :meth:`end_packing`."""
        with self._lock:
            if self._tail.packing_from is None:
                self._tail = replace(self._tail, packing_from=start)

    def end_packing(self) -> None:
        """Note that the head names the batches read since :meth:`begin_packing`, or that it never will."""
        with self._lock:
            if self._tail.packing_from is not None:
                self._tail = replace(self._tail, packing_from=None)

    def advance(self, packed: Iterable[Packed], sealed_end: int) -> None:
        """Note ``packed``, the partition's next ranges in order; the head names the last of them."""
        with self._lock:
            self._tail = self._tail.followed_by(packed, sealed_end)

    def drop_own(self) -> None:
        """Note that the head no longer has this leadership's entry, since all of it is sealed."""
        with self._lock:
            self._tail = replace(self._tail, last=None, ranges=None, former=None, former_last=None)


def shared_tails(entries: Iterable[HeadEntry], lineage: Lineage) -> list[Shared]:
    """The tail of each of ``entries`` up to where ``lineage`` leaves it."""
    return [Shared(entry.history, packed_end(entry, lineage)) for entry in entries]


class TailSources:
    """The ranges of packs that a seal of one partition may hold, or be made of.

    A chain of a former leader or process is read once, as far as asked for.
    """

    def __init__(self) -> None:
        self._read: dict[HeadEntry, tuple[int, tuple[PackedPart, ...]]] = {}
        """Ranges by entry, and the offset beyond which they were read: several workers seal runs of one partition."""

    def parts(
        self, route: UploadRoute, tail: Tail, brokers: Collection[int], lineage: Lineage, start: int
    ) -> tuple[PackedPart, ...]:
        """The ranges that reach beyond ``start`` on ``lineage``, as manifests list them. Raises StoreError.

        They come from ``tail``, and from the heads of ``brokers``, which are read now.
        """
        parts = [*tail.parts()]
        for entry in {*tail.entries(), *self.entries(route, brokers)}:
            known = self._read.get(entry)
            if known is None or known[0] > start:
                chain = self._chain(route, entry, lineage, start)
                known = self._read[entry] = start, tuple(packed.range.part for packed in chain)
            parts += known[1]
        return tuple(part for part in parts if part.next > start)

    def ranges(
        self, route: UploadRoute, entries: Iterable[HeadEntry], lineage: Lineage, start: int
    ) -> list[PackedRange]:
        """The ranges of ``entries`` that reach beyond ``start`` on ``lineage``. Raises StoreError."""
        return [packed for entry in entries for packed in self._chain(route, entry, lineage, start)]

    def history(
        self, route: UploadRoute, brokers: Collection[int], lineage: Lineage, end: int, shared: Sequence[Shared]
    ) -> tuple[list[PackedRange], int, list[Shared]]:
        """The ranges beyond ``end``, where the seals end; and the end and the ``shared`` histories of seals and packs.

        Raises the errors of :meth:`entries`.
        """
        entries = self.entries(route, brokers)
        tails = shared_tails(entries, lineage)
        return self.ranges(route, entries, lineage, end), max([end, *(tail.end for tail in tails)]), [*shared, *tails]

    @staticmethod
    def entries(route: UploadRoute, brokers: Collection[int]) -> list[HeadEntry]:
        """The partition's entries in the heads of ``brokers``, under any epoch. The heads are read now.

        A damaged head of another broker counts as none. A damaged head of this broker is an error: it is made again
        soon, and a seal without it may lack records that only packs have.

        Raises:
            LaterFormat: a later version of the agent wrote a head.
            FormatError: this broker's head is damaged.
            StoreError: the store failed.
        """
        entries: list[HeadEntry] = []
        for broker in sorted(brokers):
            try:
                head = read_head(route.partition.cluster, broker)
            except FormatError as error:
                if broker == route.broker or isinstance(error, LaterFormat):
                    raise
                logger.warning("head_not_read", partition=str(route.tp), error=str(error))
                continue
            partition = route.topic_id, route.tp.partition
            stored = head.value.entries if head else ()
            entries += [entry for entry in stored if (entry.topic_id, entry.partition) == partition]
        return entries

    @staticmethod
    def _chain(route: UploadRoute, entry: HeadEntry, lineage: Lineage, start: int) -> list[PackedRange]:
        """The ranges of a chain; none of a damaged chain: its packs then prove nothing, and stay."""
        try:
            return known_ranges(route.partition.cluster, [entry], lineage, start)
        except LaterFormat:
            raise
        except FormatError as error:
            logger.warning("chain_not_read", partition=str(route.tp), error=str(error))
            return []
