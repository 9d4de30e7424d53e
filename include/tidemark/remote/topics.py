"""The topics of a cluster's remote tier, and their partitions by incarnation."""

from __future__ import annotations

from datetime import datetime

from tidemark.formats.incarnations import Incarnation
from tidemark.formats.keys import ControlKeys, PartitionKeys
from tidemark.raw.objects import incarnations
from tidemark.remote.catalog.log_ends import Observations
from tidemark.remote.catalog.offset_lookup import IndexObjects
from tidemark.remote.catalog.partition import PartitionPlace, RemotePartition
from tidemark.remote.catalog.storage import Storage
from tidemark.remote.catalog.stretch import OffsetForTime, Stretch

__all__ = ["OffsetForTime", "RemotePartition", "RemoteTopics", "Stretch"]


class RemoteTopics:
    """The topics of a storage's cluster. Thread-safe."""

    def __init__(self, storage: Storage) -> None:
        """Nothing is read yet."""
        self.storage = storage
        default = storage.default()
        self._control = ControlKeys(default.prefix, storage.cluster)
        self._store = default.store
        self._indexes = IndexObjects()
        self._observations = Observations(storage)

    def partition(self, topic: str, partition: int, topic_id: str | None = None) -> RemotePartition | None:
        """The partition of the incarnation ``topic_id``, or of the newest, as it is now.

        None if no agent has seen such an incarnation.
        """
        endpoint = self.storage.endpoint(topic, partition)
        life = self._life(topic, topic_id)
        if life is None:
            return None
        number, known = life
        keys = PartitionKeys(endpoint, self.storage.cluster, known.place, partition)
        place = PartitionPlace(topic, partition, number, known.topic_id, keys)

        def observe(incarnation: int, partition: int, highest: int) -> tuple[int, datetime] | None:
            return self._observations.log_end(topic, incarnation, partition, highest)

        found = RemotePartition(self.storage, place, self._indexes, observe)
        found.refresh()
        return found

    def partitions_for_topic(self, topic: str) -> set[int]:
        """The partitions of the newest incarnation that brokers' agents told of; none if they told of none."""
        life = self._life(topic, None)
        entries = self._observations.entries(topic) if life is not None else []
        return {one.partition for one in entries if life is not None and one.incarnation == life[0]}

    def topics(self) -> set[str]:
        """The topics that agents have seen."""
        folder = self._control.incarnations("-").removesuffix("-.json")
        listed = self.storage.store(self._store).list(folder)
        return {one.key.removeprefix(folder).removesuffix(".json") for one in listed}

    def _life(self, topic: str, topic_id: str | None) -> tuple[int, Incarnation] | None:
        lives = incarnations(self.storage.store(self._store), self._control, topic)
        if topic_id is not None:
            return lives.find(topic_id)
        return (len(lives.incarnations) - 1, lives.incarnations[-1]) if lives.incarnations else None
