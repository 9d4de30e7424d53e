"""Reading of a version of a stored object piece by piece, and the CRC32C of its bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from crc32c import crc32c

from tidemark.store import ObjectInfo, Store

PIECE_BYTES: Final = 8 << 20
"""Bytes of an object that are in memory at a time."""


def pieces(store: Store, version: ObjectInfo) -> Iterator[bytes]:
    """The bytes of exactly that version, 8 MiB at a time.

    Raises:
        PreconditionFailed: the object was replaced meanwhile.
        NotFound: the object was removed.
        StoreError: the store failed.
    """
    for start in range(0, version.size, PIECE_BYTES):
        yield store.get_range(version.key, start, min(start + PIECE_BYTES, version.size), if_match=version.etag)


def read_checksum(store: Store, version: ObjectInfo) -> int:
    """CRC32C of the bytes of exactly that version; reads them. Raises errors of :func:`pieces`."""
    value = 0
    for piece in pieces(store, version):
        value = crc32c(piece, value)
    return value


def stored_checksum(store: Store, version: ObjectInfo) -> int:
    """CRC32C of exactly that version; reads its bytes only if the store does not know the checksum."""
    return read_checksum(store, version) if version.crc32c is None else version.crc32c
