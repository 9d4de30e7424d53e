"""The small objects of one folder: listed at each :meth:`ObjectCache.look`, and read if their ETag has changed.

They are the brokers' watermark indexes or heads, or copies of ledgers.

An object that cannot be read affects no other: its last readable version still counts, and the error is kept beside it.
An object that does not parse, or is too large, is not read again before it changes. An object that the store failed to
return is requested at each look.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Final, Generic, NamedTuple, TypeVar

from tidemark.errors import FormatError, NotFound, StoreError
from tidemark.formats.raw.watermark_index import WatermarkIndex
from tidemark.store import ObjectInfo, Store

_READERS: Final = 16
_BATCH: Final = 64
"""Bodies in memory at a time."""
_MOST: Final = 100_000
"""Most objects of a folder: thirty times as many as the largest clusters have brokers."""

Kept = TypeVar("Kept")
ReadError = StoreError | FormatError | OSError


class CachedObject(NamedTuple, Generic[Kept]):
    """One object: the content of the last readable version, and the error of the present version.

    ``kept`` is None if no version was ever readable. ``etag`` is empty if the object must be read again.
    """

    etag: str
    kept: Kept | None = None
    error: ReadError | None = None


class ObjectCache(Generic[Kept]):
    """A cache of the values that ``keep`` makes of each object; it raises FormatError for an invalid one.

    ``skip`` are keys that are not read, ``limit`` is the most bytes of an object. ``on_failure`` is called for each
    object that cannot be read, and again only when the reason changes. One thread looks at a time, while others may
    read ``objects``.
    """

    def __init__(
        self,
        store: Store,
        folder: str,
        keep: Callable[[bytes, ObjectInfo], Kept],
        *,
        skip: Collection[str] = (),
        limit: int = WatermarkIndex.most_bytes,
        on_failure: Callable[[str, ReadError], None] | None = None,
    ) -> None:
        self.objects: Mapping[str, CachedObject[Kept]] = {}
        """The objects by key, since the last :meth:`look`."""
        self._store = store
        self._folder = folder
        self._keep = keep
        self._skip = skip
        self._limit = limit
        self._on_failure = on_failure

    @property
    def kept(self) -> dict[str, Kept]:
        """The values of all objects that were ever readable, by key."""
        return {key: cached.kept for key, cached in self.objects.items() if cached.kept is not None}

    @property
    def failures(self) -> dict[str, ReadError]:
        """The errors of present versions of objects that cannot be read, by key."""
        return {key: cached.error for key, cached in self.objects.items() if cached.error is not None}

    def look(self) -> int:
        """Read the objects that have changed. Returns their number.

        Raises:
            FormatError: the folder has more than 100,000 objects.
            StoreError: the folder cannot be listed. After either error, the earlier objects are kept.
        """
        infos = self._listed()
        stale = [info for info in infos if info.key not in self.objects or self.objects[info.key].etag != info.etag]
        fresh: dict[str, CachedObject[Kept]] = {}
        # Fetching takes time, parsing takes the interpreter: one thread parses, so that an event loop gets its turn.
        with ThreadPoolExecutor(_READERS) as readers:
            for start in range(0, len(stale), _BATCH):
                batch = stale[start : start + _BATCH]
                for info, body in zip(batch, readers.map(self._fetch, batch), strict=True):
                    fresh[info.key] = self._read(info, body)
        # Replaced at once, because other threads read it meanwhile.
        self.objects = {info.key: fresh.get(info.key) or self.objects[info.key] for info in infos}
        return len(stale)

    def check(self) -> None:
        """Raise the first StoreError or OSError if the store returned none of the objects: then it has failed."""
        of_store = [error for error in self.failures.values() if not isinstance(error, FormatError)]
        if of_store and len(of_store) == len(self.objects):
            raise of_store[0]

    def _listed(self) -> list[ObjectInfo]:
        infos = (info for info in self._store.list(self._folder) if info.key.endswith(".json"))
        listed = list(islice((info for info in infos if info.key not in self._skip), _MOST + 1))
        if len(listed) > _MOST:
            rule = f"has more than {_MOST:,} objects, not one for each broker; remove those that no agent writes"
            raise FormatError(self._folder, rule)
        return listed

    def _fetch(self, info: ObjectInfo) -> bytes | ReadError | None:
        """The object, or the error that prevents reading it; None if it was deleted after the listing."""
        try:
            return self._store.get(info.key, limit=self._limit).body
        except NotFound:
            return None
        except (StoreError, FormatError, OSError) as error:
            return error

    def _read(self, info: ObjectInfo, body: bytes | ReadError | None) -> CachedObject[Kept]:
        before: CachedObject[Kept] = self.objects.get(info.key, CachedObject(""))
        if body is None:
            return before._replace(etag=info.etag)  # the next listing does not have it
        if isinstance(body, bytes):
            try:
                return CachedObject(info.etag, self._keep(body, info))
            except FormatError as error:
                error.__cause__ = error.__context__ = None  # their frames hold the body, as long as the error is kept
                body = error.with_traceback(None)
        if self._on_failure and str(before.error) != str(body):
            self._on_failure(info.key, body)
        return before._replace(etag=info.etag if isinstance(body, FormatError) else "", error=body)


def log_failures(log: logging.Logger, level: int = logging.WARNING) -> Callable[[str, ReadError], None]:
    """An ``on_failure`` that logs each failure."""
    return lambda key, error: log.log(
        level, "%s cannot be read; the last version that could be read still counts: %s", key, error
    )
