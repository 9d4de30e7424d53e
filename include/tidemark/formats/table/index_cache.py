"""The watermark indexes of one folder: listed at each :meth:`IndexCache.look`, and read if their ETag has changed.

It keeps other folders of small objects as well, such as the brokers' heads and copies of ledgers.

An index that cannot be read affects only its own broker: the broker's last index still counts, and the error is kept
beside it. An index that does not parse, or is too large, is not read again before it changes. An index that the store
failed to return is requested at each look.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Final, Generic, NamedTuple, TypeVar

from tidemark.errors import FormatError, NotFound, StoreError
from tidemark.formats.raw.watermark_index import WatermarkIndex, parse_index
from tidemark.store import ObjectInfo, Store

_READERS: Final = 16
_BATCH: Final = 64
"""Bodies in memory at a time."""
_MOST: Final = 100_000
"""Most indexes of a folder: thirty times as many as the largest clusters have brokers."""

Kept = TypeVar("Kept")
ReadError = StoreError | FormatError | OSError


class BrokerIndex(NamedTuple, Generic[Kept]):
    """One broker's index: the content of the last readable version, and the error of the present version.

    ``kept`` is None if no version was ever readable. ``etag`` is empty if the object must be read again.
    """

    etag: str
    kept: Kept | None = None
    error: ReadError | None = None


class IndexCache(Generic[Kept]):
    """A cache of the values that ``keep`` makes of each index; it raises FormatError for an invalid index.

    ``skip`` are keys that are not read, ``limit`` is the most bytes of an index. ``on_failure`` is called for each
    index that cannot be read, and again only when the reason changes. One thread looks at a time, while others may read
    ``brokers``.
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
        self.brokers: Mapping[str, BrokerIndex[Kept]] = {}
        """The indexes by key, since the last :meth:`look`."""
        self._store = store
        self._folder = folder
        self._keep = keep
        self._skip = skip
        self._limit = limit
        self._on_failure = on_failure

    @property
    def kept(self) -> dict[str, Kept]:
        """The values of all indexes that were ever readable, by key."""
        return {key: broker.kept for key, broker in self.brokers.items() if broker.kept is not None}

    @property
    def failures(self) -> dict[str, ReadError]:
        """The errors of present versions of indexes that cannot be read, by key."""
        return {key: broker.error for key, broker in self.brokers.items() if broker.error is not None}

    def look(self) -> int:
        """Read the indexes that have changed. Returns their number.

        Raises:
            FormatError: the folder has more than 100,000 indexes.
            StoreError: the folder cannot be listed. After either error, the earlier indexes are kept.
        """
        infos = self._listed()
        stale = [info for info in infos if info.key not in self.brokers or self.brokers[info.key].etag != info.etag]
        fresh: dict[str, BrokerIndex[Kept]] = {}
        # Fetching takes time, parsing takes the interpreter: one thread parses, so that an event loop gets its turn.
        with ThreadPoolExecutor(_READERS) as readers:
            for start in range(0, len(stale), _BATCH):
                batch = stale[start : start + _BATCH]
                for info, body in zip(batch, readers.map(self._fetch, batch), strict=True):
                    fresh[info.key] = self._read(info, body)
        # Replaced at once, because other threads read it meanwhile.
        self.brokers = {info.key: fresh.get(info.key) or self.brokers[info.key] for info in infos}
        return len(stale)

    def check(self) -> None:
        """Raise the first StoreError or OSError if the store returned none of the indexes: then it has failed."""
        of_store = [error for error in self.failures.values() if not isinstance(error, FormatError)]
        if of_store and len(of_store) == len(self.brokers):
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

    def _read(self, info: ObjectInfo, body: bytes | ReadError | None) -> BrokerIndex[Kept]:
        before: BrokerIndex[Kept] = self.brokers.get(info.key, BrokerIndex(""))
        if body is None:
            return before._replace(etag=info.etag)  # the next listing does not have it
        if isinstance(body, bytes):
            try:
                return BrokerIndex(info.etag, self._keep(body, info))
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


def read_indexes(store: Store, folder: str) -> IndexCache[WatermarkIndex]:
    """The current indexes in ``folder``.

    Raises:
        FormatError: there are too many indexes.
        StoreError: they cannot be listed, or the store returned none of them.
    """
    indexes = IndexCache(store, folder, parse_index)
    indexes.look()
    indexes.check()
    return indexes
