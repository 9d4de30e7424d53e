"""The number of partitions of a new topic, and the brokerset and stride that carry it best."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from tidemark.brokersets.load import PartitionLoad, load_of
from tidemark.brokersets.placement import Replicas, place, strides
from tidemark.brokersets.settings import Brokerset
from tidemark.errors import ConfigError


class Choice(NamedTuple):
    """A placement, and the busiest broker's load with it, in bytes a second: today, and without the worst broker."""

    brokerset: Brokerset
    stride: int
    placement: tuple[Replicas, ...]
    busiest: float
    busiest_without: float

    @property
    def fits(self) -> bool:
        """True if no broker has more than its capacity, also with any one broker gone."""
        capacity = self.brokerset.capacity
        return capacity is None or max(self.busiest, self.busiest_without) <= capacity

    def answer(self) -> dict[str, Any]:
        """The placement for programs."""
        return {
            "brokerset": self.brokerset.name,
            "stride": self.stride,
            "partitions": len(self.placement),
            "busiest": self.busiest,
            "busiest_without": self.busiest_without,
            "capacity": self.brokerset.capacity,
            "fits": self.fits,
        }


def partitions_for(rate: float, each: float, brokerset: Brokerset) -> int:
    """The partitions that ``rate`` bytes a second need at ``each`` a partition: a multiple of the brokers."""
    brokers = len(brokerset.brokers)
    return max(1, math.ceil(math.ceil(rate / each) / brokers)) * brokers


def choices(
    topic: str,
    rate: float,
    each: float,
    replication_factor: int,
    brokersets: Sequence[Brokerset],
    loads: Sequence[PartitionLoad],
    partitions: int | None = None,
) -> list[Choice]:
    """The placements that can be balanced, the best first: the least load with the worst broker gone, by capacity.

    Raises:
        ConfigError: there is none; names the reason for each brokerset.
    """
    balanced: list[Choice] = []
    reasons: list[tuple[str, str]] = []
    for brokerset in brokersets:
        count = partitions or partitions_for(rate, each, brokerset)
        try:
            balanced += _of_brokerset(brokerset, topic, rate, count, replication_factor, loads)
        except ConfigError as error:
            reasons += [(f"{brokerset.name}: {key}", rule) for key, rule in error.problems]
    if not balanced:
        raise ConfigError("the brokersets", reasons)
    return sorted(balanced, key=lambda choice: (not choice.fits, _weight(choice), choice.stride))


def _of_brokerset(
    brokerset: Brokerset, topic: str, rate: float, count: int, factor: int, loads: Sequence[PartitionLoad]
) -> Iterator[Choice]:
    for stride in range(strides(brokerset)):
        placement = place(brokerset, count, factor, stride)
        added = [
            PartitionLoad(topic, number, replicas[0], rate / count, replicas=replicas)
            for number, replicas in enumerate(placement)
        ]
        load = load_of(brokerset, [*loads, *added])
        yield Choice(brokerset, stride, placement, load.busiest[1], load.worst[2])


def _weight(choice: Choice) -> float:
    return choice.busiest_without / (choice.brokerset.capacity or 1)
