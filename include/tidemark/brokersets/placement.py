"""The placement of a topic's replicas within a brokerset, by stride, and its forms for Kafka's own tools.

The brokers of a brokerset form a ring in which neighbours are in different zones: the first broker of each zone, then
the second of each, and so on. Partition p is led by broker p of the ring. The first follower is at a fixed distance
from the leader, and each further follower at the same distance from the one before. Stride 0 is the shortest distance,
so placement is sequential; each higher stride takes the next distance that leads into another zone. Distances that lead
into the leader's own zone are passed over: with three zones the distances are 1, 2, 4, 5, … A further follower that
would share a zone with another replica moves on to the next broker of the ring in another zone.

The ring looks alike from each broker, because all zones have equally many. So for each stride every broker leads
equally many partitions and follows equally many, replicas of a partition are in different zones, and all leaders of a
lost broker move to one broker. Each stride has another such broker; together the strides use each broker of the other
zones once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from tidemark.brokersets.settings import Brokerset
from tidemark.errors import ConfigError

Replicas = tuple[int, ...]
"""Brokers of a partition, the preferred leader first."""

MOST_PARTITIONS: Final = 100_000


def ring(brokerset: Brokerset) -> Replicas:
    """The brokers in the order of placement. Raises ConfigError if zones have different numbers of brokers."""
    zones = brokerset.by_zone
    sizes = {len(brokers) for brokers in zones.values()}
    if len(sizes) > 1:
        counted = ", ".join(f"{zone} has {len(brokers)}" for zone, brokers in zones.items())
        rule = f"zones must have equally many brokers, or leaders cannot be balanced over brokers and zones: {counted}"
        raise _refused(brokerset, "zones", rule)
    return tuple(broker for rank in zip(*zones.values(), strict=True) for broker in rank)


def strides(brokerset: Brokerset) -> int:
    """Number of different strides, which count from 0; 1 for a single broker or zone."""
    zones = len(brokerset.by_zone)
    return max(1, len(_distances(len(brokerset.brokers), zones)))


def place(brokerset: Brokerset, partitions: int, replication_factor: int, stride: int = 0) -> tuple[Replicas, ...]:
    """The replicas of partitions 0, 1, ….

    Raises:
        ConfigError: the replicas cannot be balanced; names the brokerset, the parameter and possible values.
    """
    order = ring(brokerset)
    count, zones = len(order), len(brokerset.by_zone)
    _check(brokerset, partitions, replication_factor, stride)
    distances = _distances(count, zones)
    offsets = _offsets(distances[stride] if distances else 1, count, zones, replication_factor)
    return tuple(tuple(order[(first + offset) % count] for offset in offsets) for first in range(partitions))


def _distances(count: int, zones: int) -> Sequence[int]:
    """The distances on the ring that lead into another zone; position n is in zone n % zones."""
    return [distance for distance in range(1, count) if distance % zones]


def _offsets(distance: int, count: int, zones: int, wanted: int) -> list[int]:
    """The positions of a partition's replicas on the ring, from its leader on."""
    positions = [0]
    while len(positions) < wanted:
        at = (positions[-1] + distance) % count
        while at % zones in {position % zones for position in positions}:
            at = (at + 1) % count
        positions.append(at)
    return positions


def _check(brokerset: Brokerset, partitions: int, replication_factor: int, stride: int) -> None:
    count, zones = len(brokerset.brokers), len(brokerset.by_zone)
    if replication_factor < 1 or replication_factor > zones:
        limit = "zones" if zones < count else "brokers"
        rule = f"must be 1 to {zones}, because the brokerset has {zones} {limit}, but it is {replication_factor}"
        raise _refused(brokerset, "replication factor", rule)
    if not 0 < partitions <= MOST_PARTITIONS or partitions % count:
        below, above = partitions // count * count, (max(partitions, 0) // count + 1) * count
        near = f"{below} or {above}" if 0 < below <= MOST_PARTITIONS else f"{count} or a multiple of it"
        rule = f"must be a multiple of its {count} brokers, so that each leads equally many: {near}, not {partitions}"
        raise _refused(brokerset, "partitions", rule)
    if not 0 <= stride < strides(brokerset):
        rule = f"must be 0 to {strides(brokerset) - 1}, but it is {stride}: further ones would repeat these"
        raise _refused(brokerset, "stride", rule)


def _refused(brokerset: Brokerset, parameter: str, rule: str) -> ConfigError:
    return ConfigError(f"brokerset {brokerset.name}", [(parameter, rule)])


def reassignment(topic: str, placement: Sequence[Replicas]) -> dict[str, Any]:
    """The document for ``kafka-reassign-partitions --reassignment-json-file``."""
    partitions = [
        {"topic": topic, "partition": number, "replicas": list(replicas)} for number, replicas in enumerate(placement)
    ]
    return {"version": 1, "partitions": partitions}


def replica_assignment(placement: Sequence[Replicas]) -> str:
    """The argument of ``kafka-topics --create --replica-assignment``."""
    return ",".join(":".join(map(str, replicas)) for replicas in placement)
