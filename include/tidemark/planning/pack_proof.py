"""Whether seals hold what a pack has, so that the pack is not needed any more.

The proof of a range is a part of a manifest, of whatever branch, with the same offsets and the same CRC32C, or a
tombstone: retention of raw has removed these offsets. A seal proves nothing before it is two days old, since a run that
was planned before it was there may still read the pack. What no part proves, since its agent died or an earlier one
cut its seals differently, is compared batch by batch with the bytes of the seals, once the pack is a week old.

What no seal holds stays, be it of a dead branch: a disk may have lost it, or a log may return to that branch. It also
stays where a seal claims the offsets and lacks the records, see :mod:`tidemark.raw.sealed_packs`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from tidemark.formats import tombstones
from tidemark.formats.keys import PartitionKeys, SegmentName
from tidemark.formats.pack import PackedRange, Range, read_range_bytes
from tidemark.intervals import Intervals
from tidemark.kafka_log import BatchHeader
from tidemark.kafka_log.scan import scan_batches
from tidemark.planning.vacuum import RUN_OVER
from tidemark.raw.sealed_packs import SealsAround, id_of
from tidemark.raw.stored_bytes import pieces
from tidemark.store import ObjectInfo, Store

SETTLED: Final = RUN_OVER
"""How old a seal must be to prove something, and a pack to be looked at: a run that began before is over."""

COMPARED: Final = timedelta(days=7)
"""How old a pack must be for its bytes to be compared with those of seals."""


@dataclass
class SealsOfPartition:
    """The seals of one partition that may hold some ranges, and what they prove at ``now``."""

    store: Store
    keys: PartitionKeys
    now: datetime
    _removed: Intervals | None = field(default=None, init=False)
    _seals: SealsAround = field(init=False)

    def __post_init__(self) -> None:
        self._seals = SealsAround(self.store, self.keys)

    def look(self, first: int, end: int) -> None:
        """List the seals that may hold some of the offsets ``[first, end)``.

        Raises:
            StoreError: the store failed.
        """
        self._seals.look(first, end)

    def why_needed(self, packed: PackedRange, *, compare: bool) -> str | None:
        """Why the pack is still needed for a range; None if it is not. With ``compare``, bytes prove it as well.

        Raises:
            FormatError: an object of the partition is damaged.
            StoreError: the store failed.
        """
        one = packed.range
        listing = self._seals.listing(one)
        if listing is not None:
            return None if self._settled(listing) else f"{one}: was sealed less than {SETTLED} ago"
        if self._removed is None:
            self._removed = tombstones.removed(self.store, self.keys)
        if self._removed.covers(one.first, one.next):
            return None
        if not compare:
            return f"{one}: no seal lists it"
        missing = self._missing(packed)
        if missing is None:
            return None
        rule = f"{one}: no seal holds the batch at offset {missing.base_offset}"
        claiming = self._seals.claiming(id_of(missing), missing.next_offset)
        if claiming is None:
            return rule
        cure = f"`tidemark-agent reupload {one.topic} {one.partition} --from-packs` adds what it lacks"
        return f"{rule}, although {claiming.file('log')} has that offset: {cure}"

    def _settled(self, name: SegmentName) -> bool:
        return self._seals.listed[name].manifest.modified <= self.now - SETTLED

    def _missing(self, packed: PackedRange) -> BatchHeader | None:
        """The first batch of a range that no settled seal holds, byte by byte; None if there is none."""
        data = read_range_bytes(self.store, packed)
        wanted = {one.base_offset: one for one in scan_batches([data], packed.key, packed.range.first)}
        seals = self._seals
        for name in [name for name in seals.names if name.base < packed.range.next and self._settled(name)]:
            manifest = seals.manifest(name)
            if wanted and manifest and manifest.next_offset > packed.range.first:
                for offset in self._equal(seals.listed[name].log, manifest.base_offset, data, wanted, packed.range):
                    wanted.pop(offset, None)
        return wanted[min(wanted)] if wanted else None

    def _equal(
        self, log: ObjectInfo, base: int, data: bytes, wanted: dict[int, BatchHeader], one: Range
    ) -> Iterator[int]:
        """The offsets of the batches of ``wanted``, which lie in ``data``, that the seal has, too."""
        for header in scan_batches(pieces(self.store, log), log.key, base):
            if header.base_offset >= one.next:
                return
            ours = wanted.get(header.base_offset)
            if ours is None or ours.size != header.size:
                continue
            body = self.store.get_range(log.key, header.position, header.end, if_match=log.etag)
            if body == data[ours.position : ours.end]:
                yield header.base_offset
