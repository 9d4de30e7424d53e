"""Whether seals hold what a pack has, so that the pack is not needed any more.

The proof of a range is a part of a manifest, of whatever branch, with the same offsets and the same CRC32C, or a
tombstone: retention of raw has removed these offsets. A seal proves nothing before it is two days old, since a run that
was planned before it was there may still read the pack. What no part proves, since its agent died or an earlier one
cut its seals differently, is compared batch by batch with the bytes of the seals, once the pack is a week old.

What no seal holds stays, be it of a dead branch: a disk may have lost it, or a log may return to that branch.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from tidemark.errors import NotFound
from tidemark.formats import tombstones
from tidemark.formats.keys import MANIFEST_EXTENSION, PartitionKeys, SegmentName
from tidemark.formats.manifest import SegmentManifest
from tidemark.formats.pack import PackedRange, Range, read_range_bytes
from tidemark.intervals import Intervals
from tidemark.kafka_log import BatchHeader
from tidemark.kafka_log.scan import scan_batches
from tidemark.planning.vacuum import RUN_OVER
from tidemark.raw import objects
from tidemark.raw.objects import LOOK_BACK
from tidemark.raw.stored_bytes import pieces
from tidemark.store import ObjectInfo, Store

SETTLED: Final = RUN_OVER
"""How old a seal must be to prove something, and a pack to be looked at: a run that began before is over."""

COMPARED: Final = timedelta(days=7)
"""How old a pack must be for its bytes to be compared with those of seals."""

_SEALS: Final = 64
"""How many seals at and below a range are looked into for its part: of one lineage it is the first of them."""


class _Seal(NamedTuple):
    """The objects of a seal as they are listed."""

    manifest: ObjectInfo
    log: ObjectInfo


@dataclass
class SealsOfPartition:
    """The seals of one partition that may hold some ranges. Each manifest is read once."""

    store: Store
    keys: PartitionKeys
    now: datetime
    _seals: dict[SegmentName, _Seal] = field(default_factory=dict)
    _names: list[SegmentName] = field(default_factory=list)
    _manifests: dict[SegmentName, SegmentManifest | None] = field(default_factory=dict)
    _removed: Intervals | None = None

    def look(self, first: int, end: int) -> None:
        """List the seals that may hold some of the offsets ``[first, end)``.

        Raises:
            StoreError: the store failed.
        """
        for distance in LOOK_BACK:
            start = max(0, first - distance)
            found: dict[SegmentName, dict[str, ObjectInfo]] = {}
            for entry in objects.listed(self.store, self.keys, start, end):
                found.setdefault(entry.name, {})[entry.extension] = entry.info
            self._seals = {
                name: _Seal(infos[MANIFEST_EXTENSION], infos["log"])
                for name, infos in found.items()
                if {MANIFEST_EXTENSION, "log"} <= infos.keys()
            }
            self._names = sorted(self._seals)
            if start == 0 or any(name.base <= first for name in self._names):
                break

    def why_needed(self, packed: PackedRange, *, compare: bool) -> str | None:
        """Why the pack is still needed for a range; None if it is not. With ``compare``, bytes prove it as well.

        Raises:
            FormatError: an object of the partition is damaged.
            StoreError: the store failed.
        """
        one = packed.range
        part = one.first, one.next, one.crc32c
        for name in self._below(one.first)[:_SEALS]:
            manifest = self._manifest(name)
            if manifest and part in {(other.first, other.next, other.crc32c) for other in manifest.parts}:
                return None if self._settled(name) else f"{one}: was sealed less than {SETTLED} ago"
        if self._removed is None:
            self._removed = tombstones.removed(self.store, self.keys)
        if self._removed.covers(one.first, one.next):
            return None
        if not compare:
            return f"{one}: no seal lists it"
        missing = self._missing(packed)
        return f"{one}: no seal holds the batch at offset {missing}" if missing is not None else None

    def _below(self, offset: int) -> list[SegmentName]:
        """The seals that begin at or below ``offset``, the nearest first."""
        return self._names[: bisect_right(self._names, offset, key=lambda name: name.base)][::-1]

    def _settled(self, name: SegmentName) -> bool:
        return self._seals[name].manifest.modified <= self.now - SETTLED

    def _manifest(self, name: SegmentName) -> SegmentManifest | None:
        """The manifest of a seal; None if it is damaged, gone, or describes another log."""
        if name not in self._manifests:
            try:
                found = SegmentManifest.load(self.store, self.keys.manifest(name))
            except NotFound:
                self._manifests[name] = None
            else:
                log = found.objects.get(found.log_name)
                right = found.state == "whole" and log is not None and log.etag == self._seals[name].log.etag
                self._manifests[name] = found if right else None
        return self._manifests[name]

    def _missing(self, packed: PackedRange) -> int | None:
        """The first batch of a range that no settled seal holds, byte by byte; None if there is none."""
        data = read_range_bytes(self.store, packed)
        wanted = {one.base_offset: one for one in scan_batches([data], packed.key, packed.range.first)}
        for name in [name for name in self._names if name.base < packed.range.next and self._settled(name)]:
            manifest = self._manifest(name)
            if wanted and manifest and manifest.next_offset > packed.range.first:
                for offset in self._equal(self._seals[name].log, manifest.base_offset, data, wanted, packed.range):
                    wanted.pop(offset, None)
        return min(wanted, default=None)

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


def bounds(ranges: Sequence[Range]) -> tuple[int, int]:
    """The lowest and the highest offset of ``ranges``."""
    return min(one.first for one in ranges), max(one.next for one in ranges)
