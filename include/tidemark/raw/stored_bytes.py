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
    return pieces_between(store, version.key, 0, version.size, version.etag)


def pieces_between(store: Store, key: str, start: int, end: int, etag: str | None) -> Iterator[bytes]:
    """The bytes ``[start, end)`` of the version ``etag`` of an object; None: of the current one, whatever it is.

    Raises:
        PreconditionFailed, NotFound, StoreError: as :func:`pieces`.
    """
    for at in range(start, end, PIECE_BYTES):
        yield store.get_range(key, at, min(at + PIECE_BYTES, end), if_match=etag)


def read_checksum(store: Store, version: ObjectInfo) -> int:
    """CRC32C of the bytes of exactly that version; reads them. Raises errors of :func:`pieces`."""
    value = 0
    for piece in pieces(store, version):
        value = crc32c(piece, value)
    return value


def stored_checksum(store: Store, version: ObjectInfo) -> int:
    """CRC32C of exactly that version; reads its bytes only if the store does not know the checksum."""
    return read_checksum(store, version) if version.crc32c is None else version.crc32c
