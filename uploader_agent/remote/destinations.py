"""Where things go: from a partition and a topic id to a store and its keys, by the configured endpoints."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable

from tidemark.endpoints import EndpointResolver, EndpointSettings
from tidemark.formats.keys import ControlKeys, PartitionKeys, TopicPartition
from tidemark.store import Store
from uploader_agent.remote.incarnations import Incarnations, TopicIncarnation

OpenStore = Callable[[str], Store]


class Destinations:
    """Answers for one cluster; opens each store once. Thread-safe."""

    def __init__(self, cluster: str, endpoints: EndpointResolver, opener: OpenStore, *, record: bool) -> None:
        """``record`` says whether new incarnations of topics are written down."""
        self._cluster = cluster
        self._endpoints = endpoints
        self._opener = opener
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
                self._stores[url] = self._opener(url)
            return self._stores[url]

    def settle(self, at: TopicPartition, topic_id: str | None) -> tuple[TopicIncarnation, Store, PartitionKeys]:
        """Which incarnation this is, and the store and the keys of the partition."""
        endpoint = self._endpoints.resolve(self._cluster, at.topic, at.partition)
        life = self._incarnations.find(at.topic, topic_id)
        return life, self.store(endpoint.store), PartitionKeys(endpoint, self._cluster, life.place, at.partition)

    def bucket(self, at: TopicPartition) -> tuple[str, ControlKeys]:
        """The store's URL of a partition, and the keys of what agents say about themselves there."""
        endpoint = self._endpoints.resolve(self._cluster, at.topic, at.partition)
        return endpoint.store, ControlKeys(endpoint.prefix, self._cluster)


def digest(settings: EndpointSettings) -> str:
    """Tells one configuration of endpoints from another."""
    return hashlib.sha256(settings.model_dump_json().encode()).hexdigest()[:16]
