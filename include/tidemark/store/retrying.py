"""Repetition of requests to a store: one policy, for all readers, of the number of tries and the pauses between them.

A read may be repeated after any failure with an unknown outcome: no answer, one that broke off, one that reports too
many requests. An answer that the object is another one, gone or forbidden is final. :class:`RepeatingStore` repeats
failed reads, their bodies included, and tries each write once. A write is repeated by :func:`put_once`, which reads
back its outcome, and by :func:`put_over`. Deletes are repeated as reads are, since deleting an object twice does no
harm. No layer below or above repeats reads: boto3's and obstore's clients try once. docs/storage.md, "How requests are
repeated", has a table of everything that is repeated, writes and the agent's jobs included.

If a body breaks off, the next request continues it at that byte, of the same version. A listing continues after the
last key that it returned: servers order keys in different ways, and each continues in its own order.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, BinaryIO, Final, TypeVar

from crc32c import crc32c as crc32c_of

from tidemark.backoff import Backoff
from tidemark.errors import NotFound, PreconditionFailed, StoreError, UnknownOutcome
from tidemark.store.base import Body, Fetched, ObjectInfo, Store

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

ATTEMPTS: Final = 6
"""Tries in all: if 7 of 100 requests fail, one read of 8 million does."""

SECONDS: Final = 60.0
"""No try begins later than this after the first one: a store that hangs is not waited for six times."""

PAUSES: Final = Backoff(0.2, 5.0)
"""The longest pauses between the tries of a read; each is at least half as long."""

_READ_BACK: Final = 8 << 20

_PROGRESS: Final = 64 << 10
"""The bytes that a try must have brought for the tries to be counted from zero."""

T = TypeVar("T")


class Retry:
    """Makes requests under the policy. Thread-safe; a subclass may count requests, and end the pauses."""

    def call(self, request: Callable[[], T]) -> T:
        """The result of ``request``, repeated after an error that may pass. Raises the last error."""
        tries = Tries(self)
        while True:
            tries.begin()
            try:
                return request()
            except StoreError as error:
                tries.failed(error)

    def began(self) -> None:
        """Note that a request is about to be made."""

    def again(self) -> None:
        """Note that a request failed, and will be repeated."""

    def wait(self, seconds: float) -> None:
        """Wait before a request is repeated."""
        time.sleep(seconds)

    def pause(self, attempt: int) -> None:
        """Wait after try ``attempt``, counted from 1; for a random time, so that readers do not keep step."""
        most = PAUSES.after(attempt)
        self.wait(random.uniform(most / 2, most))  # noqa: S311  # no secret


class Tries:
    """The tries of one read, which may continue where a try broke off."""

    def __init__(self, retry: Retry) -> None:
        """Start with no try made."""
        self._retry = retry
        self._attempt = 0
        self._since = time.monotonic()

    def begin(self) -> None:
        """Count the try that begins now."""
        self._attempt += 1
        self._retry.began()

    def progressed(self) -> None:
        """Count the tries from zero: the read has come far enough."""
        self._attempt = 0
        self._since = time.monotonic()

    def failed(self, error: StoreError) -> None:
        """Wait until the next try, or raise ``error`` if it is final or the tries are used up."""
        late = time.monotonic() - self._since >= SECONDS
        if not isinstance(error, UnknownOutcome) or self._attempt >= ATTEMPTS or late:
            raise error
        self._retry.again()
        self._retry.pause(self._attempt or 1)


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


def put_once(store: Store, key: str, body: bytes) -> str:
    """Create ``key`` with ``body``, or find that it holds ``body`` already; return the ETag.

    The write is tried again if the store has no such object after an unknown outcome. The call may be repeated after
    any failure.

    Raises:
        PreconditionFailed: the key holds other bytes.
    """
    tries = Tries(Retry())
    while True:
        tries.begin()
        try:
            return store.put(key, body, if_none_match=True)
        except (PreconditionFailed, UnknownOutcome) as error:
            failure = error
        try:
            stored = store.get(key)
        except NotFound:
            tries.failed(failure)
            continue
        if stored.body != body:
            rule = "exists with other content; it is written once and never replaced"
            raise PreconditionFailed(key, rule) from failure
        return stored.etag


def put_over(store: Store, key: str, body: bytes) -> str:
    """Write ``key`` over any content, again after an unknown outcome; return the ETag.

    For objects that have one writer, or for which the last write counts.
    """
    return Retry().call(lambda: store.put(key, body))
