"""One object into the store, exactly once: create it, find it there, replace it when that loses nothing.

What is there and what we have are compared by size and CRC32C alone. Where the store does not know an object's
checksum, or only a part of it must be compared, the stored bytes are read. No answer from the store is taken for
neither success nor failure: the object is read back.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from crc32c import crc32c

from tidemark.errors import NotFound, PreconditionFailed, StoreError, UnknownOutcome
from tidemark.formats.manifest import ObjectSum
from tidemark.store import ObjectInfo, Store
from uploader_agent.disk.segment_files import SegmentContent, checksum

READ_SIZE = 8 << 20


class Relation(Enum):
    """How stored bytes relate to ours."""

    SAME = "same"
    STORED_IS_PREFIX = "stored is a prefix of ours"
    OURS_IS_PREFIX = "ours is a prefix of what is stored"
    DIVERGED = "neither is a prefix of the other"


class Summed(NamedTuple):
    """Content with the checksum of all its bytes."""

    content: SegmentContent
    crc32c: int


def create(store: Store, key: str, ours: Summed) -> ObjectSum | ObjectInfo:
    """Create ``key``: our object's sum if it holds our bytes now, else what is there instead."""
    try:
        etag = store.put(key, ours.content.body(), size=ours.content.size, crc32c=ours.crc32c, if_none_match=True)
    except (PreconditionFailed, UnknownOutcome) as error:
        stored = _read_back(store, key, error)
        return summed(ours, stored.etag) if same(store, stored, ours) else stored
    return summed(ours, etag)


def replace(store: Store, key: str, ours: Summed, stored: ObjectInfo) -> ObjectSum:
    """Replace the very version ``stored``.

    Raises:
        PreconditionFailed: it is another version by now; look again.
    """
    try:
        etag = store.put(key, ours.content.body(), size=ours.content.size, crc32c=ours.crc32c, if_match=stored.etag)
    except UnknownOutcome as error:
        found = _read_back(store, key, error)
        if not same(store, found, ours):
            raise
        etag = found.etag
    return summed(ours, etag)


def put_derived(store: Store, key: str, ours: Summed, fence: Callable[[], None]) -> ObjectSum:
    """Create ``key`` or replace what is there: for what follows from the ``.log``, which is kept by its own rule.

    ``fence`` raises if it must not be replaced any more.
    """
    there = create(store, key, ours)
    if isinstance(there, ObjectSum):
        return there
    fence()
    return replace(store, key, ours, there)


def relate(store: Store, stored: ObjectInfo, ours: Summed) -> Relation:
    """Compare what is stored with ours, by proof."""
    if stored.size == ours.content.size:
        return Relation.SAME if stored_checksum(store, stored) == ours.crc32c else Relation.DIVERGED
    if stored.size < ours.content.size:
        proved = stored_checksum(store, stored) == checksum(ours.content, stored.size)
        return Relation.STORED_IS_PREFIX if proved else Relation.DIVERGED
    proved = read_checksum(store, stored, ours.content.size) == ours.crc32c
    return Relation.OURS_IS_PREFIX if proved else Relation.DIVERGED


def same(store: Store, stored: ObjectInfo, ours: Summed) -> bool:
    """Whether the stored bytes are ours."""
    return stored.size == ours.content.size and stored_checksum(store, stored) == ours.crc32c


def stored_checksum(store: Store, stored: ObjectInfo) -> int:
    """CRC32C of a stored object: as the store knows it, else by reading it."""
    return read_checksum(store, stored, stored.size) if stored.crc32c is None else stored.crc32c


def read_checksum(store: Store, stored: ObjectInfo, size: int) -> int:
    """CRC32C of the first ``size`` bytes of that very version, read in pieces."""
    value = 0
    for start in range(0, size, READ_SIZE):
        piece = store.get_range(stored.key, start, min(size, start + READ_SIZE), if_match=stored.etag)
        value = crc32c(piece, value)
    return value


def find(store: Store, key: str) -> ObjectInfo | None:
    """The object's state; None if there is none."""
    try:
        return store.head(key)
    except NotFound:
        return None


def summed(ours: Summed, etag: str) -> ObjectSum:
    """What proves our object in a manifest."""
    return ObjectSum(size=ours.content.size, crc32c=f"{ours.crc32c:08x}", etag=etag)


def _read_back(store: Store, key: str, error: StoreError) -> ObjectInfo:
    """What is there after ``error``; that error again if it is nothing."""
    try:
        return store.head(key)
    except NotFound:
        raise error from None
