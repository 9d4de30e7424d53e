"""Kafka's description of a topic."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final, NamedTuple

from tidemark.brokersets.placement import Replicas

_SHOWN: Final = (
    *("cleanup.policy", "retention.ms", "retention.bytes", "segment.bytes", "segment.ms", "compression.type"),
    *("message.timestamp.type", "max.message.bytes", "min.insync.replicas"),
)
"""The configuration that matters to ingestion."""


class TopicFacts(NamedTuple):
    """A topic of a cluster; ``replicas`` by partition, the preferred leader first."""

    topic: str
    replicas: tuple[Replicas, ...]
    internal: bool
    config: Mapping[str, str]

    @property
    def partitions(self) -> int:
        """The number of partitions."""
        return len(self.replicas)

    @property
    def replication_factor(self) -> int:
        """The number of replicas of the first partition."""
        return len(self.replicas[0]) if self.replicas else 0

    @property
    def compacted(self) -> bool:
        """True if Kafka removes records that a later one of their key replaces."""
        return "compact" in self.config.get("cleanup.policy", "")

    @property
    def segment_bytes(self) -> int:
        """``segment.bytes``: the size at which a segment is rotated."""
        return int(self.config.get("segment.bytes", 1 << 30))

    @property
    def segment_time(self) -> timedelta:
        """``segment.ms``: the age at which a segment is rotated, at the next append."""
        return _milliseconds(self.config.get("segment.ms", "604800000"))

    @property
    def retention_time(self) -> timedelta | None:
        """``retention.ms``; None for ever."""
        setting = self.config.get("retention.ms", "-1")
        return None if setting == "-1" else _milliseconds(setting)

    def answer(self) -> dict[str, Any]:
        """The facts for programs."""
        return {
            "partitions": self.partitions,
            "replication_factor": self.replication_factor,
            "internal": self.internal,
            "config": {name: self.config[name] for name in _SHOWN if name in self.config},
        }


def _milliseconds(text: str) -> timedelta:
    return timedelta(milliseconds=min(int(text), 36_500 * 86_400_000))
