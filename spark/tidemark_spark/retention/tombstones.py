"""Removes segments for retention: first the tombstone, then each segment in order of its end, its manifest first.

Without its manifest a segment no longer exists for any reader. Each object is deleted only in the version that was
judged. A run that dies in between leaves a tombstone and objects without a manifest, which the next run recognizes. In
a bucket that keeps versions the bytes are only hidden, and its lifecycle frees them.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidemark.errors import NotFound, PreconditionFailed
from tidemark.formats.keys import PartitionKeys
from tidemark.formats.raw import tombstones
from tidemark.formats.raw.tombstones import RemovedSegment, Tombstone
from tidemark.store import Store, put_once
from tidemark.store.base import ObjectInfo
from tidemark.timestamps import stamp


def bury(store: Store, keys: PartitionKeys, tombstone: Tombstone) -> bool:
    """Write ``tombstone`` and delete its segments; False if a manifest was replaced, which stops the deletion."""
    control, at = keys.control, stamp(tombstone.at)
    key = control.tombstone(keys.place, keys.partition, tombstone.start, tombstone.end, at)
    put_once(store, key, tombstone.to_bytes())
    return all(_removed(store, keys, segment) for segment in tombstone.segments)


def delete_version(store: Store, key: str, etag: str) -> None:
    """Delete the object if it is this very version, and otherwise do nothing."""
    try:
        store.delete(key, if_match=etag)
    except (NotFound, PreconditionFailed):
        return


def _removed(store: Store, keys: PartitionKeys, segment: RemovedSegment) -> bool:
    try:
        store.delete(keys.manifest(segment.name), if_match=segment.manifest_etag)
    except NotFound:
        pass  # another run beside this one was faster
    except PreconditionFailed:
        return False
    for name, sums in segment.objects.items():
        delete_version(store, keys.file(name), sums.etag)
    return True


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
