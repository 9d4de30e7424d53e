"""Whether an agent was ever seen for a topic: a name that no agent knows must not look like a topic without records.

An agent that leads a partition records its topic below ``_topics/``, before there is a segment, and tells of it in its
watermark index. So a topic of which neither tells was never seen: its name, its cluster, the bucket or the prefix is
wrong, or no agent runs there. That a topic was seen and nothing has landed yet is no error.
"""

from __future__ import annotations

from difflib import get_close_matches
from itertools import islice
from typing import Final

from tidemark.endpoints import resolver_of
from tidemark.errors import NeverSeen, NotFound
from tidemark.formats.keys import ControlKeys
from tidemark.formats.watermark_index import WatermarkIndex
from tidemark.store import Store, open_store
from tidemark.table.delta_table import TopicTable, committed_ledger
from tidemark.topics import Deployment, TopicSettings

_LISTED: Final = 10_000
"""Names that are looked at for one that is like the topic's."""


def check_begun(table: TopicTable) -> None:
    """Raise :class:`NeverSeen` if nothing has landed in the table, and :func:`check_seen` does."""
    if committed_ledger(table).n == 0:
        check_seen(table.deployment, table.topic)


def check_seen(deployment: Deployment, topic: TopicSettings) -> None:
    """Raise :class:`NeverSeen` if no agent has ever told of ``topic``; says what is there instead.

    A request where an agent has.

    Raises:
        StoreError: the store did not answer, or has no such bucket.
    """
    resolver = resolver_of(deployment.raw)
    default = resolver.default()
    store, control = open_store(default.store, deployment.store), ControlKeys(default.prefix, topic.cluster)
    try:
        store.head(control.incarnations(topic.topic))
    except NotFound:
        pass
    else:
        return
    keys = [one.key for one in store.list(control.indexes) if one.key.endswith(".json")]
    indexes = (WatermarkIndex.from_bytes(store.get(key).body, key) for key in keys)
    if any(entry.topic == topic.topic for index in indexes for entry in index.entries):
        return
    place = f"{store.url}/{default.prefix}" if default.prefix else store.url
    raise NeverSeen(f"{topic.cluster}/{topic.topic}: {_why(store, control, topic, place, agents=bool(keys))}")


def _why(store: Store, control: ControlKeys, topic: TopicSettings, place: str, *, agents: bool) -> str:
    folder = control.incarnations(topic.topic).removesuffix(f"{topic.topic}.json")
    topics = [one.key.removeprefix(folder).removesuffix(".json") for one in islice(store.list(folder), _LISTED)]
    if agents or topics:
        near = get_close_matches(topic.topic, topics, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        return (
            f"no agent of cluster {topic.cluster} has ever seen this topic in {place}: {hint}Check its name, and that "
            "the agents take it in (`tidemark-agent plan` says which topics they do)"
        )
    above = folder.removesuffix(f"{topic.cluster}/")
    clusters = sorted({one.key.removeprefix(above).partition("/")[0] for one in islice(store.list(above), _LISTED)})
    there = f"there are {', '.join(clusters[:10])}" if clusters else "there is none of any cluster"
    return (
        f"no agent of cluster {topic.cluster} has ever written to {place}; {there}. Check `cluster`, `raw.url` and its "
        "prefix in the topics file, and that the agents run"
    )
