"""The ranges of packs that hold a partition's offsets behind its seals, and which of these count.

A head's entry names the last range of a chain, and each range the one before it. What a range holds counts by the
lineage of its batches alone. It does not matter whose head names it, or whether that head is old.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from threading import Lock
from typing import Final

from tidemark.errors import FormatError, NotFound, StoreError
from tidemark.formats.head import HeadEntry
from tidemark.formats.keys import ControlKeys
from tidemark.formats.pack import MOST_UNSEALED_RANGES, PackedRange, Range, RangePointer, read_lines, read_range_line
from tidemark.intervals import Interval, Intervals
from tidemark.kafka_log import Lineage
from tidemark.store import Store

MOST_CHAIN: Final = 2 * MOST_UNSEALED_RANGES
"""Ranges of a chain that are read: as many as an agent leaves unsealed, and as many while it seals these."""


ReadLine = Callable[[Store, ControlKeys, RangePointer], PackedRange]
"""As :func:`tidemark.formats.pack.read_range_line`."""


class PackLines:
    """The lines of packs that many partitions ask for. Thread-safe.

    Of a pack, the first line that is asked for is read alone. Whoever asks for another one reads all of them, since
    many partitions of a topic, and many topics, have their ranges in the same packs. A pack that the store did not give
    is not asked for again: each of them would wait as long.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._packs: dict[str, _KnownLines] = {}

    def read(self, store: Store, control: ControlKeys, pointer: RangePointer) -> PackedRange:
        """As :func:`tidemark.formats.pack.read_range_line`."""
        key = control.pack(pointer.name)
        with self._lock:
            known = self._packs.setdefault(f"{store.url}/{key}", _KnownLines())
        with known.lock:
            if pointer.position not in known.lines:
                if known.failure is not None:
                    raise known.failure
                try:
                    if not known.lines:
                        known.lines = {pointer.position: read_range_line(store, control, pointer)}
                    else:
                        known.lines = read_lines(store, key)
                except StoreError as error:
                    known.failure = error
                    raise
            if pointer.position not in known.lines:
                rule = f"byte {pointer.position}: no line of the footer begins there"
                raise FormatError(key, f"{rule}; wait until its agent has sealed the partition")
            return known.lines[pointer.position]


class _KnownLines:
    """Those that were read of one pack, by the byte at which they begin, and why no others can be."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.lines: dict[int, PackedRange] = {}
        self.failure: StoreError | None = None


def live_end(entry: HeadEntry, lineage: Lineage) -> int:
    """Where the tail of ``entry`` ends or leaves ``lineage``. What of it lies at or above this offset does not count.

    Of a tail that leaves the lineage at or below the end of the seals, the chain need not be read.
    """
    at = Lineage(entry.lineage).divergence(lineage, entry.tail_end)
    return entry.tail_end if at is None else at


def chain(
    store: Store, control: ControlKeys, entry: HeadEntry, end_of_seals: int, read: ReadLine = read_range_line
) -> list[PackedRange]:
    """The ranges of the tail of ``entry`` that reach beyond ``end_of_seals``, in the order of their offsets.

    One GET for each, the last one first. The first one begins at or below ``end_of_seals``, unless the chain begins
    above it, or a pack is not there: retention may have removed what is sealed, or a store may show it late. Then the
    offsets below are to be found elsewhere. ``control`` is that of the head. ``read`` reads a line where
    somebody keeps those that were read.

    Raises:
        FormatError: a line is damaged; a range is not of the entry's topic id, partition, leadership or broker, or does
            not end where the next one begins; or there are more than :data:`MOST_CHAIN`. Offsets decrease from range to
            range, so that a chain never repeats.
        StoreError: the store failed, or a pack has no such bytes.
    """
    found: list[PackedRange] = []
    pointer: RangePointer | None = entry.last
    end = entry.tail_end
    while pointer is not None and end > end_of_seals:
        if len(found) == MOST_CHAIN:
            rule = f"has more than {MOST_CHAIN} ranges above offset {end_of_seals}, and its agent seals before that"
            raise FormatError(found[-1].key, f"the chain of {found[-1].range} {rule}: see why it does not seal")
        try:
            packed = read(store, control, pointer)
        except NotFound:
            break
        _check(packed, pointer, entry, end)
        found.append(packed)
        pointer, end = packed.range.previous, packed.range.first
    return found[::-1]


def live_part(one: Range, lineage: Lineage) -> Intervals:
    """Which offsets of a range are on ``lineage``: those of its live batches, by :meth:`Lineage.is_live`.

    Offsets that compaction has emptied go with the batch before them, and those before the first batch with that one.
    """
    known = lineage.entries[0][1] if lineage.entries else one.next
    numbers = {epoch for epoch, _ in lineage.entries}
    live: list[Interval] = []
    for (epoch, start), (_, end) in pairwise([*one.epochs, (-1, one.next)]):
        if epoch < 0:
            live.append(Interval(start, min(end, known)))
        elif epoch in numbers:
            ending = lineage.end_offset(epoch, end)
            assert ending is not None
            live.append(Interval(max(start, known), min(end, ending[1])))
    found = Intervals(part for part in live if part.size > 0)
    return found | Intervals([(one.first, one.epochs[0][1])]) if one.epochs[0][1] in found else found


def _check(packed: PackedRange, pointer: RangePointer, entry: HeadEntry, end: int) -> None:
    """Whether a range that ``pointer`` names may be that of the chain of ``entry`` that ends at ``end``."""
    key, one = packed
    rule = None
    if (one.topic, one.topic_id, one.partition) != (entry.topic, entry.topic_id, entry.partition):
        rule = f"is of {one.topic}-{one.partition} with the topic id {one.topic_id}"
    elif one.leader_epoch != entry.epoch:
        rule = f"leader_epoch: is {one.leader_epoch}"
    elif pointer.name.broker != entry.last.name.broker:
        rule = f"is of broker {pointer.name.broker}"
    elif one.next != end:
        rule = f"next: is {one.next}, and should be {end}, where the chain goes on"
    if rule is not None:
        chained = f"the chain of {entry.topic}-{entry.partition}, topic id {entry.topic_id}, epoch {entry.epoch}"
        where = f"line at byte {pointer.position}: {rule}"
        raise FormatError(key, f"{where}, in {chained}: damaged; wait until its agent has sealed the partition")
