"""What the agent asks its broker: answers of the simulated cluster, given late, wrongly, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from kafka.errors import (
    KafkaConnectionError,
    KafkaTimeoutError,
    NotLeaderForPartitionError,
    UnknownTopicOrPartitionError,
)

from tests.uploader_agent.simulation.broker import Cluster
from tests.uploader_agent.simulation.clock import Scheduler
from tests.uploader_agent.simulation.faults import HANGS, Faults
from tidemark.formats.keys import TopicPartition
from uploader_agent.broker.admin import AdminMetadata, Leader, Led, Offsets

Answer = TypeVar("Answer")


class Found(NamedTuple):
    """What ListOffsets answers."""

    offset: int
    leader_epoch: int | None


class Client:
    """kafka-python's admin client, as far as the agent uses it."""

    def __init__(self, cluster: Cluster, scheduler: Scheduler, faults: Faults) -> None:
        self._cluster = cluster
        self._scheduler = scheduler
        self._faults = faults

    def describe_topics(self, names: Sequence[str]) -> list[dict[str, Any]]:
        return self._request("describe_topics", lambda: self._topics(names))

    def list_partition_offsets(
        self, specs: Mapping[Any, Any], isolation: Any, timeout_ms: int | None = None
    ) -> dict[Any, Found]:
        wanted = {at: spec.name for at, spec in specs.items()}
        what = (
            f"list_offsets {isolation.name} {timeout_ms} {[f'{at.topic}-{at.partition} {wanted[at]}' for at in wanted]}"
        )
        return self._request(what, lambda: {at: self._offset(TopicPartition(*at), spec) for at, spec in wanted.items()})

    def describe_configs(self, wanted: Sequence[Any], config_filter: str) -> dict[str, Any]:
        names = [one.name for one in wanted]
        answer = {"topic": {name: {"cleanup.policy": {"value": "delete"}} for name in names}}
        return self._request(f"describe_configs {config_filter}", lambda: answer)

    def close(self) -> None:
        """Nothing is open."""

    def _request(self, what: str, answer: Callable[[], Answer]) -> Answer:
        faults = self._faults
        faults.tell(f"   asked: {what}")
        if faults.strike("broker_hangs", what):
            self._scheduler.sleep(faults.felt(faults.within(1.0, HANGS)))
            raise KafkaTimeoutError("the simulation says so")
        self._scheduler.sleep(faults.latency("broker_slow", what))
        if faults.strike("broker_error", what):
            raise KafkaConnectionError("the simulation says so") if faults.even() else NotLeaderForPartitionError()
        if faults.strike("broker_odd_error", what):
            raise ValueError("what no client library promised to raise")
        said = answer()
        self._scheduler.sleep(faults.latency("broker_slow", what))
        faults.tell(f"   answered: {what}: {said}")
        return said

    def _topics(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """As any broker may answer: one that lags behind tells of the past."""
        lags = self._faults.strike("broker_lags", f"describe_topics {names}")
        moment = self._scheduler.now - (self._faults.within(0.0, 3.0) if lags else 0.0)
        view = next(view for since, view in reversed(self._cluster.views) if since <= max(0.0, moment))
        found: dict[str, dict[str, Any]] = {}
        for at, one in view.items():
            if at.topic in names:
                topic = found.setdefault(at.topic, {"name": at.topic, "topic_id": one.topic_id, "partitions": []})
                said = {"partition_index": at.partition, "leader_id": one.leader, "leader_epoch": one.leader_epoch}
                topic["partitions"].append(said)
        return list(found.values())

    def _offset(self, at: TopicPartition, spec: str) -> Found:
        partition = self._cluster.partitions.get(at)
        if partition is None:
            raise UnknownTopicOrPartitionError
        if spec == "EARLIEST":
            return Found(partition.log_start, 0)
        return Found(partition.high_watermark, partition.leader_epoch)


class Questions(AdminMetadata):
    """The agent's own client; ``asked`` is told the kind of each question."""

    def __init__(self, connect: Callable[[], Any], asked: Callable[[str], None]) -> None:
        super().__init__(connect)
        self._asked = asked

    def leaders(self, wanted: Collection[TopicPartition]) -> dict[TopicPartition, Leader]:
        self._asked("leaders")
        return super().leaders(wanted)

    def offsets(self, led: Mapping[TopicPartition, Led]) -> dict[TopicPartition, Offsets]:
        self._asked("offsets")
        return super().offsets(led)
