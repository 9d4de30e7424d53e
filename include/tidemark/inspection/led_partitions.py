"""The agents' reports of the partitions that a cluster's brokers lead, from watermark indexes and heads.

An index shows new packs within a minute, a head at once. So the age of unstored bytes in an index, or the end of the
stored bytes, may be out of date by more than a topic's ``freshness``; a head then has the newer state.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from tidemark.endpoints import resolver_of
from tidemark.formats.keys import Endpoint, TopicPartition
from tidemark.formats.raw.head import Head, HeadEntry, parse_head
from tidemark.formats.raw.watermark_index import IndexEntry, LeaderEntry, WatermarkIndex, leaders
from tidemark.formats.table.object_cache import ObjectCache, log_failures, read_indexes
from tidemark.storage import Storage
from tidemark.topics import Deployment

log = logging.getLogger(__name__)


def indexes_of(deployment: Deployment, cluster: str) -> ObjectCache[WatermarkIndex]:
    """All indexes of the default bucket, which cover every partition. Raises StoreError or FormatError."""
    of = Storage(cluster, deployment.raw, deployment.store).cluster_store()
    return read_indexes(of.store, of.keys.indexes)


def led_partitions(deployment: Deployment, cluster: str) -> Mapping[TopicPartition, LeaderEntry]:
    """The valid entry of each partition, from the current indexes and heads. Raises StoreError or FormatError."""
    return leaders_of(deployment, cluster, indexes_of(deployment, cluster).kept.values())


def leaders_of(
    deployment: Deployment, cluster: str, indexes: Iterable[WatermarkIndex]
) -> Mapping[TopicPartition, LeaderEntry]:
    """The valid entry of each partition in ``indexes``, and in the heads if a topic has a ``freshness``.

    A head that cannot be read is left out: its broker's index reports the same state later.

    Raises:
        StoreError, FormatError: a folder of heads cannot be listed.
    """
    known = leaders(indexes)
    if not any(listed.live and listed.cluster == cluster for listed in deployment.listed):
        return known
    heads: list[Head] = []
    storage = Storage(cluster, deployment.raw, deployment.store)
    for endpoint in heads_of(deployment, cluster):
        of = storage.cluster_store(endpoint)
        cache = ObjectCache(
            of.store,
            of.keys.heads,
            lambda body, info: parse_head(body, info.key),
            limit=Head.most_bytes,
            on_failure=log_failures(log),
        )
        cache.look()
        heads += cache.kept.values()
    return with_heads(known, heads)


def heads_of(deployment: Deployment, cluster: str) -> list[Endpoint]:
    """The endpoints of a cluster's heads: the default, and the endpoints of topics with a ``freshness``."""
    resolver = resolver_of(deployment.raw)
    live = (
        resolver.resolve(cluster, listed.topic, 0)
        for listed in deployment.listed
        if listed.live and listed.cluster == cluster
    )
    return list({endpoint.root: endpoint for endpoint in (resolver.default(), *live)}.values())


def with_heads(
    known: Mapping[TopicPartition, LeaderEntry], heads: Iterable[Head]
) -> Mapping[TopicPartition, LeaderEntry]:
    """``known``, updated from ``heads`` of the same leadership, or of a later leadership of the same topic id."""
    entries = dict(known)
    for head in heads:
        for entry in head.entries:
            at = TopicPartition(entry.topic, entry.partition)
            leader = entries.get(at)
            if leader is None or leader.entry.topic_id != entry.topic_id or entry.leadership < leader.entry.leadership:
                continue
            same = entry.leadership == leader.entry.leadership
            updated = _with_head(leader.entry, entry) if same else _of_next_leader(leader.entry, entry)
            entries[at] = LeaderEntry(head.broker, updated)
    return entries


def _with_head(known: IndexEntry, head: HeadEntry) -> IndexEntry:
    """``known``, updated from the head of the same leadership."""
    news: dict[str, Any] = {
        "tail_end": max(known.tail_end or 0, head.tail_end),
        "packs_known": True,
        "high_watermark": max(known.high_watermark, head.high_watermark),
        "log_end_offset": max(known.log_end_offset, head.high_watermark),
    }
    if head.observed_at >= known.observed_at or not known.packs_known:
        news |= {"observed_at": head.observed_at, "oldest_unstored": head.oldest_unstored}
    return known.model_copy(update=news)


def _of_next_leader(known: IndexEntry, head: HeadEntry) -> IndexEntry:
    """``known``, replaced by the head of a later leadership: the log may have been truncated since."""
    news = {
        "restored": len(head.restores),
        "leader_epoch": head.epoch,
        "tail_end": head.tail_end,
        "packs_known": True,
        "high_watermark": head.high_watermark,
        "log_end_offset": head.high_watermark,
        "observed_at": head.observed_at,
        "oldest_unstored": head.oldest_unstored,
    }
    return known.model_copy(update=news)
