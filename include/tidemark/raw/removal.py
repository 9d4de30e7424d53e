"""Deletes segments. Without its manifest, which goes first, a segment no longer exists for any reader."""

from __future__ import annotations

from collections.abc import Mapping

from tidemark.errors import NotFound, PreconditionFailed
from tidemark.formats.keys import PartitionKeys, SegmentName
from tidemark.store import Store


def remove(store: Store, keys: PartitionKeys, name: SegmentName, manifest_etag: str, etags: Mapping[str, str]) -> bool:
    """Delete the segment ``name``, each object only in the version that ``etags`` has for its file name.

    False if its manifest was replaced: then all stays.
    """
    manifest = keys.manifest(name)
    try:
        store.delete(manifest, if_match=manifest_etag)
    except NotFound:
        pass  # another run beside this one was faster
    except PreconditionFailed:
        if _exists(store, manifest):
            return False
    for file, etag in etags.items():
        delete_version(store, keys.file(file), etag)
    return True


def _exists(store: Store, key: str) -> bool:
    """Some servers answer 412 and not 404 to a conditional deletion of an object that is gone."""
    try:
        store.head(key)
    except NotFound:
        return False
    return True


def delete_version(store: Store, key: str, etag: str) -> None:
    """Delete the object if it is this very version, and otherwise do nothing."""
    try:
        store.delete(key, if_match=etag)
    except (NotFound, PreconditionFailed):
        return
