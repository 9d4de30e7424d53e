"""Removes segments for retention: first the tombstone, then each segment in order of its end, its manifest first.

A run that dies in between leaves a tombstone and objects without a manifest, which the next run recognizes. In a bucket
that keeps versions the bytes are only hidden, and its lifecycle frees them.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidemark.formats.keys import PartitionKeys
from tidemark.formats.raw import tombstones
from tidemark.formats.raw.tombstones import Tombstone
from tidemark.raw.objects import remove_segment
from tidemark.store import Store, put_once
from tidemark.store.base import ObjectInfo
from tidemark.timestamps import stamp


def bury(store: Store, keys: PartitionKeys, tombstone: Tombstone) -> bool:
    """Write ``tombstone`` and delete its segments; False if a manifest was replaced, which stops the deletion."""
    control, at = keys.control, stamp(tombstone.at)
    key = control.tombstone(keys.place, keys.partition, tombstone.start, tombstone.end, at)
    put_once(store, key, tombstone.to_bytes())
    return all(
        remove_segment(
            store,
            keys,
            segment.name,
            segment.manifest_etag,
            {name: sums.etag for name, sums in segment.objects.items()},
        )
        for segment in tombstone.segments
    )


class Tombstones:
    """The tombstones of a partition, listed once and read on demand; the last one read is kept."""

    def __init__(self, store: Store, keys: PartitionKeys) -> None:
        self._store, self._keys = store, keys
        self._named: Sequence[tombstones.Removed] = list(tombstones.named(store, keys))
        self._read: tuple[str, Tombstone] | None = None

    def name(self, offset: int, info: ObjectInfo) -> bool:
        """True if a tombstone younger than the object ``info``, named by ``offset``, removes this very version."""
        file = info.key.removeprefix(self._keys.folder)
        near = (self._tombstone(name.key) for name in self._named if name.start <= offset < name.end)
        return any(info.modified < tombstone.at and tombstone.names(file, info.etag) for tombstone in near)

    def _tombstone(self, key: str) -> Tombstone:
        if self._read is None or self._read[0] != key:
            self._read = key, tombstones.read(self._store, self._keys, key)
        return self._read[1]
