"""Hints of changes of leadership, beside the disks: a watch with ZooKeeper, nothing with KRaft."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol

from typing_extensions import override

from tidemark.formats.keys import TopicPartition

TOPICS = "/brokers/topics"
"""ZooKeeper's folder of topics."""


def state_path(tp: TopicPartition) -> str:
    """The path in ZooKeeper at which the controller writes the leader of a partition."""
    return f"{TOPICS}/{tp.topic}/partitions/{tp.partition}/state"


class LeadershipHints(Protocol):
    """Hints that only make the agent ask the broker, and are never believed themselves. So no failure is an error."""

    def start(self, hint: Callable[[], None]) -> None:
        """Call ``hint``, from any thread, when something may have changed."""
        ...

    def watch(self, replicas: Collection[TopicPartition]) -> None:
        """Watch the partitions ``replicas``, which are on this broker's disks now."""
        ...

    def close(self) -> None:
        """End the watches, and release their connection."""
        ...


class NoHints(LeadershipHints):
    """The :class:`LeadershipHints` of a cluster without ZooKeeper: polling finds every change."""

    @override
    def start(self, hint: Callable[[], None]) -> None:
        pass

    @override
    def watch(self, replicas: Collection[TopicPartition]) -> None:
        pass

    @override
    def close(self) -> None:
        pass
