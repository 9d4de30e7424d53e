"""Uploads a file to the store exactly once, despite earlier tries: a repeated task writes the same name and bytes."""

from __future__ import annotations

from typing import BinaryIO, Final

from crc32c import crc32c

from tidemark.errors import NotFound, PreconditionFailed, UnknownOutcome
from tidemark.raw.objects import stored_checksum
from tidemark.store import Store
from tidemark.store.retrying import Retry, Tries

_CHUNK: Final = 1 << 20


def upload_once(store: Store, key: str, file: BinaryIO) -> int:
    """Create ``key`` with the bytes of ``file``, or find that it has them already; returns their number.

    Raises:
        PreconditionFailed: the key holds other bytes.
        UnknownOutcome: the store gave no proof, several times.
    """
    size, checksum = _sum(file)
    tries = Tries(Retry())
    while True:
        tries.begin()
        file.seek(0)
        try:
            store.put(key, file, size=size, crc32c=checksum, if_none_match=True)
        except (PreconditionFailed, UnknownOutcome) as error:
            failure = error
        else:
            return size
        stored = _stored(store, key)
        if stored == (size, checksum):
            return size
        if stored is not None:
            raise PreconditionFailed(key, f"holds {stored[0]} other bytes, not the {size} of this task") from failure
        tries.failed(failure)


def _sum(file: BinaryIO) -> tuple[int, int]:
    file.seek(0)
    size = checksum = 0
    while chunk := file.read(_CHUNK):
        size += len(chunk)
        checksum = crc32c(chunk, checksum)
    return size, checksum


def _stored(store: Store, key: str) -> tuple[int, int] | None:
    """(size, CRC32C) of the object, or None if it does not exist."""
    try:
        info = store.head(key)
        return info.size, stored_checksum(store, info)
    except NotFound:
        return None
