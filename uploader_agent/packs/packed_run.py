"""Runs of batches from packs, for seals of offsets that the local log has lost, or has lost records of.

Several ranges may have the same batch, and compaction may have removed records from it between two of them. The batch
with the most records counts, since compaction adds none. If the local log has another version of a packed batch, the
packed one counts, even if it has fewer records: readers have landed the packed one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from tidemark.errors import NotFound
from tidemark.formats.raw.head import HeadEntry
from tidemark.formats.raw.manifest import batch_of
from tidemark.formats.raw.pack import MOST_UNSEALED_BYTES, PackedRange, Range, RangePointer
from tidemark.intervals import Intervals
from tidemark.kafka_log import BatchHeader, Lineage, OpenTransaction, carry_forward, scan_batches
from tidemark.kafka_log.indexes import MAX_OFFSET
from tidemark.raw.packs import chain, live_end, live_part, read_range_bytes, read_range_line
from tidemark.storage import ClusterStore
from tidemark.store import Store
from uploader_agent.disk.segment_files import SegmentChanged, batch_headers
from uploader_agent.upload.local_run import LocalRun, SealRun

OpenAt = Callable[[int], tuple[OpenTransaction, ...] | None]
"""The transactions open at an offset, from sources other than packs; None if they do not have that."""


class PackedRun(NamedTuple):
    """Whole batches on ``lineage`` that account for the offsets ``[start, end)``, all of them or some from packs.

    Compaction may have left no batch at all, or none at the end. If an election has cut the log within the last batch,
    ``lineage`` ends there, and readers take the batch as far.
    """

    start: int
    end: int
    data: bytes
    lineage: Lineage


def known_ranges(
    cluster: ClusterStore, entries: Iterable[HeadEntry], lineage: Lineage, start: int
) -> list[PackedRange]:
    """The ranges of the chains of ``entries`` that reach beyond ``start`` on ``lineage``; raises as ``chain``."""
    ranges: list[PackedRange] = []
    for entry in entries:
        if live_end(entry, lineage) > start:
            ranges += chain(cluster, entry, start)
    return ranges


def known_lineage(lineage: Lineage, entries: Iterable[HeadEntry], ranges: Iterable[PackedRange]) -> Lineage:
    """``lineage``, extended below its first start, where retention has cut it, from heads and packs.

    Two logs with a common epoch are the same up to its end in the log that ends it first (KIP-101). So all batches that
    a leadership on ``lineage`` has packed below its own end lie on it.
    """
    packed = sorted((packed.range for packed in ranges), key=lambda range_: range_.first, reverse=True)
    known = [(entry.lineage, entry.restores) for entry in entries]
    known += [(range_.epochs, range_.restores) for range_ in packed]
    for epochs, restores in known:
        older = Lineage(tuple((epoch, start) for epoch, start in epochs if epoch >= 0), restores)
        if older.epochs & lineage.epochs:
            lineage = lineage.with_history(older)
    for range_ in packed:
        ending = lineage.end_offset(range_.leader_epoch, range_.next)
        if ending is not None and ending[0] == range_.leader_epoch:
            end = min(ending[1], _parted(lineage, range_))
            lineage = lineage.with_batches(entry for entry in range_.epochs if entry[1] < end)
    return lineage


def _parted(lineage: Lineage, range_: Range) -> int:
    """The first offset that the log of ``range_`` does not share with ``lineage`` since a restore; else the last."""
    parted = lineage.parted_at(range_.restores)
    return MAX_OFFSET if parted is None else parted


class LiveBatch(NamedTuple):
    """A whole batch, of which the offsets below ``live_end`` are on the lineage."""

    header: BatchHeader
    data: bytes
    live_end: int


def read_run(store: Store, ranges: Sequence[PackedRange], lineage: Lineage, start: int, end: int) -> PackedRun | None:
    """The run of ``ranges`` on ``lineage`` in ``[start, end)``, without a hole; None if they have nothing at ``start``.

    Raises:
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
    data = b"".join(batch.data for batch in kept)
    stop = end if compacted and below == end else kept[-1].live_end
    if kept and stop < kept[-1].header.next_offset:
        stop, lineage = kept[-1].header.next_offset, lineage.truncated(stop)
    return PackedRun(start, stop, data, lineage)


def read_fuller_run(
    store: Store, ranges: Sequence[PackedRange], lineage: Lineage, run: LocalRun, work: SealRun
) -> PackedRun | None:
    """The local ``run`` of ``work``, with batches of packs where compaction has changed or removed the log's.

    It ends after the last range with such a batch, or with ``work`` if nothing is left behind that. None if the log has
    all batches of the packs. If it has others below the first of these ranges, the run ends where that begins, and has
    no bytes: the log's own batches are to be sealed first, as they are.

    Raises FormatError and StoreError as :func:`read_run`.
    """
    log, start, end = run.log, run.base_offset, work.end
    batches, below = fullest(store, ranges, lineage, start, end)
    lowest, highest = min(batches, default=start), max(batches, default=start)
    base, after = end, False
    local: dict[int, BatchHeader] = {}
    for header in batch_headers(log, 0):
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
        return PackedRun(start, first, b"", lineage)
    kept = {
        offset: LiveBatch(header, log.pread(header.position, header.size), header.next_offset)
        for offset, header in local.items()
        if offset not in taken and offset < last
    }
    kept |= {offset: batch for offset, batch in batches.items() if offset in taken}
    offsets = sorted(kept)
    whole = not after and below == end and not any(offset >= last for offset in (*local, *batches))
    stop = end if whole and not work.is_tail else kept[offsets[-1]].header.next_offset
    return PackedRun(start, stop, b"".join(kept[offset].data for offset in offsets), lineage)


def _is_same(packed: BatchHeader, local: BatchHeader | None) -> bool:
    """True if two batches at one offset have the same bytes, according to their checksums."""
    return local is not None and (packed.size, packed.crc) == (local.size, local.crc)


def fullest(
    store: Store, ranges: Sequence[PackedRange], lineage: Lineage, start: int, end: int
) -> tuple[dict[int, LiveBatch], int]:
    """The fullest version of each batch of ``ranges`` on ``lineage`` in ``[start, end)``, and the end of them.

    The first result has the batches by base offset. The second is the offset below which no batch is missing: ranges
    that have no room in memory are left for the next run, and batches above one that an election has cut, which is the
    last one. If a batch reaches over ``start``, there are no batches, and that offset is ``start``: no run begins
    inside a batch. Raises FormatError and StoreError.
    """
    batches: dict[int, LiveBatch] = {}
    size = 0
    for packed in sorted(ranges, key=lambda packed: packed.range.first):
        if not live_part(packed.range, lineage).clip(start, end):
            continue
        if batches and size + packed.range.size > MOST_UNSEALED_BYTES and packed.range.first > start:
            end = packed.range.first
            break
        data = read_range_bytes(store, packed)
        size += len(data)
        parted = _parted(lineage, packed.range)
        for header in scan_batches([data], packed.key, packed.range.first):
            base = header.base_offset
            live_end = min(lineage.live_end(base, header.next_offset, header.leader_epoch), parted)
            if live_end <= max(base, start):
                continue
            if base < start:
                return {}, start
            known = batches.get(base)
            if known is None or known.header.record_count < header.record_count:
                batches[base] = LiveBatch(header, data[header.position : header.end], live_end)
            if live_end < header.next_offset:
                end = min(end, live_end)
    return {offset: batch for offset, batch in batches.items() if batch.live_end <= end}, end


def open_at_end(cluster: ClusterStore, last: RangePointer) -> tuple[OpenTransaction, ...] | None:
    """The transactions open at the end of the range ``last``; None if its pack is gone. Raises as ``chain``."""
    try:
        return read_range_line(cluster, last).range.open
    except NotFound:
        return None


def last_batch(store: Store, packed: PackedRange) -> BatchHeader:
    """The last batch of a range. Its bytes are read only if an earlier version wrote it. Raises as :func:`chain`."""
    if packed.range.last_batch is not None:
        return batch_of(packed.range.last_batch)
    *_, last = scan_batches([read_range_bytes(store, packed)], packed.key, packed.range.first)
    return last


def last_batch_below(store: Store, ranges: Sequence[PackedRange], end: int) -> BatchHeader | None:
    """The last batch of the first of ``ranges`` that begins below the offset ``end``; it may end above it."""
    last = None
    for packed in ranges[:1]:
        for header in scan_batches([read_range_bytes(store, packed)], packed.key, packed.range.first):
            if header.base_offset >= end:
                break
            last = header
    return last


def open_in_packs(
    cluster: ClusterStore, ranges: Sequence[PackedRange], start: int, open_at: OpenAt
) -> tuple[OpenTransaction, ...]:
    """The transactions open at ``start``: from ``open_at``, or a range that ends there, begins there, or has it.

    Raises:
        SegmentChanged: they are unknown. It is never assumed that there are none.
        FormatError: a pack is damaged.
        StoreError: the store failed, or retention has removed a pack.
    """
    known = _known(cluster, ranges, start, open_at)
    if known is not None:
        return known
    for packed in ranges:
        if packed.range.first < start < packed.range.next:
            before = _known(cluster, ranges, packed.range.first, open_at)
            if before is not None:
                batches = scan_batches([read_range_bytes(cluster.store, packed)], packed.key, packed.range.first)
                return carry_forward(before, (header for header in batches if header.next_offset <= start))
    raise SegmentChanged(f"packs have offset {start}, but the transactions open there are unknown")


def _known(
    cluster: ClusterStore, ranges: Iterable[PackedRange], at: int, open_at: OpenAt
) -> tuple[OpenTransaction, ...] | None:
    if at == 0:
        return ()
    known = open_at(at)
    if known is not None:
        return known
    for range_ in (packed.range for packed in ranges):
        opened = range_.open if range_.next == at else range_.open_before if range_.first == at else None
        if opened is not None:
            return opened
    before = (packed.range.previous for packed in ranges if packed.range.first == at)
    return next((open_at_end(cluster, last) for last in before if last is not None), None)
