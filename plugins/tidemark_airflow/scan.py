"""The brokers' watermark indexes of one cluster: listed often, read only where they changed.

Runs in a thread of the triggerer, once for all topics. A store that does not answer is remembered and tried again;
what was read before stays valid meanwhile, since a watermark only ever says what is there already.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import NamedTuple

from tidemark.endpoints import resolver_of
from tidemark.errors import FormatError, NotFound, TidemarkError
from tidemark.layout import ControlKeys
from tidemark.store import Store, StoreOptions, open_store
from tidemark.stored import Part, utc_now
from tidemark.topics import Deployment
from tidemark.watermark_index import IndexEntry, WatermarkIndex, merge

_READERS = 8
_LONGEST_PAUSE = 60.0

log = logging.getLogger(__name__)


class Source(Part):
    """Where a cluster's indexes lie and how often to look; triggers with equal sources share one scan."""

    store: str
    folder: str
    options: StoreOptions
    seconds: float

    @classmethod
    def of(cls, deployment: Deployment, cluster: str, seconds: float) -> Source:
        """The indexes of ``cluster``, in the deployment's default bucket."""
        endpoint = resolver_of(deployment.raw).default()
        folder = ControlKeys(endpoint.prefix, cluster).indexes
        return cls(store=endpoint.store, folder=folder, options=deployment.store, seconds=seconds)


class Scan(NamedTuple):
    """The entries that count, by topic; since when and why the store has not been readable, if so."""

    topics: Mapping[str, Sequence[IndexEntry]]
    failing_since: datetime | None = None
    failure: str = ""


class IndexScanner:
    """Reads one :class:`Source`, again and again."""

    def __init__(self, source: Source, store: Store) -> None:
        self._source = source
        self._store = store
        self._known: dict[str, tuple[str, WatermarkIndex | None]] = {}
        self._last = Scan({})
        self._failures = 0

    @classmethod
    def open(cls, source: Source) -> IndexScanner:
        """A scanner with its store; imports and connects, so not on an event loop."""
        return cls(source, open_store(source.store, source.options))

    @property
    def pause(self) -> float:
        """Seconds until the next :meth:`scan`: twice as long after each failure in a row, up to a minute."""
        seconds = self._source.seconds
        return max(seconds, min(_LONGEST_PAUSE, seconds * 2.0 ** min(self._failures, 16)))

    def scan(self) -> Scan:
        """The indexes as they are now; a store that fails is logged and told of in the scan, never raised."""
        try:
            changed = self._read_changes()
        except (TidemarkError, OSError) as error:
            self._failures += 1
            log.warning("watermark indexes under %s were not read (%d in a row)", self._name, self._failures, exc_info=True)
            self._last = Scan(self._last.topics, self._last.failing_since or utc_now(), str(error))
            return self._last
        self._failures = 0
        if changed or self._last.failing_since:
            self._last = Scan(self._by_topic())
        return self._last

    def _read_changes(self) -> bool:
        listed = {info.key: info.etag for info in self._store.list(self._source.folder) if info.key.endswith(".json")}
        stale = [key for key, etag in listed.items() if self._known.get(key, ("", None))[0] != etag]
        gone = self._known.keys() - listed.keys()
        for key in gone:
            del self._known[key]
        with ThreadPoolExecutor(_READERS) as readers:
            for key, index in zip(stale, readers.map(self._read, stale), strict=True):
                self._known[key] = listed[key], index
        return bool(stale or gone)

    def _read(self, key: str) -> WatermarkIndex | None:
        """The index. One that does not parse is logged once, and the broker's last good one still counts."""
        try:
            return WatermarkIndex.from_bytes(self._store.get(key).body, key)
        except NotFound:
            return None
        except FormatError:
            log.exception("a watermark index does not parse; what its broker said before still counts")
            return self._known.get(key, ("", None))[1]

    def _by_topic(self) -> Mapping[str, Sequence[IndexEntry]]:
        topics: dict[str, list[IndexEntry]] = defaultdict(list)
        for entry in merge(index for _, index in self._known.values() if index is not None).values():
            topics[entry.topic].append(entry)
        return dict(topics)

    @property
    def _name(self) -> str:
        return f"{self._source.store}/{self._source.folder}"
