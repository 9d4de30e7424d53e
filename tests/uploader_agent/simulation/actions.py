"""What happens to the cluster in a schedule: each kind of action, by its particulars."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tests.uploader_agent.simulation.broker import Cluster, Partition, Replica
from tests.uploader_agent.simulation.clock import Scheduler
from tests.uploader_agent.simulation.faults import Faults
from tests.uploader_agent.simulation.schedule import pick

_TOPICS = ["orders", "payments", "returns"]


class ClusterActions:
    """One method for each kind: two numbers in [0, 1) say which, and how many or when, and a broker where."""

    def __init__(
        self,
        cluster: Cluster,
        scheduler: Scheduler,
        faults: Faults,
        stored_until: Callable[[Partition, Replica], int] | None,
        *,
        replicated: bool,
    ) -> None:
        """With ``stored_until`` retention takes from a replica only what is stored, up to there."""
        self._cluster = cluster
        self._scheduler = scheduler
        self._faults = faults
        self._stored_until = stored_until
        self._replicated = replicated

    def append(self, which: float, number: float, _broker: int) -> None:
        """Produce some batches to a broker that believes that it leads."""
        for partition in self._some(which):
            leading = [broker for broker, replica in partition.replicas.items() if replica.leads]
            if leading:
                records = [1 + int(number * 97 + each) % 3 for each in range(1 + int(number * 4))]
                self._cluster.append(partition, pick(number * 7 % 1, leading), records)

    def roll(self, which: float, _number: float, broker: int) -> None:
        """Begin another segment."""
        for _, replica in self._replicas(which, broker):
            replica.roll()

    def compact(self, which: float, number: float, broker: int) -> None:
        """The log cleaner comes by."""
        for partition, replica in self._replicas(which, broker):
            self._cluster.compact(partition, replica, number)

    def retire(self, which: float, number: float, broker: int) -> None:
        """Retention takes some segments."""
        for partition, replica in self._replicas(which, broker):
            limit = self._stored_until(partition, replica) if self._stored_until else None
            self._cluster.retire(partition, replica, 1 + int(number * 3), limit)

    def delete_records(self, which: float, number: float, _broker: int) -> None:
        """Somebody deletes the oldest records."""
        for partition in self._some(which):
            limit = self._stored_until(partition, partition.led) if self._stored_until else None
            self._cluster.delete_records(partition, number, limit)

    def shrink(self, which: float, _number: float, _broker: int) -> None:
        """The leader goes on without its follower."""
        for partition in self._some(which):
            self._cluster.shrink(partition)

    def elect(self, which: float, _number: float, broker: int) -> None:
        """An in-sync replica is elected."""
        for partition in self._some(which):
            self._cluster.elect(partition, broker, clean=True)

    def elect_unclean(self, which: float, _number: float, broker: int) -> None:
        """Any replica is elected, whatever it lacks."""
        for partition in self._some(which):
            self._cluster.elect(partition, broker, clean=False)

    def diverge(self, which: float, number: float, broker: int) -> None:
        """The leader goes on alone; seconds later its follower is elected, and goes on without what it lacks."""
        for partition in self._some(which):
            self._cluster.shrink(partition)
            self.append(which, number, broker)
            later = self._faults.felt(1 + 8 * number)
            self._scheduler.call_later(later, partial(self.elect_unclean, which, number, 3 - partition.leader))
            self._scheduler.call_later(self._faults.felt(later + 1), partial(self.append, which, number, broker))

    def delete(self, which: float, again: float, _broker: int) -> None:
        """Delete a topic; soon there may be another one of that name."""
        for partition in self._some(which):
            topic = partition.at.topic
            self._cluster.delete(topic)
            if again < 0.7:
                self._scheduler.call_later(self._faults.felt(again * 4), partial(self._make, topic))

    def create(self, which: float, _number: float, _broker: int) -> None:
        """Make a topic, if there is none of that name."""
        self._make(pick(which, _TOPICS))

    def _make(self, topic: str) -> None:
        if not any(at.topic == topic for at in self._cluster.partitions):
            self._cluster.create(topic, 1, replicated=self._replicated)

    def _some(self, which: float) -> list[Partition]:
        here = [partition for _, partition in sorted(self._cluster.partitions.items())]
        return [pick(which, here)] if here else []

    def _replicas(self, which: float, broker: int) -> list[tuple[Partition, Replica]]:
        return [(each, each.replicas[broker]) for each in self._some(which) if broker in each.replicas]
