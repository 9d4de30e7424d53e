"""What the agents of a cluster report of the partitions that their brokers lead, in watermark indexes and heads.

An index tells of packs within a minute, a head at once. So what an index says of the age of unstored bytes, or of where
the stored ones end, may be old by more than a topic's ``freshness``, where the head says that they have been packed
since.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from tidemark.endpoints import resolver_of
from tidemark.formats.head import Head, HeadEntry, parse_head
from tidemark.formats.index_cache import IndexCache, log_failures, read_indexes
from tidemark.formats.keys import ControlKeys, Endpoint, TopicPartition
from tidemark.formats.watermark_index import IndexEntry, LeaderEntry, WatermarkIndex, leaders
from tidemark.store import open_store
from tidemark.topics import Deployment

log = logging.getLogger(__name__)


def led_partitions(deployment: Deployment, cluster: str) -> Mapping[TopicPartition, LeaderEntry]:
    """The entry that counts for each partition, as indexes and heads have it now.

    Raises:
        StoreError, FormatError: they cannot be read.
    """
    default = resolver_of(deployment.raw).default()
    store = open_store(default.store, deployment.store)
    indexes = read_indexes(store, ControlKeys(default.prefix, cluster).indexes)
    return leaders_of(deployment, cluster, indexes.kept.values())


def leaders_of(
    deployment: Deployment, cluster: str, indexes: Iterable[WatermarkIndex]
) -> Mapping[TopicPartition, LeaderEntry]:
    """The entry that counts for each partition by ``indexes``, and by the heads if a topic has a ``freshness``.

    A head that cannot be read is left out: its broker's index tells the same later.

    Raises:
        StoreError, FormatError: a folder of heads cannot be listed.
    """
    known = leaders(indexes)
    if not deployment.live_topics(cluster):
        return known
    heads: list[Head] = []
    for endpoint in heads_of(deployment, cluster):
        store, folder = open_store(endpoint.store, deployment.store), ControlKeys(endpoint.prefix, cluster).heads
        cache = IndexCache(
            store,
            folder,
            lambda body, info: parse_head(body, info.key),
            limit=Head.most_bytes,
            on_failure=log_failures(log),
        )
        cache.look()
        heads += cache.kept.values()
    return with_heads(known, heads)


def heads_of(deployment: Deployment, cluster: str) -> list[Endpoint]:
    """Where a cluster's heads lie: in the default bucket, and where there are topics with a ``freshness``."""
    resolver = resolver_of(deployment.raw)
    live = (resolver.resolve(cluster, topic.topic, 0) for topic in deployment.live_topics(cluster))
    return list({(one.store, one.prefix): one for one in (resolver.default(), *live)}.values())


def with_heads(
    known: Mapping[TopicPartition, LeaderEntry], heads: Iterable[Head]
) -> Mapping[TopicPartition, LeaderEntry]:
    """``known`` with what ``heads`` say of the same leadership, or of a later one of the same topic id."""
    found = dict(known)
    for head in heads:
        for entry in head.entries:
            at = TopicPartition(entry.topic, entry.partition)
            leader = found.get(at)
            if leader is None or leader.entry.topic_id != entry.topic_id or entry.epoch < leader.entry.leader_epoch:
                continue
            same = entry.epoch == leader.entry.leader_epoch
            said = _with_head(leader.entry, entry) if same else _of_next_leader(leader.entry, entry)
            found[at] = LeaderEntry(head.broker, said)
    return found


def _with_head(known: IndexEntry, head: HeadEntry) -> IndexEntry:
    """``known`` with what the head of the same leadership says beyond it."""
    said: dict[str, Any] = {
        "tail_end": max(known.tail_end or 0, head.tail_end),
        "packs_known": True,
        "high_watermark": max(known.high_watermark, head.high_watermark),
        "log_end_offset": max(known.log_end_offset, head.high_watermark),
    }
    if head.observed_at >= known.observed_at or not known.packs_known:
        said |= {"observed_at": head.observed_at, "oldest_unstored": head.oldest_unstored}
    return known.model_copy(update=said)


def _of_next_leader(known: IndexEntry, head: HeadEntry) -> IndexEntry:
    """``known`` as the head of a later leadership has it: the log may have been cut off since."""
    said = {
        "leader_epoch": head.epoch,
        "tail_end": head.tail_end,
        "packs_known": True,
        "high_watermark": head.high_watermark,
        "log_end_offset": head.high_watermark,
        "observed_at": head.observed_at,
        "oldest_unstored": head.oldest_unstored,
    }
    return known.model_copy(update=said)
