"""The context that all partitions of an agent share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tidemark.formats.keys import Endpoint, TopicPartition
from tidemark.storage import ClusterStore
from uploader_agent.hold import Hold
from uploader_agent.log_source import LogSource
from uploader_agent.observability.metrics import Metrics
from uploader_agent.runtime import Runtime
from uploader_agent.stored.foreign_epochs import ForeignEpochs
from uploader_agent.stored.incarnations import Incarnations
from uploader_agent.stored.other_origin import OtherOrigin


class BrokerHeads(Protocol):
    """This broker's heads in all buckets."""

    def settled_head(self, bucket: Endpoint) -> int | None:
        """The version of the head in ``bucket`` if no earlier PUT of it can take effect any more.

        Otherwise None, and the head is settled soon. Raises the error of the last try to settle it.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What all partitions of an agent share. Any thread may use it.

    ``cluster`` has the objects in the deployment's default store. While a partition has holes, the store is searched
    every ``search_interval`` seconds. ``begins_in_tier`` is true if a partition begins in the store where its log does,
    although only Kafka's own remote tier has that part: it is fetched then.
    """

    broker: int
    incarnations: Incarnations
    cluster: ClusterStore
    hold: Hold
    heads: BrokerHeads
    foreign_epochs: ForeignEpochs
    other_origin: OtherOrigin
    source: LogSource
    metrics: Metrics
    search_interval: float
    begins_in_tier: Callable[[], bool]
    runtime: Runtime

    def bucket_of(self, tp: TopicPartition) -> Endpoint:
        """The bucket that has the packs of ``tp``, and the head that names them."""
        return self.incarnations.storage.endpoint(*tp).root
