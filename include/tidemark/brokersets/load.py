"""The upload load of each broker, today and after the loss of any one broker.

An agent uploads the partitions that its broker leads, so a broker's load is the rate at which these grow. If a broker
is lost, Kafka makes the first remaining replica of each of its partitions the leader. Where replicas are not known, the
load of the lost broker is spread evenly over the brokers of its brokerset in other zones, the best that different
strides achieve.

The agents' watermark indexes show how fast partitions grow, see :func:`observed_loads`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from tidemark.brokersets.settings import Brokerset
from tidemark.formats.keys import TopicPartition
from tidemark.formats.raw.watermark_index import IndexEntry, LeaderEntry

Failover = Literal["replicas", "even"]
"""The source of the leaders after a loss: the lists of replicas, or an even spread."""

_YOUNGEST_SEGMENT: Final = 10.0
"""Seconds; an active segment younger than this gives no useful rate."""


class PartitionLoad(NamedTuple):
    """A led partition.

    ``rate`` is in bytes a second, ``lag`` counts the committed offsets that the store lacks, ``held`` the bytes of
    rotated segments that the store lacks, which the agent keeps from retention. ``rate`` and ``held`` are None, and
    ``replicas`` is empty, if they are not known.
    """

    topic: str
    partition: int
    leader: int
    rate: float | None = None
    lag: int = 0
    held: float | None = None
    replicas: tuple[int, ...] = ()


class BrokerLoad(NamedTuple):
    """The load of a broker's agent: bytes a second, and the committed offsets and held bytes that the store lacks."""

    rate: float = 0.0
    lag: float = 0.0
    held: float = 0.0


class Loss(NamedTuple):
    """The remaining brokers after a loss: the ``busiest`` and its rate; the highest lag and held bytes of any broker.

    Lag and held bytes move to the new leaders, whose agents upload what the lost broker's agent has not.
    """

    busiest: int
    rate: float
    lag: float
    held: float


class BrokersetLoad(NamedTuple):
    """The load of a brokerset: of each broker now, and after the loss of each broker.

    ``unmeasured`` counts partitions with unknown rate. ``without`` is empty if there is only one broker.
    """

    brokerset: Brokerset
    brokers: Mapping[int, BrokerLoad]
    partitions: int
    unmeasured: int
    failover: Failover
    without: Mapping[int, Loss]

    @property
    def total(self) -> BrokerLoad:
        """The sum over all brokers."""
        return BrokerLoad(*map(sum, zip(*self.brokers.values(), strict=True)))

    @property
    def busiest(self) -> tuple[int, float]:
        """(broker with the highest rate, its rate), today."""
        return max(((broker, load.rate) for broker, load in self.brokers.items()), key=lambda busy: busy[1])

    @property
    def worst(self) -> tuple[int | None, int, float]:
        """(broker with the worst loss, busiest broker then, its rate). The first is None if there is but one broker."""
        if not self.without:
            return None, *self.busiest
        gone, loss = max(self.without.items(), key=lambda item: (item[1].rate, -item[0]))
        return gone, loss.busiest, loss.rate

    @property
    def exceeded(self) -> bool:
        """True if some broker has to upload more than its capacity, today or after the loss of any one broker."""
        capacity = self.brokerset.capacity
        return capacity is not None and max(self.busiest[1], self.worst[2]) > capacity

    def answer(self) -> dict[str, Any]:
        """The load for programs; rates in bytes a second, ``lag`` in offsets, ``held`` in bytes."""
        gone, busiest, rate = self.worst
        total = self.total
        return {
            "brokerset": self.brokerset.name,
            "zones": {zone: list(brokers) for zone, brokers in self.brokerset.by_zone.items()},
            "capacity": self.brokerset.capacity,
            "exceeded": self.exceeded,
            "partitions": self.partitions,
            "unmeasured": self.unmeasured,
            "rate": total.rate,
            "lag": round(total.lag),
            "held": total.held,
            "brokers": {str(broker): load._asdict() for broker, load in self.brokers.items()},
            "failover": self.failover,
            "without": {str(broker): loss._asdict() for broker, loss in sorted(self.without.items())},
            "worst": {"without": gone, "busiest": busiest, "rate": rate},
        }


def loads_by_broker(partitions: Iterable[PartitionLoad], gone: int | None = None) -> dict[int, BrokerLoad]:
    """The load of each leading broker, with the leaders after the loss of broker ``gone`` if that is given.

    A partition without a remaining replica has no leader, and adds to no load.
    """
    by_broker: dict[int, BrokerLoad] = {}
    for partition in partitions:
        leader: int | None = partition.leader
        if leader == gone:
            leader = next((broker for broker in partition.replicas if broker != gone), None)
        if leader is not None:
            added = BrokerLoad(partition.rate or 0.0, partition.lag, partition.held or 0.0)
            by_broker[leader] = _sum(by_broker.get(leader, BrokerLoad()), added)
    return by_broker


def rates_by_broker(partitions: Iterable[PartitionLoad]) -> dict[int, float]:
    """Bytes a second by leading broker, without brokers of unknown rate."""
    return {broker: load.rate for broker, load in loads_by_broker(partitions).items() if load.rate}


def load_of(brokerset: Brokerset, partitions: Sequence[PartitionLoad]) -> BrokersetLoad:
    """The load of ``brokerset``, from the partitions of the whole cluster."""
    members = {*brokerset.brokers}
    own = [partition for partition in partitions if partition.leader in members]
    by_replicas = all(partition.replicas for partition in own) and bool(own)
    now = loads_by_broker(partitions)
    brokers = {broker: now.get(broker, BrokerLoad()) for broker in brokerset.brokers}
    without: dict[int, Loss] = {}
    for gone in brokerset.brokers if len(members) > 1 else ():
        after = loads_by_broker(partitions, gone) if by_replicas else _evenly(brokerset, brokers, gone)
        without[gone] = _loss({left: after.get(left, BrokerLoad()) for left in brokerset.brokers if left != gone})
    return BrokersetLoad(
        brokerset=brokerset,
        brokers=brokers,
        partitions=len(own),
        unmeasured=sum(partition.rate is None for partition in own),
        failover="replicas" if by_replicas else "even",
        without=without,
    )


def _loss(left: Mapping[int, BrokerLoad]) -> Loss:
    busiest, load = max(left.items(), key=lambda item: item[1].rate)
    most = (max(load.lag for load in left.values()), max(load.held for load in left.values()))
    return Loss(busiest, load.rate, *most)


def _evenly(brokerset: Brokerset, brokers: Mapping[int, BrokerLoad], gone: int) -> dict[int, BrokerLoad]:
    zone_of = dict(zip(brokerset.brokers, brokerset.zones, strict=True))
    takers = [broker for broker in brokerset.brokers if zone_of[broker] != zone_of[gone]]
    left = [broker for broker in brokerset.brokers if broker != gone]
    takers = takers or left
    share = BrokerLoad(*(amount / len(takers) for amount in brokers[gone]))
    return {broker: _sum(brokers[broker], share if broker in takers else BrokerLoad()) for broker in left}


def _sum(load: BrokerLoad, other: BrokerLoad) -> BrokerLoad:
    return BrokerLoad(load.rate + other.rate, load.lag + other.lag, load.held + other.held)


def observed_loads(
    led: Mapping[TopicPartition, LeaderEntry],
    before: Mapping[TopicPartition, LeaderEntry] | None = None,
    replicas: Mapping[TopicPartition, tuple[int, ...]] | None = None,
) -> list[PartitionLoad]:
    """The load of the partitions of ``led``. Rates are measured since ``before`` if that is given and older.

    A single observation estimates a partition's rate: the bytes of its active segment by the time since its first
    record. Two observations measure it: the growth of the log by the time between them. Bytes are offsets times the
    bytes of an offset in the newest uploaded segment.
    """
    partitions = []
    for at, (broker, entry) in sorted(led.items()):
        earlier = before.get(at) if before is not None else None
        rate = _measured_rate(earlier.entry, entry) if earlier is not None else _estimated_rate(entry)
        partitions.append(
            PartitionLoad(
                topic=at.topic,
                partition=at.partition,
                leader=broker,
                rate=rate,
                lag=0 if entry.stored_end is None else max(0, entry.high_watermark - entry.stored_end),
                held=_held_bytes(entry),
                replicas=(replicas or {}).get(at, ()),
            )
        )
    return partitions


def _estimated_rate(entry: IndexEntry) -> float | None:
    if entry.bytes_per_offset is None or entry.active_base_offset is None or entry.active_first_timestamp is None:
        return None
    seconds = entry.observed_at.timestamp() - entry.active_first_timestamp / 1000
    if seconds < _YOUNGEST_SEGMENT:
        return None
    return (entry.log_end_offset - entry.active_base_offset) * entry.bytes_per_offset / seconds


def _measured_rate(before: IndexEntry, entry: IndexEntry) -> float | None:
    """The measured rate; also None if the log is another one, or was truncated."""
    seconds = (entry.observed_at - before.observed_at).total_seconds()
    grown = entry.log_end_offset - before.log_end_offset
    if entry.bytes_per_offset is None or seconds <= 0 or grown < 0 or entry.incarnation != before.incarnation:
        return None
    return grown * entry.bytes_per_offset / seconds


def _held_bytes(entry: IndexEntry) -> float | None:
    if entry.bytes_per_offset is None or entry.active_base_offset is None:
        return None
    return max(0, entry.active_base_offset - entry.next_offset) * entry.bytes_per_offset
