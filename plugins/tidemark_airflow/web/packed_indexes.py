"""A cluster's watermark indexes as the page reads them: listed at each look, fetched where changed, kept packed.

The triggerer's scan keeps what waking needs and tells how it fares; a page needs all that an index says, of the one
topic that somebody looks at. So the bodies are kept as they came, compressed, with the topics that each names: a few
megabytes for thousands of brokers, and only what names a topic is parsed for it.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tidemark.endpoints import resolver_of
from tidemark.errors import FormatError, TidemarkError
from tidemark.formats.base import canonical, parse_json
from tidemark.formats.head import Head, parse_head
from tidemark.formats.index_cache import BrokerIndex, IndexCache, log_failures
from tidemark.formats.keys import ControlKeys, TopicPartition
from tidemark.formats.watermark_index import LeaderEntry, WatermarkIndex, leaders, parse_index
from tidemark.inspection.led_partitions import heads_of, with_heads
from tidemark.store import ObjectInfo, open_store
from tidemark.topics import Deployment

_MOST_TOLD: Final = 3

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Packed:
    """An index: how it was listed, the topics that it names, its compressed bytes, and why these do not parse."""

    info: ObjectInfo
    topics: frozenset[str]
    body: bytes
    failure: str = ""


class PackedIndexes:
    """The indexes of one cluster in the default bucket, which name all its partitions, and its brokers' heads."""

    def __init__(self, deployment: Deployment, cluster: str) -> None:
        """Nothing is read yet."""
        default = resolver_of(deployment.raw).default()
        self._folder = ControlKeys(default.prefix, cluster).indexes
        store = open_store(default.store, deployment.store)
        self._indexes = IndexCache(store, self._folder, _pack, on_failure=log_failures(log))
        self._heads = [
            IndexCache(
                open_store(one.store, deployment.store),
                ControlKeys(one.prefix, cluster).heads,
                _pack,
                limit=Head.most_bytes,
                on_failure=log_failures(log),
            )
            for one in (heads_of(deployment, cluster) if deployment.live_topics(cluster) else ())
        ]
        self._failure = ""

    def look(self) -> None:
        """Read what has changed. What was read before is kept where that fails, and :meth:`failure_of` says why."""
        try:
            for one in (self._indexes, *self._heads):
                one.look()
        except (TidemarkError, OSError) as error:
            log.warning("%s: not listed", self._folder, exc_info=True)
            self._failure = str(error)
        else:
            self._failure = ""

    def failure_of(self, topic: str | None = None) -> str:
        """Which indexes that may tell of ``topic`` (of any) cannot be read, and why; empty if all can.

        One that was read before may tell of the topics that it named then, any other of each topic.
        """
        failures = [failure for broker in self._indexes.brokers.values() if (failure := _failure_of(broker, topic))]
        more = [f"and {len(failures) - _MOST_TOLD} more"] if len(failures) > _MOST_TOLD else []
        return "; ".join([*filter(None, [self._failure]), *failures[:_MOST_TOLD], *more])

    def leaders_of(self, topic: str) -> dict[int, LeaderEntry]:
        """Of each partition of ``topic``, the entry that counts and the broker that says it."""
        naming = (packed for packed in self._indexes.kept.values() if topic in packed.topics)
        indexes = [index for packed in naming if (index := _unpack(packed, topic))]
        packed = (one for heads in self._heads for one in heads.kept.values() if topic in one.topics)
        heads = [head for one in packed if (head := _unpack_head(one, topic))]
        return {tp.partition: leader for tp, leader in with_heads(leaders(indexes), heads).items()}

    def leaders(self) -> Mapping[TopicPartition, LeaderEntry]:
        """The same of all partitions of the cluster; every index is parsed for it."""
        return leaders([index for packed in self._indexes.kept.values() if (index := _unpack(packed))])


def _pack(body: bytes, info: ObjectInfo) -> _Packed:
    return _Packed(info, _topics(parse_json(body, info.key), info.key), zlib.compress(body, 1))


def _unpack(packed: _Packed, topic: str | None = None) -> WatermarkIndex | None:
    """The index with the entries of ``topic`` alone, or with all; None if these do not parse."""
    index = parse_json(zlib.decompress(packed.body), packed.info.key)
    if topic is not None:
        index["entries"] = [entry for entry in index["entries"] if entry["topic"] == topic]
    try:
        return parse_index(canonical(index), packed.info)
    except FormatError as error:
        packed.failure = str(error)
        return None


def _unpack_head(packed: _Packed, topic: str) -> Head | None:
    """The head with the entries of ``topic`` alone; None if these do not parse: an index tells the same later."""
    head = parse_json(zlib.decompress(packed.body), packed.info.key)
    head["entries"] = [entry for entry in head["entries"] if entry["topic"] == topic]
    try:
        return parse_head(canonical(head), packed.info.key)
    except FormatError:
        log.warning("%s: not read", packed.info.key, exc_info=True)
        return None


def _failure_of(broker: BrokerIndex[_Packed], topic: str | None) -> str:
    """Why the broker's index cannot be read, if it may tell of ``topic``."""
    if broker.kept is not None and topic is not None and topic not in broker.kept.topics:
        return ""
    return str(broker.error) if broker.error else broker.kept.failure if broker.kept else ""


def _topics(index: Any, key: str) -> frozenset[str]:
    """The topics that a parsed index names."""
    entries = index.get("entries") if isinstance(index, dict) else None
    if not isinstance(entries, list):
        raise FormatError(key, "is not a watermark index: it has no list of entries")
    topics: set[str] = set()
    for entry in entries:
        name = entry.get("topic") if isinstance(entry, dict) else None
        if not isinstance(name, str):
            raise FormatError(key, "is not a watermark index: an entry names no topic")
        topics.add(name)
    return frozenset(topics)
