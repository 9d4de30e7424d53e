"""A store that repeats failed reads, their bodies included, if that may help; it tries each write once.

Deletes are repeated as well, since deleting an object twice does no harm.

If a body breaks off, the next request continues it at that byte, of the same version. A listing continues after the
last key that it returned: servers order keys in different ways, and each continues in its own order.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, BinaryIO, Final

from crc32c import crc32c as crc32c_of

from tidemark.errors import StoreError, UnknownOutcome
from tidemark.retry import Retry, Tries
from tidemark.store.base import Body, Fetched, ObjectInfo, Store

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_READ_BACK: Final = 8 << 20

_PROGRESS: Final = 64 << 10
"""The bytes that a try must have brought for the tries to be counted from zero."""


def repeating(store: Store, retry: Retry) -> Store:
    """``store`` with ``retry`` as the only repetition of its reads."""
    return RepeatingStore(store.inner if isinstance(store, RepeatingStore) else store, retry)


def read_back(store: Store, key: str, size: int, etag: str) -> int:
    """CRC32C of exactly this version, by reading it."""
    value, stored = 0, repeating(store, Retry())
    for start in range(0, size, _READ_BACK):
        value = crc32c_of(stored.get_range(key, start, min(size, start + _READ_BACK), if_match=etag), value)
    return value


def prove(store: Store, key: str, size: int, etag: str, crc32c: int) -> None:
    """Raise StoreError unless exactly this version has the bytes of ``crc32c``."""
    if read_back(store, key, size, etag) != crc32c:
        rule = f"the store has other bytes than those of CRC32C {crc32c:08x}; send it again"
        raise StoreError(f"{store.url}/{key}", rule)


class RepeatingStore:
    """``inner`` with reads that are repeated according to ``retry``."""

    def __init__(self, inner: Store, retry: Retry) -> None:
        self.url = inner.url
        self.inner = inner
        self._retry = retry

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
        """See :meth:`tidemark.store.base.Store.put`."""
        return self.inner.put(key, body, size=size, crc32c=crc32c, if_match=if_match, if_none_match=if_none_match)

    def get(self, key: str, *, if_match: str | None = None, limit: int | None = None) -> Fetched:
        """See :meth:`tidemark.store.base.Store.get`."""
        return self._retry.call(lambda: self.inner.get(key, if_match=if_match, limit=limit))

    def get_range(self, key: str, start: int, end: int, *, if_match: str | None = None) -> bytes:
        """See :meth:`tidemark.store.base.Store.get_range`."""
        return self._retry.call(lambda: self.inner.get_range(key, start, end, if_match=if_match))

    @contextmanager
    def stream(
        self, key: str, start: int = 0, end: int | None = None, *, if_match: str | None = None
    ) -> Iterator[Body]:
        """See :meth:`tidemark.store.base.Store.stream`."""
        with ExitStack() as opened:
            yield _Resumed(self.inner, Tries(self._retry), opened, key, start, end, if_match)

    def head(self, key: str) -> ObjectInfo:
        """See :meth:`tidemark.store.base.Store.head`."""
        return self._retry.call(lambda: self.inner.head(key))

    def list(self, prefix: str, *, start_after: str | None = None) -> Iterator[ObjectInfo]:
        """See :meth:`tidemark.store.base.Store.list`."""
        tries, last = Tries(self._retry), start_after
        while True:
            tries.begin()
            try:
                for info in self.inner.list(prefix, start_after=last):
                    yield info
                    last = info.key
                    tries.progressed()
            except StoreError as error:
                tries.failed(error)
            else:
                return

    def now(self) -> datetime:
        """See :meth:`tidemark.store.base.Store.now`."""
        return self._retry.call(self.inner.now)

    def copy(self, source: str, target: str, *, source_etag: str) -> str:
        """See :meth:`tidemark.store.base.Store.copy`."""
        return self.inner.copy(source, target, source_etag=source_etag)

    def delete(self, key: str, *, if_match: str | None = None) -> None:
        """See :meth:`tidemark.store.base.Store.delete`."""
        self._retry.call(lambda: self.inner.delete(key, if_match=if_match))


class _Resumed:
    """A body that is requested again from the byte where it broke off. See :class:`tidemark.store.base.Body`."""

    def __init__(
        self, store: Store, tries: Tries, opened: ExitStack, key: str, start: int, end: int | None, etag: str | None
    ) -> None:
        """``opened`` keeps the body that is being read, and closes it."""
        self._store, self._tries, self._opened = store, tries, opened
        self._key, self._at, self._end = key, start, end
        self._fresh = 0  # bytes since the tries were counted from zero
        self._body = self._open(etag)
        self.etag = self._body.etag
        self.size = self._body.size
        self._end = start + self.size

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Read the body, see :meth:`tidemark.store.base.Body.readinto`."""
        while self._at != self._end:
            try:
                count = self._body.readinto(buffer)
            except UnknownOutcome as error:
                self._opened.close()
                self._tries.failed(error)
                self._body = self._open(self.etag)
                continue
            self._at += count
            self._fresh += count
            if self._fresh >= _PROGRESS:
                self._fresh = 0
                self._tries.progressed()
            return count
        return 0

    def _open(self, etag: str | None) -> Body:
        while True:
            self._tries.begin()
            try:
                return self._opened.enter_context(self._store.stream(self._key, self._at, self._end, if_match=etag))
            except StoreError as error:
                self._tries.failed(error)
