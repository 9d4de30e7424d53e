"""What must be true at the end if brokers were restored: what they have is stored or told, and nothing else is told."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from collections.abc import Set as AbstractSet

from tests.uploader_agent.simulation.broker import Batch, Cluster, Partition, split
from tests.uploader_agent.simulation.store import SimulatedStore
from tidemark.formats.keys import TopicPartition


class RestoreOracle:
    """Compares all bytes of the store with the logs: identities of batches say nothing any more."""

    def __init__(self, cluster: Cluster, store: SimulatedStore) -> None:
        self._cluster = cluster
        self._store = store

    def untold(self, told: Collection[TopicPartition]) -> Iterator[str]:
        """Committed batches of leaders that are in no object, of partitions that nobody is told of."""
        kinds = (".pack", ".log", ".corrupt")  # damage is kept whole, and told as such
        bodies = [found.body for key, found in self._store.objects.items() if any(kind in key for kind in kinds)]
        for at, partition in sorted(self._cluster.partitions.items()):
            lost = [batch.id for batch in _committed(partition) if not any(batch.content in one for one in bodies)]
            if lost and at not in told:
                yield f"{at}: the committed batches {lost} (offset, epoch) are in no object, and nobody is told"

    def false(self, told: AbstractSet[TopicPartition]) -> Iterator[str]:
        """Partitions of which another history is told, though all that is sealed is in their log.

        Not those whose log has a batch of a later epoch than the leader's own: metadata that were restored alone give
        epochs again above it. No lineage states such a log, so an agent that stored it would store it wrongly: it
        stops, and tells. Without such a batch, an agent that takes the stored log for another one is still seen.
        """
        for at in sorted(told & self._cluster.partitions.keys()):
            partition = self._cluster.partitions[at]
            if any(batch.epoch > partition.leader_epoch for batch in partition.led.batches):
                continue
            ours = {batch.content for batch in partition.led.batches}
            stored = {content for log in self._logs(partition) for content in split(log).values()}
            packed = any(key.endswith(".pack") for key in self._store.objects)
            if stored <= ours and not packed:
                yield f"{at}: another history is told, and there is none"

    def _logs(self, partition: Partition) -> Iterator[bytes]:
        folder = f"/{partition.at}/"
        yield from (found.body for key, found in self._store.objects.items() if folder in f"/{key}" and ".log" in key)


def _committed(partition: Partition) -> list[Batch]:
    """The committed batches that all replicas have.

    If some are restored, two replicas may have other batches under one epoch, and Kafka does not notice: then a change
    of leader takes back what was committed, whatever the store has.
    """
    led, others = partition.led, [set(replica.batches) for replica in partition.replicas.values()]
    batches = (batch for batch in led.batches if led.log_start <= batch.base and batch.end <= led.high_watermark)
    return [batch for batch in batches if all(batch in replica for replica in others)]
