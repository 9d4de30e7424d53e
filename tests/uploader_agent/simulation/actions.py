"""What happens to the cluster in a schedule: each kind of action, by its particulars."""

from __future__ import annotations

from functools import partial

from tests.uploader_agent.simulation.broker import THEM, US, Cluster, Partition
from tests.uploader_agent.simulation.clock import Scheduler
from tests.uploader_agent.simulation.faults import Faults
from tests.uploader_agent.simulation.schedule import pick

_TOPICS = ["orders", "payments", "returns"]


class ClusterActions:
    """One method for each kind, with two numbers in [0, 1) that say which, and how many or when."""

    def __init__(self, cluster: Cluster, scheduler: Scheduler, faults: Faults, *, replicated: bool) -> None:
        self._cluster = cluster
        self._scheduler = scheduler
        self._faults = faults
        self._replicated = replicated

    def append(self, which: float, number: float) -> None:
        """Produce some batches."""
        for partition in self._some(which):
            self._cluster.append(partition, [1 + int(number * 97 + one) % 3 for one in range(1 + int(number * 4))])

    def roll(self, which: float, _: float) -> None:
        """Begin another segment."""
        for partition in self._some(which):
            self._cluster.roll(partition)

    def compact(self, which: float, number: float) -> None:
        """The log cleaner comes by."""
        for partition in self._some(which):
            self._cluster.compact(partition, number)

    def retire(self, which: float, number: float) -> None:
        """Retention takes some segments."""
        for partition in self._some(which):
            self._cluster.retire(partition, 1 + int(number * 3))

    def lose_leadership(self, which: float, _: float) -> None:
        """The other broker leads."""
        for partition in self._some(which):
            self._cluster.lead(partition, THEM)

    def gain_leadership(self, which: float, _: float) -> None:
        """What the other broker leads is led by the agent's again."""
        elsewhere = [one for _, one in sorted(self._cluster.partitions.items()) if one.leader == THEM]
        if elsewhere:
            self._cluster.lead(pick(which, elsewhere), US)

    def delete(self, which: float, again: float) -> None:
        """Delete a topic; soon there may be another one of that name."""
        for partition in self._some(which):
            topic = partition.at.topic
            self._cluster.delete(topic)
            if again < 0.7:
                self._scheduler.call_later(self._faults.felt(again * 4), partial(self._make, topic))

    def create(self, which: float, _: float) -> None:
        """Make a topic, if there is none of that name."""
        self._make(pick(which, _TOPICS))

    def _make(self, topic: str) -> None:
        if not any(at.topic == topic for at in self._cluster.partitions):
            self._cluster.create(topic, 1, replicated=self._replicated)

    def _some(self, which: float) -> list[Partition]:
        here = [one for _, one in sorted(self._cluster.partitions.items())]
        return [pick(which, here)] if here else []
