"""Proof that an agent was ever seen for a topic: an unknown topic must not look like a topic without records.

An agent that leads a partition records its topic below ``_topics/``, before there is a segment, and in its watermark
index. A topic in neither place was never seen: its name, its cluster, the bucket or the prefix is wrong, or no agent
runs there. A topic that was seen may have nothing landed yet; that is no error.
"""

from __future__ import annotations

from itertools import islice
from typing import Final

from tidemark.config import hint
from tidemark.errors import NeverSeen, NotFound
from tidemark.formats.table.object_cache import read_indexes
from tidemark.storage import ClusterStore, Storage
from tidemark.table.delta_table import TopicTable
from tidemark.topics import Deployment, TopicSettings

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
    indexes = read_indexes(cluster.store, cluster.keys.indexes)
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
