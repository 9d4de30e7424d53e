"""What packs hold of a partition from an offset on: what a seal is made of when the log has it no more."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tidemark.formats.head import HeadEntry
from tidemark.formats.keys import ControlKeys
from tidemark.formats.manifest import PackedPart
from tidemark.formats.pack import MOST_UNSEALED_BYTES, PackedRange, Range, read_range_bytes
from tidemark.kafka_log import Lineage, UnfinishedTransaction, carry_forward, scan_batches
from tidemark.raw.packs import chain, live_end, live_part
from tidemark.store import Store
from uploader_agent.disk.segment_files import SegmentChanged

OpenAt = Callable[[int], tuple[UnfinishedTransaction, ...] | None]
"""The transactions open at an offset, as far as others than packs tell."""


@dataclass(frozen=True, slots=True)
class PackedRun:
    """Whole batches on one lineage, from ``start`` on, with the transactions open there."""

    start: int
    end: int
    data: bytes
    opened: tuple[UnfinishedTransaction, ...]
    compacted: bool


def known_ranges(
    store: Store, control: ControlKeys, entries: Iterable[HeadEntry], lineage: Lineage, start: int
) -> list[PackedRange]:
    """The ranges of the chains of ``entries`` that reach beyond ``start`` on ``lineage``; raises as ``chain``."""
    found: list[PackedRange] = []
    for entry in entries:
        if live_end(entry, lineage) > start:
            found += chain(store, control, entry, start)
    return found


def known_lineage(lineage: Lineage, entries: Iterable[HeadEntry], ranges: Iterable[PackedRange]) -> Lineage:
    """``lineage``, with what heads and packs know of the offsets below its first start, where retention has cut it.

    Two logs that have an epoch in common are the same up to where the first of them ends it (KIP-101).
    """
    packed = sorted((one.range for one in ranges), key=lambda one: one.first, reverse=True)
    for known in (*(one.lineage for one in entries), *(one.epochs for one in packed)):
        older = Lineage(tuple((epoch, start) for epoch, start in known if epoch >= 0))
        if {epoch for epoch, _ in older.entries} & {epoch for epoch, _ in lineage.entries}:
            lineage = lineage.with_history(older)
    return lineage


def part_of(one: Range) -> PackedPart:
    """A range as manifests list it."""
    return PackedPart(first=one.first, next=one.next, crc32c=one.crc32c, shipped_at=one.shipped_at)


def read_run(
    store: Store, ranges: Sequence[PackedRange], lineage: Lineage, start: int, end: int, open_at: OpenAt
) -> PackedRun | None:
    """The run of ``ranges`` on ``lineage`` in ``[start, end)``, without a hole; None if they hold nothing at ``start``.

    Raises:
        SegmentChanged: nobody knows which transactions are open at ``start``. It is never assumed that none is.
        FormatError: a pack is damaged.
        StoreError: the store failed, or retention has removed a pack.
    """
    at, data, compacted = start, bytearray(), False
    while at < end:
        near = [(_reach(one.range, lineage, at), one) for one in ranges if one.range.first <= at < one.range.next]
        reach, best = max(near, key=lambda found: found[0], default=(at, None))
        if best is None or reach <= at or (data and len(data) + best.range.size > MOST_UNSEALED_BYTES):
            break
        piece, stop = _cut(read_range_bytes(store, best), best, at, min(reach, end))
        if stop == at:
            break
        data, at, compacted = data + piece, stop, compacted or best.range.compacted
    if not data:
        return None
    return PackedRun(start, at, bytes(data), _opened(store, ranges, start, open_at), compacted)


def _reach(one: Range, lineage: Lineage, at: int) -> int:
    """The end of what the range has from ``at`` on, on ``lineage``."""
    return live_part(one, lineage).contiguous_from(at)


def _cut(data: bytes, packed: PackedRange, start: int, end: int) -> tuple[bytes, int]:
    """The whole batches in ``[start, end)``, and where they end."""
    first, last, stop = None, 0, start
    for header in scan_batches([data], packed.key, packed.range.first):
        if header.base_offset < start and header.next_offset > start:
            break  # no run begins inside a batch
        if header.next_offset > end:
            break
        if header.base_offset >= start:
            first = header.position if first is None else first
            last, stop = header.end, header.next_offset
    if first is None:
        return b"", start
    return data[first:last], stop


def _opened(
    store: Store, ranges: Sequence[PackedRange], start: int, open_at: OpenAt
) -> tuple[UnfinishedTransaction, ...]:
    """What is open at ``start``: by others, by the range that ends there, or by the one that has it."""
    known = _known(ranges, start, open_at)
    if known is not None:
        return known
    for one in ranges:
        if one.range.first < start < one.range.next:
            before = _known(ranges, one.range.first, open_at)
            if before is not None:
                batches = scan_batches([read_range_bytes(store, one)], one.key, one.range.first)
                return carry_forward(before, (header for header in batches if header.next_offset <= start))
    raise SegmentChanged(f"packs have offset {start}, and nobody knows which transactions are open there")


def _known(ranges: Iterable[PackedRange], at: int, open_at: OpenAt) -> tuple[UnfinishedTransaction, ...] | None:
    if at == 0:
        return ()
    known = open_at(at)
    if known is not None:
        return known
    ends = (one.range for one in ranges if one.range.next == at)
    return next((tuple(txn.unfinished for txn in one.open) for one in ends), None)
