"""What each broker has to upload, today and with any one broker gone.

An agent uploads what its broker leads, so the load of a broker is the rate at which the partitions that it leads grow.
If a broker goes, Kafka makes the first replica of each partition that is left its leader. Where replicas are not known,
its load is taken to be spread evenly over the brokers of its brokersets in other zones, which different strides
achieve at best.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from tidemark.brokersets.settings import Brokerset

Failover = Literal["replicas", "even"]
"""How it is known where leaders go: by the lists of replicas, or taken to be even."""


class PartitionLoad(NamedTuple):
    """A led partition.

    ``rate`` is in bytes a second (None: not known), ``lag`` the committed offsets that the store lacks, ``held`` the
    bytes of rotated segments that the store lacks, which the agent keeps from retention (None: not known).
    ``replicas`` is empty if they are not known.
    """

    topic: str
    partition: int
    leader: int
    rate: float | None = None
    lag: int = 0
    held: float | None = None
    replicas: tuple[int, ...] = ()


class BrokerLoad(NamedTuple):
    """What a broker's agent has to do: bytes a second, committed offsets and bytes that the store lacks, as above."""

    rate: float = 0.0
    lag: float = 0.0
    held: float = 0.0


class Loss(NamedTuple):
    """The others without a broker: the ``busiest`` of them and its rate then; the most lag and held bytes of one.

    Lag and held bytes go to the brokers that lead then: their agents upload what the lost one has not.
    """

    busiest: int
    rate: float
    lag: float
    held: float


class BrokersetLoad(NamedTuple):
    """A brokerset's load: of each broker now, and for each broker that may go, what is left.

    ``unmeasured`` are partitions whose rate is not known. ``without`` is empty if there is but one broker.
    """

    brokerset: Brokerset
    brokers: Mapping[int, BrokerLoad]
    partitions: int
    unmeasured: int
    failover: Failover
    without: Mapping[int, Loss]

    @property
    def total(self) -> BrokerLoad:
        """Of all brokers."""
        return BrokerLoad(*map(sum, zip(*self.brokers.values(), strict=True)))

    @property
    def busiest(self) -> tuple[int, float]:
        """(the broker with the highest rate, that rate), today."""
        return max(((at, one.rate) for at, one in self.brokers.items()), key=lambda one: one[1])

    @property
    def worst(self) -> tuple[int | None, int, float]:
        """(the broker whose loss is worst, the busiest broker then, its rate); no broker goes if there is but one."""
        if not self.without:
            return None, *self.busiest
        gone, loss = max(self.without.items(), key=lambda one: (one[1].rate, -one[0]))
        return gone, loss.busiest, loss.rate

    @property
    def exceeded(self) -> bool:
        """Whether some broker has to upload more than its capacity, today or with any one broker gone."""
        capacity = self.brokerset.capacity
        return capacity is not None and max(self.busiest[1], self.worst[2]) > capacity

    def answer(self) -> dict[str, Any]:
        """For programs; rates in bytes a second, ``lag`` in offsets, ``held`` in bytes."""
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
            "brokers": {str(broker): one._asdict() for broker, one in self.brokers.items()},
            "failover": self.failover,
            "without": {str(broker): one._asdict() for broker, one in sorted(self.without.items())},
            "worst": {"without": gone, "busiest": busiest, "rate": rate},
        }


def loads_by_broker(partitions: Iterable[PartitionLoad], gone: int | None = None) -> dict[int, BrokerLoad]:
    """The load of each broker that leads; with ``gone``, of the one that leads then.

    A partition without a replica left has no leader, and is nobody's load.
    """
    found: dict[int, BrokerLoad] = {}
    for one in partitions:
        leader = one.leader if one.leader != gone else next((at for at in one.replicas if at != gone), None)
        if leader is not None:
            found[leader] = _sum(found.get(leader, BrokerLoad()), BrokerLoad(one.rate or 0.0, one.lag, one.held or 0.0))
    return found


def rates_by_broker(partitions: Iterable[PartitionLoad]) -> dict[int, float]:
    """Bytes a second by the broker that leads, of the brokers where any are known."""
    return {broker: one.rate for broker, one in loads_by_broker(partitions).items() if one.rate}


def load_of(brokerset: Brokerset, partitions: Sequence[PartitionLoad]) -> BrokersetLoad:
    """The load of ``brokerset``; ``partitions`` are those of the whole cluster."""
    members = {*brokerset.brokers}
    own = [one for one in partitions if one.leader in members]
    by_replicas = all(one.replicas for one in own) and bool(own)
    now = loads_by_broker(partitions)
    brokers = {broker: now.get(broker, BrokerLoad()) for broker in brokerset.brokers}
    without: dict[int, Loss] = {}
    for gone in brokerset.brokers if len(members) > 1 else ():
        after = loads_by_broker(partitions, gone) if by_replicas else _evenly(brokerset, brokers, gone)
        without[gone] = _loss({at: after.get(at, BrokerLoad()) for at in brokerset.brokers if at != gone})
    return BrokersetLoad(
        brokerset=brokerset,
        brokers=brokers,
        partitions=len(own),
        unmeasured=sum(one.rate is None for one in own),
        failover="replicas" if by_replicas else "even",
        without=without,
    )


def _loss(left: Mapping[int, BrokerLoad]) -> Loss:
    busiest, load = max(left.items(), key=lambda one: one[1].rate)
    most = (max(one.lag for one in left.values()), max(one.held for one in left.values()))
    return Loss(busiest, load.rate, *most)


def _evenly(brokerset: Brokerset, brokers: Mapping[int, BrokerLoad], gone: int) -> dict[int, BrokerLoad]:
    zone_of = dict(zip(brokerset.brokers, brokerset.zones, strict=True))
    takers = [at for at in brokerset.brokers if zone_of[at] != zone_of[gone]]
    takers = takers or [at for at in brokerset.brokers if at != gone]
    share = BrokerLoad(*(one / len(takers) for one in brokers[gone]))
    return {at: _sum(load, share if at in takers else BrokerLoad()) for at, load in brokers.items() if at != gone}


def _sum(one: BrokerLoad, other: BrokerLoad) -> BrokerLoad:
    return BrokerLoad(one.rate + other.rate, one.lag + other.lag, one.held + other.held)
