"""The operations of a store, and the hook that meters them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from datetime import datetime
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, Protocol

from tidemark.errors import FormatError, StoreError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


class ObjectInfo(NamedTuple):
    """An object without its bytes; ``size`` in bytes, ``crc32c`` if the store knows it (never in listings)."""

    key: str
    size: int
    etag: str
    modified: datetime
    crc32c: int | None = None


class Fetched(NamedTuple):
    """An object's bytes and the ETag that they had."""

    body: bytes
    etag: str


class Body(Protocol):
    """The bytes of an object or of a range, ``size`` of them, as they arrive; ``etag`` is the object's."""

    @property
    def etag(self) -> str:
        """The ETag of the version that is read."""
        ...

    @property
    def size(self) -> int:
        """The number of bytes in all."""
        ...

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Fill ``buffer``, or a part of it, with the next bytes; return their number, 0 once all ``size`` were given.

        Raises UnknownOutcome if they end early or come too slowly.
        """
        ...


class Store(Protocol):
    """One bucket. Every method raises :class:`tidemark.errors.StoreError` or one of its kinds, naming the key.

    A class that implements it tries each request once: :func:`tidemark.store.open_store` repeats its reads.
    """

    url: str

    def put(
        self,
        key: str,
        body: bytes | BinaryIO,
        *,
        size: int | None = None,
        crc32c: int | None = None,
        if_match: str | None = None,
        if_none_match: bool = False,
    ) -> str:
        """Write the object and return its ETag.

        A file is read from its current position for ``size`` bytes. ``crc32c`` is sent along, and the store
        refuses other bytes. ``if_match`` replaces only exactly that version, ``if_none_match`` only creates.

        Raises:
            PreconditionFailed: the condition does not hold (also 409, another conditional write under way).
            UnknownOutcome: no answer that proves anything; read back before deciding.
        """
        ...

    def get(self, key: str, *, if_match: str | None = None, limit: int | None = None) -> Fetched:
        """The whole object. Raises NotFound, or PreconditionFailed if it is another version now.

        An object of more than ``limit`` bytes raises FormatError before its bytes are received: see :func:`check_size`.
        """
        ...

    def get_range(self, key: str, start: int, end: int, *, if_match: str | None = None) -> bytes:
        """Bytes ``[start, end)``, exactly as many; raises like :meth:`get`."""
        ...

    def stream(
        self, key: str, start: int = 0, end: int | None = None, *, if_match: str | None = None
    ) -> AbstractContextManager[Body]:
        """Bytes ``[start, end)``, or all from ``start`` on, as they arrive; raises like :meth:`get`.

        ``end`` is above ``start``. For one thread. Leaving the context early ends the transfer.
        """
        ...

    def head(self, key: str) -> ObjectInfo:
        """Size, ETag and checksum. Raises NotFound."""
        ...

    def list(self, prefix: str, *, start_after: str | None = None) -> Iterator[ObjectInfo]:
        """Objects under ``prefix``, sorted by key within one folder; ``start_after`` only inside one leaf folder.

        Some servers list ``orders/`` before ``orders-dlq/``, so never rely on order across folders.
        """
        ...

    def now(self) -> datetime:
        """The time of the store's clock, which also dates ``modified`` of objects; maybe cut to the second."""
        ...

    def copy(self, source: str, target: str, *, source_etag: str) -> str:
        """Copy within the store if the source still is that version; return the copy's ETag."""
        ...

    def delete(self, key: str, *, if_match: str | None = None) -> None:
        """Remove the object; not an error if it is gone already."""
        ...


def check_size(name: str, size: int, limit: int | None) -> None:
    """Raise FormatError if an object of ``size`` bytes is larger than the ``limit`` for objects of its kind."""
    if limit is not None and size > limit:
        rule = f"has {size} bytes, and objects of its kind have at most {limit}; something else wrote it"
        raise FormatError(name, f"{rule}: remove it, or have its writer write it again")


def check_key(key: str) -> None:
    """Raise StoreError if a file system or a URL would misread a part of ``key``."""
    if not key or any(part in {"", ".", ".."} for part in key.split("/")):
        raise StoreError(key, "is not a valid key: empty, absolute, or with an empty, '.' or '..' part")


class Traffic:
    """The hook that is called for each request and its bytes, and may slow them down; this one does not."""

    def request(self, operation: str) -> None:
        """Note that a request of this operation, by its name on S3, is about to be sent."""

    def admit(self, size: int, total: int) -> int:
        """Wait until some of the next ``size`` bytes of a request of ``total`` bytes may be sent; return how many."""
        del total
        return size
