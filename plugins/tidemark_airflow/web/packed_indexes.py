"""A cluster's watermark indexes for the page: listed at each look, fetched if changed, kept packed.

The triggerer's scan keeps only the fields that waking needs; a page needs the whole entries of the topic that a user
looks at. So the bodies are kept unchanged and compressed, with the topics that each names: a few megabytes for
thousands of brokers, and only indexes that name a topic are parsed for it.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any, Final

from tidemark.endpoints import resolver_of
from tidemark.errors import FormatError, TidemarkError
from tidemark.formats.base import StoredObject, canonical, parse_json
from tidemark.formats.keys import ControlKeys, TopicPartition
from tidemark.formats.raw.head import Head, parse_head
from tidemark.formats.raw.watermark_index import LeaderEntry, WatermarkIndex, leaders, parse_index
from tidemark.formats.table.object_cache import CachedObject, ObjectCache, log_failures
from tidemark.inspection.agent_reports import heads_of, with_heads
from tidemark.store import ObjectInfo, open_store
from tidemark.topics import Deployment

_MOST_LISTED: Final = 3

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Packed:
    """An index: its listing, the topics that it names, its compressed bytes, and the error of parsing them.

    ``agent`` is a watermark index without its entries: who wrote it, and when. A head has none.
    """

    info: ObjectInfo
    topics: frozenset[str]
    body: bytes
    agent: WatermarkIndex | None
    failure: str = ""


class PackedIndexes:
    """The indexes of one cluster in the default bucket, which name all its partitions, and its brokers' heads."""

    def __init__(self, deployment: Deployment, cluster: str) -> None:
        """Nothing is read yet."""
        default = resolver_of(deployment.raw).default()
        self._folder = ControlKeys(default.prefix, cluster).indexes
        store = open_store(default.store, deployment.store)
        self._indexes = ObjectCache(store, self._folder, partial(_pack, WatermarkIndex), on_failure=log_failures(log))
        self._heads = [
            ObjectCache(
                open_store(endpoint.store, deployment.store),
                ControlKeys(endpoint.prefix, cluster).heads,
                partial(_pack, Head),
                limit=Head.most_bytes,
                on_failure=log_failures(log),
            )
            for endpoint in (heads_of(deployment, cluster) if deployment.live_topics(cluster) else ())
        ]
        self._failure = ""

    def look(self) -> None:
        """Read the changes. If that fails, earlier values are kept, and :meth:`failure_of` has the reason."""
        try:
            for cache in (self._indexes, *self._heads):
                cache.look()
        except (TidemarkError, OSError) as error:
            log.warning("%s: not listed", self._folder, exc_info=True)
            self._failure = str(error)
        else:
            self._failure = ""

    def failure_of(self, topic: str | None = None) -> str:
        """The unreadable indexes that may name ``topic`` (or any topic), with reasons; empty if all can be read.

        An index that was read before may name the topics of that time, any other index may name each topic.
        """
        failures = [failure for cached in self._indexes.objects.values() if (failure := _failure_of(cached, topic))]
        more = [f"and {len(failures) - _MOST_LISTED} more"] if len(failures) > _MOST_LISTED else []
        return "; ".join([*filter(None, [self._failure]), *failures[:_MOST_LISTED], *more])

    def leaders_of(self, topic: str) -> dict[int, LeaderEntry]:
        """The counting entry of each partition of ``topic``, with its broker."""
        naming = (packed for packed in self._indexes.kept.values() if topic in packed.topics)
        indexes = [index for packed in naming if (index := _unpack(packed, topic))]
        naming = (packed for heads in self._heads for packed in heads.kept.values() if topic in packed.topics)
        heads = [head for packed in naming if (head := _unpack_head(packed, topic))]
        return {tp.partition: leader for tp, leader in with_heads(leaders(indexes), heads).items()}

    def agents_of(self, topic: str, brokers: Collection[int]) -> list[WatermarkIndex]:
        """The indexes of ``brokers`` that name ``topic``, by broker, without their entries."""
        naming = (packed.agent for packed in self._indexes.kept.values() if topic in packed.topics)
        return sorted(
            (index for index in naming if index is not None and index.broker in brokers), key=attrgetter("broker")
        )

    def leaders(self) -> Mapping[TopicPartition, LeaderEntry]:
        """The counting entries of all partitions of the cluster; every index is parsed for it."""
        return leaders([index for packed in self._indexes.kept.values() if (index := _unpack(packed))])


def _pack(kind: type[StoredObject], body: bytes, info: ObjectInfo) -> _Packed:
    index = parse_json(body, info.key)
    kind.refuse_later(index, info.key)
    topics = _topics(index, info.key)
    agent = parse_index(canonical({**index, "entries": []}), info) if kind is WatermarkIndex else None
    return _Packed(info, topics, zlib.compress(body, 1), agent)


def _unpack(packed: _Packed, topic: str | None = None) -> WatermarkIndex | None:
    """The index with only the entries of ``topic``, or with all; None if it does not parse."""
    index = parse_json(zlib.decompress(packed.body), packed.info.key)
    if topic is not None:
        index["entries"] = [entry for entry in index["entries"] if entry["topic"] == topic]
    try:
        return parse_index(canonical(index), packed.info)
    except FormatError as error:
        packed.failure = str(error)
        return None


def _unpack_head(packed: _Packed, topic: str) -> Head | None:
    """The head with only the entries of ``topic``; None if it does not parse: an index has them later."""
    head = parse_json(zlib.decompress(packed.body), packed.info.key)
    head["entries"] = [entry for entry in head["entries"] if entry["topic"] == topic]
    try:
        return parse_head(canonical(head), packed.info.key)
    except FormatError:
        log.warning("%s: not read", packed.info.key, exc_info=True)
        return None


def _failure_of(cached: CachedObject[_Packed], topic: str | None) -> str:
    """The reason why the broker's index cannot be read, if it may name ``topic``."""
    if cached.kept is not None and topic is not None and topic not in cached.kept.topics:
        return ""
    return str(cached.error) if cached.error else cached.kept.failure if cached.kept else ""


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
