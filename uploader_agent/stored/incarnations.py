"""The incarnation of a topic id, and so the place of its partitions: all agents agree on it by one object per topic."""

from __future__ import annotations

from collections.abc import Callable

from tidemark.errors import FormatError, NotFound
from tidemark.formats.keys import TopicPartition
from tidemark.formats.raw.incarnations import TopicIncarnations
from tidemark.storage import PartitionStore, Storage
from tidemark.store.update import update
from uploader_agent.runtime import utc_now

_RECORD_TRIES = 3
_AFTER_TRIES = "the partition is tried again after its back-off"


Resolve = Callable[[TopicPartition, str | None], tuple[int, PartitionStore]]
"""The signature of :meth:`Incarnations.resolve`."""


class Incarnations:
    """Finds a topic's incarnation, and records a new one. Thread-safe; an answer never changes.

    With ``record``, new incarnations are recorded in the store. Without it nothing is written: a new incarnation is
    returned as it would be recorded.
    """

    def __init__(self, storage: Storage, *, record: bool) -> None:
        """Open the deployment's default store."""
        self.storage = storage
        self._record = record
        self._cluster = storage.cluster_store()
        self._known: dict[tuple[str, str | None], tuple[int, str]] = {}

    def resolve(self, tp: TopicPartition, topic_id: str | None) -> tuple[int, PartitionStore]:
        """(The incarnation's number, the partition's objects). Raises as :meth:`find`, and as opening a store."""
        number, place = self.find(tp.topic, topic_id)
        keys = self.storage.partition_keys(tp.topic, tp.partition, place)
        return number, self.storage.partition_store(keys)

    def find(self, topic: str, topic_id: str | None) -> tuple[int, str]:
        """(The number of the incarnation of ``topic`` that has ``topic_id``, the name of its folders).

        Raises:
            FormatError: a topic was re-created on a cluster without topic ids: an operator must decide.
            StoreError: the store failed.
        """
        incarnation = self._known.get((topic, topic_id))
        if incarnation is None:
            incarnation = self._known[topic, topic_id] = self._agree(topic, topic_id)
        return incarnation

    def _agree(self, topic: str, topic_id: str | None) -> tuple[int, str]:
        """Ask the store. If two threads do so for one topic, they agree as two agents do."""
        store, key = self._cluster.store, self._cluster.keys.incarnations(topic)

        def read() -> tuple[TopicIncarnations, str | None]:
            try:
                return TopicIncarnations.load_version(store, key)
            except NotFound:
                return TopicIncarnations(topic=topic), None

        def with_topic_id(known: TopicIncarnations) -> TopicIncarnations:
            try:
                return known if known.find(topic_id) else known.with_topic_id(topic_id, utc_now())
            except ValueError as error:
                raise FormatError(key, str(error)) from error

        if self._record:
            known = update(store, key, read, with_topic_id, then=_AFTER_TRIES, tries=_RECORD_TRIES)
        else:
            known = with_topic_id(read()[0])
        agreed = known.find(topic_id)
        assert agreed is not None
        return agreed[0], agreed[1].place
