"""The store and the keys of a partition with a topic id, from the configured endpoints and the topic's incarnation."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

from tidemark.endpoints import EndpointResolver
from tidemark.errors import FormatError, NotFound
from tidemark.formats.keys import ControlKeys, PartitionKeys, TopicPartition
from tidemark.formats.raw.incarnations import TopicIncarnations
from tidemark.store import Store
from tidemark.store.update import update
from uploader_agent.clock import utc_now

_RECORD_TRIES = 3
_AFTER_TRIES = "the partition is tried again after its back-off"

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


class TopicIncarnation(NamedTuple):
    """An incarnation's number, and the name of its folders."""

    number: int
    place: str


class Incarnations:
    """Finds a topic's incarnation, and records a new one. Thread-safe; an answer never changes.

    All agents agree on the incarnations of a topic and their folders through one object per topic.

    Without ``record`` nothing is written: a new incarnation is returned as it would be recorded.
    """

    def __init__(self, store: Store, control: ControlKeys, *, record: bool = True) -> None:
        self._record = record
        self._store = store
        self._control = control
        self._known: dict[tuple[str, str | None], TopicIncarnation] = {}

    def find(self, topic: str, topic_id: str | None) -> TopicIncarnation:
        """The incarnation of ``topic`` that has ``topic_id``.

        Raises:
            FormatError: a topic was re-created on a cluster without topic ids: an operator must decide.
            StoreError: the store failed.
        """
        incarnation = self._known.get((topic, topic_id))
        if incarnation is None:
            incarnation = self._known[topic, topic_id] = self._agree(topic, topic_id)
        return incarnation

    def _agree(self, topic: str, topic_id: str | None) -> TopicIncarnation:
        """Ask the store. If two threads do so for one topic, they agree as two agents do."""
        key = self._control.incarnations(topic)

        def read() -> tuple[TopicIncarnations, str | None]:
            try:
                return TopicIncarnations.load_version(self._store, key)
            except NotFound:
                return TopicIncarnations(topic=topic), None

        def with_topic_id(known: TopicIncarnations) -> TopicIncarnations:
            try:
                return known if known.find(topic_id) else known.with_topic_id(topic_id, utc_now())
            except ValueError as error:
                raise FormatError(key, str(error)) from error

        if self._record:
            known = update(self._store, key, read, with_topic_id, then=_AFTER_TRIES, tries=_RECORD_TRIES)
        else:
            known = with_topic_id(read()[0])
        agreed = known.find(topic_id)
        assert agreed is not None
        return TopicIncarnation(agreed[0], agreed[1].place)
