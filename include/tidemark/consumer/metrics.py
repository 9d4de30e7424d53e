"""Counts of delivered records by partition and tier."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from tidemark.consumer.modes import TIERS, Tier
from tidemark.formats.keys import TopicPartition


@dataclass
class Count:
    """Delivered records; for Kafka also received bytes (compressed) and responses."""

    records: int = 0
    bytes: int = 0
    requests: int = 0


class TierCounts:
    """Counts since the consumer was made. A partition's counts continue when it is assigned again."""

    def __init__(self) -> None:
        self._counts: dict[tuple[TopicPartition, Tier], Count] = {}

    def of(self, tp: TopicPartition, tier: Tier) -> Count:
        """The count of a partition and tier; may be changed."""
        return self._counts.setdefault((tp, tier), Count())

    def shown(self) -> dict[str, dict[str, dict[str, int]]]:
        """``{"orders-0": {"kafka": {"records": …}, "remote": {…}}}``."""
        partitions = dict.fromkeys(tp for tp, _ in self._counts)
        return {f"{tp.topic}-{tp.partition}": {tier: asdict(self.of(tp, tier)) for tier in TIERS} for tp in partitions}
