"""One object into the store, exactly once: create it, find it there; replace only what a repair makes again.

Stored and local bytes are compared by size and CRC32C alone. If the store does not know an object's checksum, the bytes
are read. If the store does not answer, the outcome is unknown, and the object is read back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tidemark.errors import FormatError, NotFound, PreconditionFailed, StoreError, UnknownOutcome
from tidemark.formats.manifest import ObjectSum
from tidemark.raw.stored_bytes import stored_checksum
from tidemark.store import ObjectInfo, Store
from uploader_agent.disk.segment_files import SegmentContent


class Summed(NamedTuple):
    """Content with the checksum of all its bytes."""

    content: SegmentContent
    crc32c: int


def create(store: Store, key: str, ours: Summed, *, look_first: bool = False) -> ObjectSum | ObjectInfo:
    """Create ``key``; our object's sum if it now holds our bytes, else the object that is there instead.

    ``look_first`` if something is probably there, so that no bytes are sent for nothing.
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
    """Replace exactly the version ``stored``.

    Raises:
        PreconditionFailed: it has been replaced; look again.
    """
    try:
        etag = store.put(key, ours.content.body(), size=ours.content.size, crc32c=ours.crc32c, if_match=stored.etag)
    except UnknownOutcome as error:
        there = _read_back(store, key, error)
        if not _same(store, there, ours):
            raise
        etag = there.etag
    return _summed(ours, etag)


def create_derived(store: Store, key: str, ours: Summed) -> ObjectSum:
    """Create ``key``, which follows from a ``.log``: what is there already must be the same.

    Raises:
        FormatError: it is not.
    """
    there = create(store, key, ours)
    if isinstance(there, ObjectSum):
        return there
    raise FormatError(
        key, "is not what follows from its .log: run `tidemark-agent reupload` on a broker with a replica"
    )


def put_derived(store: Store, key: str, ours: Summed) -> ObjectSum:
    """Create ``key``, or replace what is there: for repairs, which make again what follows from a ``.log``."""
    there = create(store, key, ours)
    return there if isinstance(there, ObjectSum) else replace(store, key, ours, there)


PutDerived = Callable[[Store, str, Summed], ObjectSum]
"""How what follows from a ``.log`` gets under its key: :func:`create_derived`, or :func:`put_derived` in repairs."""


def _same(store: Store, stored: ObjectInfo, ours: Summed) -> bool:
    """Whether the stored bytes are ours."""
    return stored.size == ours.content.size and stored_checksum(store, stored) == ours.crc32c


def find(store: Store, key: str) -> ObjectInfo | None:
    """The object's state; None if there is none."""
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
