"""What the agents of a cluster report of the partitions that their brokers lead."""

from __future__ import annotations

from collections.abc import Mapping

from tidemark.endpoints import resolver_of
from tidemark.formats.index_cache import read_indexes
from tidemark.formats.keys import ControlKeys, TopicPartition
from tidemark.formats.watermark_index import LeaderEntry, leaders
from tidemark.store import open_store
from tidemark.topics import Deployment


def led_partitions(deployment: Deployment, cluster: str) -> Mapping[TopicPartition, LeaderEntry]:
    """The entry that counts for each partition, as the watermark indexes have it now.

    Raises:
        StoreError, FormatError: they cannot be read.
    """
    default = resolver_of(deployment.raw).default()
    store = open_store(default.store, deployment.store)
    return leaders(read_indexes(store, ControlKeys(default.prefix, cluster).indexes).kept.values())
