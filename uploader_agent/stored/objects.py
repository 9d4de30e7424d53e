"""Puts an object into the store exactly once: creates it, or finds it there. Replaces only objects of repairs.

Stored and local bytes are compared by size and CRC32C alone. If the store does not know an object's checksum, the bytes
are read. If the store does not answer, the outcome is unknown, and the object is read back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tidemark.errors import FormatError, NotFound, PreconditionFailed, StoreError, UnknownOutcome
from tidemark.formats.raw.manifest import ObjectSum
from tidemark.raw.objects import stored_checksum
from tidemark.store import ObjectInfo, Store
from uploader_agent.disk.segment_files import SegmentContent


class Summed(NamedTuple):
    """Content with the checksum of all its bytes."""

    content: SegmentContent
    crc32c: int


def create(store: Store, key: str, ours: Summed, *, look_first: bool = False) -> ObjectSum | ObjectInfo:
    """Create ``key``. Return our object's sum if the key now holds our bytes, else the object that is there instead.

    With ``look_first``, look for an object before any bytes are sent, since there probably is one.
    """
    stored = find(store, key) if look_first else None
    if stored is None:
        try:
            etag = store.put(key, ours.content.body(), size=ours.content.size, crc32c=ours.crc32c, if_none_match=True)
        except (PreconditionFailed, UnknownOutcome) as error:
            stored = _read_back(store, key, error)
        else:
            return _summed(ours, etag)
    return _summed(ours, stored.etag) if _same(store, stored, ours) else stored


def replace(store: Store, key: str, ours: Summed, stored: ObjectInfo) -> ObjectSum:
    """Replace exactly the version ``stored``. Raises PreconditionFailed: that version has been replaced; look again."""
    try:
        etag = store.put(key, ours.content.body(), size=ours.content.size, crc32c=ours.crc32c, if_match=stored.etag)
    except UnknownOutcome as error:
        now = _read_back(store, key, error)
        if not _same(store, now, ours):
            raise
        etag = now.etag
    return _summed(ours, etag)


def create_derived(store: Store, key: str, ours: Summed) -> ObjectSum:
    """Create ``key``, which is derived from a ``.log``; an object that is there must be the same.

    Raises:
        FormatError: the object that is there differs.
    """
    created = create(store, key, ours)
    if isinstance(created, ObjectSum):
        return created
    raise FormatError(
        key, "differs from the object derived from its .log: run `tidemark-agent reupload` on a broker with a replica"
    )


def put_derived(store: Store, key: str, ours: Summed) -> ObjectSum:
    """Create ``key``, or replace the object there: for repairs, which make again objects derived from a ``.log``."""
    created = create(store, key, ours)
    return created if isinstance(created, ObjectSum) else replace(store, key, ours, created)


PutDerived = Callable[[Store, str, Summed], ObjectSum]
"""Stores an object derived from a ``.log``: :func:`create_derived`, or :func:`put_derived` in repairs."""


def _same(store: Store, stored: ObjectInfo, ours: Summed) -> bool:
    return stored.size == ours.content.size and stored_checksum(store, stored) == ours.crc32c


def find(store: Store, key: str) -> ObjectInfo | None:
    """The object's state; None without an object."""
    try:
        return store.head(key)
    except NotFound:
        return None


def _summed(ours: Summed, etag: str) -> ObjectSum:
    """The sum that proves our object in a manifest."""
    return ObjectSum(size=ours.content.size, crc32c=f"{ours.crc32c:08x}", etag=etag)


def _read_back(store: Store, key: str, error: StoreError) -> ObjectInfo:
    """The object that is there after ``error``. Raises ``error`` again if there is none."""
    try:
        return store.head(key)
    except NotFound:
        raise error from None
