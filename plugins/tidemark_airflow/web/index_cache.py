"""A cluster's watermark indexes as the page reads them: listed at each look, fetched where changed, kept packed.

The triggerer's scan keeps what waking needs and tells how it fares; a page needs all that an index says, of the one
topic that somebody looks at. So the bodies are kept as they came, compressed, with the topics that each names: a few
megabytes for thousands of brokers, and only what names a topic is parsed for it.
"""

from __future__ import annotations

import logging
import zlib
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from tidemark.concurrency import in_parallel
from tidemark.endpoints import resolver_of
from tidemark.errors import FormatError, NotFound, TidemarkError
from tidemark.formats.base import canonical, parse_json
from tidemark.formats.keys import ControlKeys
from tidemark.formats.watermark_index import LeaderEntry, WatermarkIndex, as_stored, leaders, listed
from tidemark.store import ObjectInfo, open_store
from tidemark.topics import Deployment

_READERS = 16
_MOST_TOLD: Final = 3
_NEVER: Final = datetime.fromtimestamp(0, UTC)

log = logging.getLogger(__name__)


class _Packed(NamedTuple):
    """An index under its key: ETag, topics, compressed bytes, when the store got it, and why it cannot be read now."""

    key: str
    etag: str = ""
    topics: frozenset[str] = frozenset()
    body: bytes = b""
    modified: datetime = _NEVER
    failure: str = ""


class IndexCache:
    """The indexes of one cluster in the deployment's default bucket, which name all its partitions."""

    def __init__(self, deployment: Deployment, cluster: str) -> None:
        """Nothing is read yet."""
        default = resolver_of(deployment.raw).default()
        self._store = open_store(default.store, deployment.store)
        self._folder = ControlKeys(default.prefix, cluster).indexes
        self._known: dict[str, _Packed] = {}
        self._failure = ""

    def look(self) -> None:
        """Read what has changed. What was read before is kept where that fails, and :meth:`failure_of` says why."""
        try:
            infos = {info.key: info for info in listed(self._store, self._folder)}
        except (TidemarkError, OSError) as error:
            log.warning("%s: not listed", self._folder, exc_info=True)
            self._failure = str(error)
            return
        stale = [info for key, info in infos.items() if self._etag(key) != info.etag]
        fresh = {one.key: one for one in in_parallel(self._fetch, stale, _READERS)}
        # At once, for other threads read it meanwhile.
        self._known = {key: fresh.get(key) or self._known[key] for key in infos}
        self._failure = ""

    def failure_of(self, topic: str) -> str:
        """Which indexes that may tell of ``topic`` cannot be read, and why; empty if all can.

        One that was read before may tell of the topics that it named then, any other of each topic.
        """
        unread = [one for one in self._known.values() if one.failure and (topic in one.topics or not one.body)]
        more = [f"and {len(unread) - _MOST_TOLD} more"] if len(unread) > _MOST_TOLD else []
        return "; ".join([*filter(None, [self._failure]), *(one.failure for one in unread[:_MOST_TOLD]), *more])

    def leaders_of(self, topic: str) -> dict[int, LeaderEntry]:
        """Of each partition of ``topic``, the entry that counts and the broker that says it."""
        named = [part for one in self._known.values() if topic in one.topics and (part := self._part(one, topic))]
        return {at.partition: led for at, led in leaders(named).items()}

    def _part(self, packed: _Packed, topic: str) -> WatermarkIndex | None:
        """The index with the entries of ``topic`` alone; None if these do not parse."""
        found = parse_json(zlib.decompress(packed.body), packed.key)
        found["entries"] = [one for one in found["entries"] if one["topic"] == topic]
        try:
            return as_stored(WatermarkIndex.from_bytes(canonical(found), packed.key), packed.modified)
        except FormatError as error:
            self._known[packed.key] = packed._replace(failure=str(error))
            return None

    def _etag(self, key: str) -> str:
        known = self._known.get(key)
        return known.etag if known else ""

    def _fetch(self, info: ObjectInfo) -> _Packed:
        """The index as it is now; as it was, with the reason, where it cannot be read."""
        key, etag = info.key, info.etag
        before = self._known.get(key, _Packed(key))
        try:
            body = self._store.get(key, limit=WatermarkIndex.most_bytes).body
            topics = _topics(parse_json(body, key), key)
        except NotFound:
            return before._replace(etag=etag)  # removed since it was listed
        except (TidemarkError, OSError) as error:
            if str(error) != before.failure:
                log.warning("%s is not read; what its broker said before still counts: %s", key, error)
            # One that does not parse is not read again before it changes.
            return before._replace(etag=etag if isinstance(error, FormatError) else "", failure=str(error))
        return _Packed(key, etag, topics, zlib.compress(body, 1), info.modified)


def _topics(index: Any, key: str) -> frozenset[str]:
    """The topics that a parsed index names."""
    entries = index.get("entries") if isinstance(index, dict) else None
    if not isinstance(entries, list):
        raise FormatError(key, "is not a watermark index: it has no list of entries")
    topics: set[str] = set()
    for one in entries:
        name = one.get("topic") if isinstance(one, dict) else None
        if not isinstance(name, str):
            raise FormatError(key, "is not a watermark index: an entry names no topic")
        topics.add(name)
    return frozenset(topics)
