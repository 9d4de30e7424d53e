"""A cluster's watermark indexes as the page reads them: listed at each look, fetched where changed, kept packed.

The triggerer's scan keeps what waking needs and tells how it fares; a page needs all that an index says, of the one
topic that somebody looks at. So the bodies are kept as they came, compressed, with the topics that each names: a few
megabytes for thousands of brokers, and only what names a topic is parsed for it.
"""

from __future__ import annotations

import json
import logging
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from tidemark.endpoints import resolver_of
from tidemark.errors import FormatError, NotFound, TidemarkError
from tidemark.layout import ControlKeys
from tidemark.store import open_store
from tidemark.stored import canonical
from tidemark.topics import Deployment
from tidemark.watermark_index import Led, WatermarkIndex, leaders

_READERS = 16

log = logging.getLogger(__name__)


class _Packed(NamedTuple):
    """An index under its key: its ETag, the topics that it names, its compressed bytes."""

    key: str
    etag: str
    topics: frozenset[str] = frozenset()
    body: bytes = b""


class Indexes:
    """The indexes of one cluster in the deployment's default bucket, which name all its partitions."""

    def __init__(self, deployment: Deployment, cluster: str) -> None:
        """Nothing is read yet."""
        default = resolver_of(deployment.raw).default()
        self._store = open_store(default.store, deployment.store)
        self._folder = ControlKeys(default.prefix, cluster).indexes
        self._known: dict[str, _Packed] = {}

    def look(self) -> str:
        """Read what has changed; why that failed, or nothing. What was read before is kept then."""
        try:
            listed = {info.key: info.etag for info in self._store.list(self._folder) if info.key.endswith(".json")}
            stale = [_Packed(*one) for one in listed.items() if self._etag(one[0]) != one[1]]
            with ThreadPoolExecutor(_READERS) as readers:
                fresh = {one.key: one for one in readers.map(self._fetch, stale)}
        except (TidemarkError, OSError) as error:
            log.warning("%s: not read", self._folder, exc_info=True)
            return str(error)
        # At once, for other threads read it meanwhile.
        self._known = {key: fresh.get(key) or self._known[key] for key in listed}
        return ""

    def leaders_of(self, topic: str) -> dict[int, Led]:
        """Of each partition of ``topic``, the entry that counts and the broker that says it."""
        named = [_part(one, topic) for one in self._known.values() if topic in one.topics]
        return {at.partition: led for at, led in leaders(named).items()}

    def _etag(self, key: str) -> str:
        known = self._known.get(key)
        return known.etag if known else ""

    def _fetch(self, stale: _Packed) -> _Packed:
        try:
            body = self._store.get(stale.key).body
        except NotFound:
            return stale  # removed since it was listed
        try:
            topics = frozenset(one["topic"] for one in json.loads(body)["entries"])
        except (ValueError, KeyError, TypeError) as error:
            raise FormatError(stale.key, f"is no watermark index: {error!r}") from error
        return stale._replace(topics=topics, body=zlib.compress(body, 1))


def _part(packed: _Packed, topic: str) -> WatermarkIndex:
    """The index with the entries of ``topic`` alone."""
    found = json.loads(zlib.decompress(packed.body))
    found["entries"] = [one for one in found["entries"] if one["topic"] == topic]
    return WatermarkIndex.from_bytes(canonical(found), packed.key)
