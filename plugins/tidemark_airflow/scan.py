"""The brokers' watermark indexes of one cluster: listed often, read only where they changed.

Runs in a thread of the triggerer, once for all topics. A store that does not answer is remembered and tried again;
what was read before stays valid meanwhile, since a watermark only ever says what is there already.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import NamedTuple

from tidemark.endpoints import resolver_of
from tidemark.errors import FormatError, NotFound, TidemarkError
from tidemark.layout import ControlKeys
from tidemark.store import Store, StoreOptions, open_store
from tidemark.stored import Part, utc_now
from tidemark.topics import Deployment, TopicSettings
from tidemark.watermark_index import IndexEntry, WatermarkIndex, merge

_READERS = 8
_LONGEST_PAUSE = 60.0

log = logging.getLogger(__name__)


class Source(Part):
    """Where a topic's indexes lie, as (store, folder), and how often to look; equal sources share one scan."""

    places: tuple[tuple[str, str], ...]
    options: StoreOptions
    seconds: float

    @classmethod
    def of(cls, deployment: Deployment, topic: TopicSettings, seconds: float) -> Source:
        """The indexes of the topic's cluster: in the default bucket, and in the topic's own if it has one."""
        resolver = resolver_of(deployment.raw)
        endpoints = resolver.default(), resolver.resolve(topic.cluster, topic.topic, 0)
        places = {(one.store, ControlKeys(one.prefix, topic.cluster).indexes) for one in endpoints}
        return cls(places=tuple(sorted(places)), options=deployment.store, seconds=seconds)


class At(NamedTuple):
    """One index object."""

    store: str
    key: str


class Scan(NamedTuple):
    """The entries that count, by topic; since when and why the store has not been readable, if so."""

    topics: Mapping[str, Sequence[IndexEntry]]
    failing_since: datetime | None = None
    failure: str = ""


class IndexScanner:
    """Reads one :class:`Source`, again and again."""

    def __init__(self, source: Source, open_one: Callable[[str, StoreOptions], Store] = open_store) -> None:
        """Opens the stores, which imports their client: not on an event loop."""
        self._source = source
        self._stores = {url: open_one(url, source.options) for url, _ in source.places}
        self._known: dict[At, tuple[str, WatermarkIndex | None]] = {}
        self._last = Scan({})
        self._failures = 0

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
            log.warning("%s: not read, %d times in a row", self._source.places, self._failures, exc_info=True)
            self._last = Scan(self._last.topics, self._last.failing_since or utc_now(), str(error))
            return self._last
        self._failures = 0
        if changed or self._last.failing_since:
            self._last = Scan(self._by_topic())
        return self._last

    def _read_changes(self) -> bool:
        listed = {
            At(url, info.key): info.etag
            for url, folder in self._source.places
            for info in self._stores[url].list(folder)
            if info.key.endswith(".json")
        }
        stale = [at for at, etag in listed.items() if self._known.get(at, ("", None))[0] != etag]
        gone = self._known.keys() - listed.keys()
        for at in gone:
            del self._known[at]
        with ThreadPoolExecutor(_READERS) as readers:
            for at, index in zip(stale, readers.map(self._read, stale), strict=True):
                self._known[at] = listed[at], index
        return bool(stale or gone)

    def _read(self, at: At) -> WatermarkIndex | None:
        """The index. One that does not parse is logged once, and the broker's last good one still counts."""
        try:
            return WatermarkIndex.from_bytes(self._stores[at.store].get(at.key).body, at.key)
        except NotFound:
            return None
        except FormatError:
            log.exception("a watermark index does not parse; what its broker said before still counts")
            return self._known.get(at, ("", None))[1]

    def _by_topic(self) -> Mapping[str, Sequence[IndexEntry]]:
        topics: dict[str, list[IndexEntry]] = defaultdict(list)
        for entry in merge(index for _, index in self._known.values() if index is not None).values():
            topics[entry.topic].append(entry)
        return dict(topics)
