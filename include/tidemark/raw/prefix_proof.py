"""A stored log that is another version than its manifest describes: known by its first bytes.

An agent replaces a ``.log`` by a longer one that begins with it, and writes the manifest last. In between, and for good
if it ends there, the manifest describes a part of what is stored. That part is proved by its size and CRC32C alone:
bytes of another branch of the log under the same base offset never pass for it, however sound their batches are.
"""

from __future__ import annotations

from typing import Final

from crc32c import crc32c

from tidemark.store import ObjectInfo, Store

PIECE_BYTES: Final = 8 << 20
"""How many bytes of a log are held while it is proved."""


def begins_with(store: Store, version: ObjectInfo, size: int, checksum: str) -> bool:
    """Whether the first ``size`` bytes of that very version have the CRC32C ``checksum``, in a manifest's 8 digits.

    They are read once, piece by piece, unless the store itself knows the checksum of the whole.

    Raises:
        PreconditionFailed: it was replaced meanwhile.
        NotFound: it was removed.
        StoreError: the store failed.
    """
    if not checksum or version.size < size:
        return False
    if version.size == size and version.crc32c is not None:
        return f"{version.crc32c:08x}" == checksum
    found = 0
    for start in range(0, size, PIECE_BYTES):
        end = min(start + PIECE_BYTES, size)
        found = crc32c(store.get_range(version.key, start, end, if_match=version.etag), found)
    return f"{found:08x}" == checksum


def grown(store: Store, key: str, size: int, checksum: str) -> str | None:
    """The ETag of what is stored under ``key`` if it begins with these bytes; None if they are others, or fewer.

    Raises as :func:`begins_with` does.
    """
    newest = store.head(key)
    return newest.etag if begins_with(store, newest, size, checksum) else None
