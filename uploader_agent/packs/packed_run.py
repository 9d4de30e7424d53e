"""Runs of batches from packs, for seals of what the local log no longer has, or has no longer all records of.

Several ranges may have the same batch, and compaction may have taken records from it between two of them. The one with
the most records counts, since compaction adds none. Where the local log has another batch than packs, theirs counts,
whichever has more records: what has landed is what they have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tidemark.formats.head import HeadEntry
from tidemark.formats.keys import ControlKeys
from tidemark.formats.pack import MOST_UNSEALED_BYTES, PackedRange, read_range_bytes
from tidemark.intervals import Intervals
from tidemark.kafka_log import BatchHeader, Lineage, UnfinishedTransaction, carry_forward, scan_batches
from tidemark.raw.packs import chain, live_end, live_part
from tidemark.store import Store
from uploader_agent.disk.batch_headers import headers
from uploader_agent.disk.segment_files import OpenFile, SegmentChanged

OpenAt = Callable[[int], tuple[UnfinishedTransaction, ...] | None]
"""The transactions open at an offset, as far as others than packs tell."""


@dataclass(frozen=True, slots=True)
class PackedRun:
    """Whole batches on one lineage that account for the offsets ``[start, end)``, with the transactions open at start.

    Compaction may have left none of them, and none at the end.
    """

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


class PackedBatch(NamedTuple):
    """A whole batch as packs have it."""

    header: BatchHeader
    data: bytes


class FullerRun(NamedTuple):
    """A run of a local log with the batches of packs where compaction has left others, or none.

    ``start`` is where the first of these ranges begins. What the local log has below it is sealed first, if there is
    anything (``data`` is empty then). Otherwise ``data`` are the batches of the run up to ``end``; ``whole`` says that
    there are no others.
    """

    start: int
    end: int
    data: bytes
    whole: bool


def read_run(
    store: Store, ranges: Sequence[PackedRange], lineage: Lineage, start: int, end: int, open_at: OpenAt
) -> PackedRun | None:
    """The run of ``ranges`` on ``lineage`` in ``[start, end)``, without a hole; None if they hold nothing at ``start``.

    Raises:
        SegmentChanged: nobody knows which transactions are open at ``start``. It is never assumed that none is.
        FormatError: a pack is damaged.
        StoreError: the store failed, or retention has removed a pack.
    """
    live = Intervals()
    for packed in ranges:
        live |= live_part(packed.range, lineage)
    reach = live.contiguous_from(start)
    batches, below = fullest(store, ranges, lineage, start, min(end, reach))
    compacted = any(packed.range.compacted for packed in ranges)
    if not batches and not (compacted and below == end > start):
        return None
    kept = [batches[offset] for offset in sorted(batches)]
    stop = end if compacted and below == end else kept[-1].header.next_offset
    data = b"".join(batch.data for batch in kept)
    return PackedRun(start, stop, data, _opened(store, ranges, start, open_at), compacted)


def read_fuller_run(
    store: Store, ranges: Sequence[PackedRange], lineage: Lineage, log: OpenFile, start: int, end: int
) -> FullerRun | None:
    """The run ``log`` of the offsets ``[start, end)``, with the batches of packs; None if it has all of them.

    Raises FormatError and StoreError as :func:`read_run`.
    """
    batches, below = fullest(store, ranges, lineage, start, end)
    lowest, highest = min(batches, default=start), max(batches, default=start)
    base, after = end, False
    local: dict[int, BatchHeader] = {}
    for header in headers(log, 0):
        if header.base_offset > highest:
            after = True
            break
        base = min(base, header.base_offset)
        if header.base_offset >= lowest:  # there may be a million batches below
            local[header.base_offset] = header
    changed = [offset for offset, batch in batches.items() if not _is_same(batch.header, local.get(offset))]
    if not changed:
        return None
    taken = Intervals()
    for packed in ranges:
        live = live_part(packed.range, lineage).clip(start, below)
        if any(offset in live for offset in changed):
            taken |= live
    first, last = taken.parts[0].start, taken.parts[-1].end
    if base < first:
        return FullerRun(first, first, b"", whole=False)
    kept = {
        offset: PackedBatch(header, log.pread(header.position, header.size))
        for offset, header in local.items()
        if offset not in taken and offset < last
    }
    kept |= {offset: batch for offset, batch in batches.items() if offset in taken}
    offsets = sorted(kept)
    whole = not after and below == end and not any(offset >= last for offset in (*local, *batches))
    stop = kept[offsets[-1]].header.next_offset
    return FullerRun(first, stop, b"".join(kept[offset].data for offset in offsets), whole)


def _is_same(packed: BatchHeader, local: BatchHeader | None) -> bool:
    """Whether two batches at one offset have the same bytes, by their checksums."""
    return local is not None and (packed.size, packed.crc) == (local.size, local.crc)


def fullest(
    store: Store, ranges: Sequence[PackedRange], lineage: Lineage, start: int, end: int
) -> tuple[dict[int, PackedBatch], int]:
    """The batches of ``ranges`` on ``lineage`` in ``[start, end)`` by their base offsets, each with the most records.

    Also the offset below which all are there: ranges that have no room in memory are left for the next run. There is
    nothing, and the offset is ``start``, if a batch reaches over it: no run begins inside a batch. Raises FormatError
    and StoreError.
    """
    found: dict[int, PackedBatch] = {}
    size = 0
    for packed in sorted(ranges, key=lambda packed: packed.range.first):
        if not live_part(packed.range, lineage).clip(start, end):
            continue
        if found and size + packed.range.size > MOST_UNSEALED_BYTES and packed.range.first > start:
            end = packed.range.first
            break
        data = read_range_bytes(store, packed)
        size += len(data)
        for header in scan_batches([data], packed.key, packed.range.first):
            if not lineage.is_live(header.base_offset, header.leader_epoch):
                continue
            if header.base_offset < start < header.next_offset:
                return {}, start
            known = found.get(header.base_offset)
            fuller = known is None or known.header.record_count < header.record_count
            if fuller and start <= header.base_offset and header.next_offset <= end:
                found[header.base_offset] = PackedBatch(header, data[header.position : header.end])
    return {offset: batch for offset, batch in found.items() if batch.header.next_offset <= end}, end


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
