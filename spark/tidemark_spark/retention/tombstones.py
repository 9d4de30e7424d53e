"""Removes segments for retention: first the tombstone, then each segment in order of its end, its manifest first.

A run that dies in between leaves a tombstone and objects without a manifest, which the next run recognizes. In a bucket
that keeps versions the bytes are only hidden, and its lifecycle frees them.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidemark.formats.raw.tombstones import Tombstone
from tidemark.raw import tombstones
from tidemark.raw.objects import remove_segment
from tidemark.storage import PartitionStore
from tidemark.store import put_once
from tidemark.store.base import ObjectInfo
from tidemark.timestamps import stamp


def bury(partition: PartitionStore, tombstone: Tombstone) -> bool:
    """Write ``tombstone`` and delete its segments; False if a manifest was replaced, which stops the deletion."""
    control, at = partition.keys.control, stamp(tombstone.at)
    key = control.tombstone(partition.keys.place, partition.keys.partition, tombstone.start, tombstone.end, at)
    put_once(partition.store, key, tombstone.to_bytes())
    return all(
        remove_segment(
            partition,
            segment.name,
            segment.manifest_etag,
            {name: sums.etag for name, sums in segment.objects.items()},
        )
        for segment in tombstone.segments
    )


class Tombstones:
    """The tombstones of a partition, listed once and read on demand; the last one read is kept."""

    def __init__(self, partition: PartitionStore) -> None:
        self._partition = partition
        self._named: Sequence[tombstones.Removed] = list(tombstones.named(partition))
        self._read: tuple[str, Tombstone] | None = None

    def name(self, offset: int, info: ObjectInfo) -> bool:
        """True if a tombstone younger than the object ``info``, named by ``offset``, removes this very version."""
        file = info.key.removeprefix(self._partition.keys.folder)
        near = (self._tombstone(name.key) for name in self._named if name.start <= offset < name.end)
        return any(info.modified < tombstone.at and tombstone.names(file, info.etag) for tombstone in near)

    def _tombstone(self, key: str) -> Tombstone:
        if self._read is None or self._read[0] != key:
            self._read = key, tombstones.read(self._partition, key)
        return self._read[1]
