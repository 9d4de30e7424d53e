"""The store and the keys of a partition with a topic id, from the configured endpoints."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

from tidemark.endpoints import EndpointResolver
from tidemark.formats.keys import ControlKeys, PartitionKeys, TopicPartition
from tidemark.store import Store
from uploader_agent.stored.incarnations import Incarnations, TopicIncarnation

OpenStore = Callable[[str], Store]


class Bucket(NamedTuple):
    """The place of an agent's own objects: beside the partitions that share a store and a prefix of keys."""

    url: str
    control: ControlKeys

    def __str__(self) -> str:
        return "/".join(part for part in (self.url, self.control.prefix) if part)


class Destinations:
    """The destinations of one cluster's partitions. Opens each store once. Thread-safe."""

    def __init__(self, cluster: str, endpoints: EndpointResolver, open_store: OpenStore, *, record: bool) -> None:
        """With ``record``, new incarnations of topics are recorded in the store."""
        self._cluster = cluster
        self._endpoints = endpoints
        self._open_store = open_store
        self._stores: dict[str, Store] = {}
        self._lock = threading.Lock()
        default = endpoints.default()
        self.control = ControlKeys(default.prefix, cluster)
        self.control_store = self.store(default.store)
        self._incarnations = Incarnations(self.control_store, self.control, record=record)

    def store(self, url: str) -> Store:
        """The store of a bucket."""
        with self._lock:
            if url not in self._stores:
                self._stores[url] = self._open_store(url)
            return self._stores[url]

    def resolve(self, tp: TopicPartition, topic_id: str | None) -> tuple[TopicIncarnation, Store, PartitionKeys]:
        """The topic's incarnation, and the store and the keys of the partition."""
        endpoint = self._endpoints.resolve(self._cluster, tp.topic, tp.partition)
        incarnation = self._incarnations.find(tp.topic, topic_id)
        keys = PartitionKeys(endpoint, self._cluster, incarnation.place, tp.partition)
        return incarnation, self.store(endpoint.store), keys

    @property
    def default_bucket(self) -> Bucket:
        """The bucket of the deployment's own objects."""
        return Bucket(self._endpoints.default().store, self.control)

    def bucket(self, tp: TopicPartition) -> Bucket:
        """The bucket of a partition."""
        endpoint = self._endpoints.resolve(self._cluster, tp.topic, tp.partition)
        return Bucket(endpoint.store, ControlKeys(endpoint.prefix, self._cluster))
