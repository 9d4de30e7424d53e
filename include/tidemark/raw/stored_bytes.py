"""Reads a version of a stored object piece by piece, and finds the CRC32C of its bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from crc32c import crc32c

from tidemark.store import ObjectInfo, Store

PIECE_BYTES: Final = 8 << 20
"""How many bytes of an object are held while they are read through."""


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
    """CRC32C of the bytes of exactly that version; reads them. Raises as :func:`pieces`."""
    value = 0
    for piece in pieces(store, version):
        value = crc32c(piece, value)
    return value


def stored_checksum(store: Store, version: ObjectInfo) -> int:
    """As :func:`read_checksum`, but without reading if the store knows the checksum."""
    return read_checksum(store, version) if version.crc32c is None else version.crc32c
