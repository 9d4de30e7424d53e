"""What agents report: the partitions that a cluster's brokers lead, and the topics that were ever seen.

A watermark index shows new packs within a minute, a head at once. So the age of unstored bytes in an index, or the end
of the stored bytes, may be out of date by more than a topic's ``freshness``; a head then has the newer state.

An agent that leads a partition records its topic below ``_topics/``, before there is a segment, and in its watermark
index. A topic in neither place was never seen: its name, its cluster, the bucket or the prefix is wrong, or no agent
runs there. An unknown topic must not look like a topic without records. A topic that was seen may have nothing landed
yet; that is no error.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, Final

from tidemark.config import hint
from tidemark.endpoints import resolver_of
from tidemark.errors import NeverSeen, NotFound
from tidemark.formats.keys import Endpoint, TopicPartition
from tidemark.formats.raw.head import Head, HeadEntry, parse_head
from tidemark.formats.raw.watermark_index import IndexEntry, LeaderEntry, WatermarkIndex, leaders
from tidemark.formats.table.object_cache import ObjectCache, log_failures
from tidemark.storage import ClusterStore, Storage
from tidemark.table.delta_table import TopicTable
from tidemark.topics import Deployment, TopicSettings

log = logging.getLogger(__name__)


def indexes_of(deployment: Deployment, cluster: str) -> ObjectCache[WatermarkIndex]:
    """All indexes of the default bucket, which cover every partition. Raises StoreError or FormatError."""
    return Storage(cluster, deployment.raw, deployment.store).cluster_store().indexes()


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


_LISTED: Final = 10_000
"""Names that are searched for one like the topic's."""


def check_begun(table: TopicTable, ledger_n: int) -> None:
    """Raise :class:`NeverSeen` if nothing has landed in the table and no agent was ever seen for its topic.

    ``ledger_n`` is the number of the table's committed ledger: it is 0 until something has landed.
    """
    if ledger_n == 0:
        check_seen(table.deployment, table.topic)


def check_seen(deployment: Deployment, topic: TopicSettings) -> None:
    """Raise :class:`NeverSeen` if no agent has ever reported ``topic``; the message names the topics that exist.

    Makes a single request if an agent has.

    Raises:
        FormatError: no readable index names the topic, and an index does not parse.
        StoreError: the store did not answer, or has no such bucket.
    """
    storage = Storage(topic.cluster, deployment.raw, deployment.store)
    cluster = storage.cluster_store()
    try:
        cluster.store.head(cluster.keys.incarnations(topic.topic))
    except NotFound:
        pass
    else:
        return
    indexes = cluster.indexes()
    if any(entry.topic == topic.topic for index in indexes.kept.values() for entry in index.entries):
        return
    if indexes.failures:
        raise next(iter(indexes.failures.values()))  # the topic's leader may be one of these brokers
    agents = bool(indexes.objects)
    why = _why(cluster, topic, storage.default().url, agents=agents)
    raise NeverSeen(f"{topic.cluster}/{topic.topic}: {why}")


def _why(cluster: ClusterStore, topic: TopicSettings, place: str, *, agents: bool) -> str:
    folder = cluster.keys.incarnations(topic.topic).removesuffix(f"{topic.topic}.json")
    topics = [
        info.key.removeprefix(folder).removesuffix(".json") for info in islice(cluster.store.list(folder), _LISTED)
    ]
    if agents or topics:
        return (
            f"no agent of cluster {topic.cluster} has ever seen this topic in {place}; {hint(topic.topic, topics)}. "
            "Check its name, and that the agents include it (`tidemark-agent plan` lists the topics that they upload)"
        )
    above = folder.removesuffix(f"{topic.cluster}/")
    clusters = sorted(
        {info.key.removeprefix(above).partition("/")[0] for info in islice(cluster.store.list(above), _LISTED)}
    )
    there = f"there are {', '.join(clusters[:10])}" if clusters else "nothing of any cluster is there"
    return (
        f"no agent of cluster {topic.cluster} has ever written to {place}; {there}. Check `cluster`, `raw.url` and its "
        "prefix in the topics file, and that the agents run"
    )
