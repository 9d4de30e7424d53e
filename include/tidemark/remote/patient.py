"""A store as the catalogue reads it: each request is tried again by itself where that may help.

To try a whole look at a partition again, which is half a dozen requests, would fail for good where each request fails
now and then. Nothing here writes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tidemark.errors import StoreError
from tidemark.remote.fetching import Requests
from tidemark.store import Fetched, ObjectInfo, Store


class Patient:
    """``inner``, whose small reads go by ``requests``; all else is the inner store's own."""

    def __init__(self, inner: Store, requests: Requests) -> None:
        self.url = inner.url
        self._inner = inner
        self._requests = requests

    def get(self, key: str, *, if_match: str | None = None) -> Fetched:
        """See :meth:`tidemark.store.base.Store.get`."""
        return self._requests.tried(lambda: self._inner.get(key, if_match=if_match))

    def get_range(self, key: str, start: int, end: int, *, if_match: str | None = None) -> bytes:
        """See :meth:`tidemark.store.base.Store.get_range`."""
        return self._requests.tried(lambda: self._inner.get_range(key, start, end, if_match=if_match))

    def head(self, key: str) -> ObjectInfo:
        """See :meth:`tidemark.store.base.Store.head`."""
        return self._requests.tried(lambda: self._inner.head(key))

    def list(self, prefix: str, *, start_after: str | None = None) -> Iterator[ObjectInfo]:
        """See :meth:`tidemark.store.base.Store.list`. A listing that breaks off goes on after the last key."""
        last, attempt = start_after, 1
        while True:
            self._requests.count()
            try:
                for info in self._inner.list(prefix, start_after=last):
                    yield info
                    last, attempt = info.key, 1
            except StoreError as error:
                self._requests.judge(error, attempt)
                attempt += 1
            else:
                return

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
