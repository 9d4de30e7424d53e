"""A store whose segments can be told not to be readable, while all else of it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

from tidemark.errors import Refused
from tidemark.storage import Storage
from tidemark.store import Body, Store

Where = Callable[[str], bool]


def nowhere(_: str) -> bool:
    """Of no object."""
    return False


class Shaky:
    """``refuses`` and ``damages`` say of which keys ranges are refused, or come with a bit turned over."""

    def __init__(self, inner: Store) -> None:
        """All goes to ``inner``."""
        self._inner = inner
        self.url = inner.url
        self.refuses: Where = nowhere
        self.damages: Where = nowhere
        self.refused = 0

    @contextmanager
    def stream(self, key: str, start: int, end: int, *, if_match: str | None = None) -> Iterator[Any]:
        """A range; refused for good, as if to ask again at once would not help."""
        if self.refuses(key):
            self.refused += 1
            raise Refused(key, "the disk is gone")
        with self._inner.stream(key, start, end, if_match=if_match) as body:
            yield Turned(body) if self.damages(key) else body

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class Turned:
    """A body whose pieces each end in a wrong byte."""

    def __init__(self, inner: Body) -> None:
        self._inner = inner
        self.etag, self.size = inner.etag, inner.size

    def readinto(self, target: memoryview) -> int:
        """See :class:`tidemark.store.Body`."""
        count = self._inner.readinto(target)
        target[count - 1] ^= 1
        return count


def shaken(storage: Storage) -> tuple[Storage, Shaky]:
    """``storage`` with a shaky store, and that store."""
    shaky = Shaky(storage.cluster_store().store)
    return storage.through(lambda _: cast("Store", shaky)), shaky


def of_segments_from(base: int) -> Where:
    """Of the logs of segments that begin at ``base`` or above."""
    return lambda key: key.endswith(".log") and int(key.rpartition("/")[2].partition(".")[0]) >= base
