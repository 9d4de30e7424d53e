"""What each broker has to upload, today and with any one broker gone.

An agent uploads what its broker leads, so the load of a broker is the rate at which the partitions that it leads grow.
If a broker goes, Kafka makes the first replica of each partition that is left its leader. Where replicas are not known,
its load is taken to be spread evenly over the brokers of its brokersets in other zones, which different strides
achieve at best.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

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


class BrokersetLoad(NamedTuple):
    """A brokerset's load: of each broker now; and for each broker that may go, that of the busiest one left.

    ``unmeasured`` are partitions whose rate is not known. ``worst_without`` maps a broker that goes to (the broker with
    the highest load then, its load).
    """

    brokerset: Brokerset
    rates: Mapping[int, float]
    lag: int
    held: float
    partitions: int
    unmeasured: int
    failover: Failover
    worst_without: Mapping[int, tuple[int, float]]

    @property
    def rate(self) -> float:
        """Of all brokers, in bytes a second."""
        return sum(self.rates.values())

    @property
    def worst(self) -> tuple[int | None, int, float]:
        """(the broker whose loss is worst, the busiest broker then, its load); no broker goes if there is but one."""
        if not self.worst_without:
            [(broker, rate)] = self.rates.items()
            return None, broker, rate
        gone, (busiest, rate) = max(self.worst_without.items(), key=lambda one: (one[1][1], -one[0]))
        return gone, busiest, rate


def rates_by_broker(partitions: Iterable[PartitionLoad], gone: int | None = None) -> dict[int, float]:
    """Bytes a second by the broker that leads; with ``gone``, by the one that leads then.

    A partition without a replica left has no leader, and is nobody's load.
    """
    found: dict[int, float] = {}
    for one in partitions:
        leader = one.leader if one.leader != gone else next((at for at in one.replicas if at != gone), None)
        if leader is not None and one.rate:
            found[leader] = found.get(leader, 0.0) + one.rate
    return found


def load_of(brokerset: Brokerset, partitions: Sequence[PartitionLoad]) -> BrokersetLoad:
    """The load of ``brokerset``; ``partitions`` are those of the whole cluster."""
    members = {*brokerset.brokers}
    own = [one for one in partitions if one.leader in members]
    by_replicas = all(one.replicas for one in own) and bool(own)
    now = rates_by_broker(partitions)
    rates = {broker: now.get(broker, 0.0) for broker in brokerset.brokers}
    worst: dict[int, tuple[int, float]] = {}
    for gone in brokerset.brokers if len(members) > 1 else ():
        after = rates_by_broker(partitions, gone) if by_replicas else _evenly(brokerset, rates, gone)
        worst[gone] = max(((at, after.get(at, 0.0)) for at in brokerset.brokers if at != gone), key=lambda one: one[1])
    return BrokersetLoad(
        brokerset=brokerset,
        rates=rates,
        lag=sum(one.lag for one in own),
        held=sum(one.held or 0.0 for one in own),
        partitions=len(own),
        unmeasured=sum(one.rate is None for one in own),
        failover="replicas" if by_replicas else "even",
        worst_without=worst,
    )


def _evenly(brokerset: Brokerset, rates: Mapping[int, float], gone: int) -> dict[int, float]:
    zone_of = dict(zip(brokerset.brokers, brokerset.zones, strict=True))
    takers = [at for at in brokerset.brokers if zone_of[at] != zone_of[gone]]
    takers = takers or [at for at in brokerset.brokers if at != gone]
    share = rates[gone] / len(takers)
    return {at: rate + (share if at in takers else 0.0) for at, rate in rates.items() if at != gone}
