"""The proof that seals hold the content of a pack, so that the pack is not needed any more.

The proof of a range is a part of a manifest, on whatever branch, with equal offsets and CRC32C, or a tombstone:
retention of raw has removed these offsets. A seal proves nothing before it is two days old, since a run that was
planned before the seal may still read the pack. Batches that no part proves, because their agent died or an earlier one
cut its seals differently, are compared one by one with the bytes of the seals, once the pack is a week old. Of a batch
with erased records, the counts have to add up.

Batches that no seal holds stay, even of a dead branch: a disk may have lost them, or a log may return to that branch.
They also stay if a seal claims the offsets and lacks the records, see :mod:`tidemark.raw.sealed_packs`.

A range above the end of ``offset.wm`` stays in any case: readers find the unsealed ranges before it through its line.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from typing import Final

from tidemark.formats.keys import SegmentName
from tidemark.formats.raw.manifest import SegmentManifest
from tidemark.formats.raw.pack import PackedRange, Range
from tidemark.intervals import Intervals
from tidemark.kafka_log import BatchHeader
from tidemark.kafka_log.scan import scan_batches
from tidemark.planning.maintenance.vacuum import RUN_OVER
from tidemark.raw import tombstones
from tidemark.raw.objects import pieces
from tidemark.raw.packs import live_part, read_range_bytes
from tidemark.raw.sealed_packs import SealsAround, id_of
from tidemark.storage import PartitionStore, StoredWatermark
from tidemark.store import ObjectInfo

SETTLED: Final = RUN_OVER
"""Age of a seal that can prove something, and of a pack that is examined: all runs that began before are over."""

COMPARED: Final = timedelta(days=7)
"""Age of a pack above which its bytes are compared with those of seals."""


@dataclass
class SealsOfPartition:
    """The seals of one partition that may hold some ranges, and their proofs at ``now``."""

    partition: PartitionStore
    now: datetime
    _removed: Intervals | None = field(default=None, init=False)
    _seals: SealsAround = field(init=False)

    def __post_init__(self) -> None:
        self._seals = SealsAround(self.partition)

    def look(self, first: int, end: int) -> None:
        """List the seals that may hold some of the offsets ``[first, end)``. Raises StoreError."""
        self._seals.look(first, end)

    def why_needed(self, packed: PackedRange, *, compare: bool) -> str | None:
        """The reason that the pack is still needed for a range, or None. With ``compare``, bytes prove it as well.

        Raises:
            FormatError: an object of the partition is damaged.
            StoreError: the store failed.
        """
        why = self._why_unproved(packed, compare=compare)
        if why is None and self._stored is not None:
            end = self._stored.watermark.next_offset
            if live_part(packed.range, self._stored.lineage) - Intervals([(0, end)]):
                why = f"{packed.range}: offset.wm ends at {end}, and its line leads to ranges below"
        return why

    @cached_property
    def _stored(self) -> StoredWatermark | None:
        found = self.partition.watermark()
        return found if isinstance(found, StoredWatermark) else None

    def _why_unproved(self, packed: PackedRange, *, compare: bool) -> str | None:
        range_ = packed.range
        listing = self._seals.listing(range_)
        if listing is not None:
            return None if self._settled(listing) else f"{range_}: was sealed less than {SETTLED} ago"
        if self._removed is None:
            self._removed = tombstones.removed(self.partition)
        if self._removed.covers(range_.first, range_.next):
            return None
        if not compare:
            return f"{range_}: no seal lists it"
        missing = self._missing(packed)
        if missing is None:
            return None
        reason = f"{range_}: no seal holds the batch at offset {missing.base_offset}"
        claiming = self._seals.claiming(id_of(missing, range_.restores), missing.next_offset)
        if claiming is None:
            return reason
        cure = f"`tidemark-agent reupload {range_.topic} {range_.partition} --from-packs` adds what it lacks"
        return f"{reason}, although {claiming.file('log')} has that offset: {cure}"

    def _settled(self, name: SegmentName) -> bool:
        return self._seals.listed[name][0].modified <= self.now - SETTLED

    def _missing(self, packed: PackedRange) -> BatchHeader | None:
        """The first batch of a range that no settled seal holds, byte by byte, or None."""
        data = read_range_bytes(self.partition.store, packed)
        wanted = {batch.base_offset: batch for batch in scan_batches([data], packed.key, packed.range.first)}
        seals = self._seals
        for name in [name for name in seals.names if name.base < packed.range.next and self._settled(name)]:
            manifest = seals.manifest(name)
            if wanted and manifest and manifest.next_offset > packed.range.first:
                for offset in self._equal(seals.listed[name][1], manifest, data, wanted, packed.range):
                    wanted.pop(offset, None)
        return wanted[min(wanted)] if wanted else None

    def _equal(
        self, log: ObjectInfo, manifest: SegmentManifest, data: bytes, wanted: dict[int, BatchHeader], range_: Range
    ) -> Iterator[int]:
        """The offsets of the batches of ``wanted``, which lie in ``data``, that the seal has, too, or had."""
        gone = manifest.gone
        for header in scan_batches(pieces(self.partition.store, log), log.key, manifest.base_offset):
            if header.base_offset >= range_.next:
                return
            packed = wanted.get(header.base_offset)
            if packed is None:
                continue
            if erased := gone.get(header.base_offset):
                ours, theirs = id_of(packed, range_.restores), id_of(header, manifest.restores)
                same_batch = ours == theirs and packed.next_offset == header.next_offset
                if same_batch and packed.record_count == header.record_count + erased:
                    yield header.base_offset
                continue
            if packed.size != header.size:
                continue
            body = self.partition.store.get_range(log.key, header.position, header.end, if_match=log.etag)
            if body == data[packed.position : packed.end]:
                yield header.base_offset
