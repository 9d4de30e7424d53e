"""What else may tell of a change of leadership, beside the disks: nothing with KRaft, a watch with ZooKeeper."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol

from typing_extensions import override

from tidemark.formats.keys import TopicPartition

TOPICS = "/brokers/topics"
"""Where ZooKeeper has the topics."""


def state_path(tp: TopicPartition) -> str:
    """Where the controller writes to ZooKeeper who leads a partition."""
    return f"{TOPICS}/{tp.topic}/partitions/{tp.partition}/state"


class Hints(Protocol):
    """Never believed, only followed by a question to the broker; so nothing here is ever an error."""

    def start(self, hint: Callable[[], None]) -> None:
        """Call ``hint``, from any thread, when something may have changed."""
        ...

    def watch(self, replicas: Collection[TopicPartition]) -> None:
        """The partitions on this broker's disks from now on."""
        ...

    def close(self) -> None:
        """Release what was opened."""
        ...


class NoHints(Hints):
    """Of a cluster without ZooKeeper: the poll finds everything."""

    @override
    def start(self, hint: Callable[[], None]) -> None:
        pass

    @override
    def watch(self, replicas: Collection[TopicPartition]) -> None:
        pass

    @override
    def close(self) -> None:
        pass
