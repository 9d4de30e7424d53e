"""A remote tier made by hand, and what the tests of its readers share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.support.raw_builder import RawBuilder
from tidemark.storage import Storage
from tidemark.store import ObjectInfo, Store, StoreOptions, open_store


@dataclass(frozen=True)
class RemoteStore:
    """An empty place to store raw in: a directory, or a prefix in a bucket of a real S3 server."""

    url: str
    prefix: str = ""
    options: StoreOptions = field(default_factory=StoreOptions)

    @property
    def store(self) -> Store:
        """The store, for writing and looking."""
        return open_store(self.url, self.options)

    def raw(self, topic: str = "orders") -> RawBuilder:
        """A builder of what agents write of a topic of the cluster ``east``."""
        return RawBuilder(self.store, topic=topic, prefix=self.prefix)

    def storage(self, *, entropy_bits: int = 0) -> Storage:
        """The remote tier of the cluster ``east``, as readers open it."""
        url = f"{self.url}/{self.prefix}" if self.prefix else self.url
        return Storage.at(url, "east", entropy_bits=entropy_bits, options=self.options)

    def counted(self) -> tuple[Storage, Counting]:
        """... and what counts its requests."""
        storage = self.storage()
        counting = Counting(storage.store(self.url))
        return storage.through(lambda _: counting), counting


class Counting:
    """A store that counts its requests by kind, and remembers which keys were read and what was listed."""

    def __init__(self, inner: Store) -> None:
        """All goes to ``inner``."""
        self._inner = inner
        self.url = inner.url
        self.requests: Counter[str] = Counter()
        self.keys: list[str] = []

    def reset(self) -> None:
        """Count from zero."""
        self.requests.clear()
        self.keys.clear()

    def list(self, prefix: str, *, start_after: str | None = None) -> Iterator[ObjectInfo]:
        """Counts a request, and one more for each thousand keys."""
        self.requests["list"] += 1
        self.keys.append(f"{prefix}>{start_after or ''}")
        for number, info in enumerate(self._inner.list(prefix, start_after=start_after), 1):
            self.requests["list"] += number % 1000 == 0
            self.requests["listed"] += 1
            yield info

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)

        def counted(key: str, *args: Any, **options: Any) -> Any:
            self.requests[name] += 1
            self.keys.append(key)
            return method(key, *args, **options)

        return counted
