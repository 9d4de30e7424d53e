"""What the agent asks its broker: answers of the simulated cluster, given late, wrongly, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from kafka.errors import (
    FencedLeaderEpochError,
    KafkaConnectionError,
    KafkaTimeoutError,
    NotLeaderForPartitionError,
    UnknownLeaderEpochError,
    UnknownTopicOrPartitionError,
)
from kafka.protocol.consumer import ListOffsetsRequest, ListOffsetsResponse, OffsetSpec

from tests.uploader_agent.simulation.broker import Cluster
from tests.uploader_agent.simulation.clock import Scheduler
from tests.uploader_agent.simulation.faults import HANGS, Faults
from tidemark.formats.keys import TopicPartition
from uploader_agent.broker.admin import AdminMetadata, Leader, Led, Offsets

Answer = TypeVar("Answer")


class Client:
    """kafka-python's admin client of ``broker``, as far as the agent uses it."""

    def __init__(self, broker: int, cluster: Cluster, scheduler: Scheduler, faults: Faults) -> None:
        self._broker = broker
        self._cluster = cluster
        self._scheduler = scheduler
        self._faults = faults

    def describe_topics(self, names: Sequence[str]) -> list[dict[str, Any]]:
        return self._request("describe_topics", lambda: self._topics(names))

    @property
    def _manager(self) -> Client:
        return self

    def run(self, _send: Callable[..., Any], _client: Client, request: Any, node_id: int) -> Any:
        """What ``request``, for offsets, is answered."""
        assert isinstance(request, ListOffsetsRequest)
        asked = [
            (TopicPartition(topic.name, part.partition_index), part)
            for topic in request.topics
            for part in topic.partitions
        ]
        spec = OffsetSpec(asked[0][1].timestamp)
        what = f"list_offsets {request.isolation_level} {node_id} {spec.name} {[str(at) for at, _ in asked]}"
        return self._request(what, lambda: _answered([self._offset(at, part, spec) for at, part in asked]))

    def describe_configs(self, wanted: Sequence[Any], config_filter: str) -> dict[str, Any]:
        names = [one.name for one in wanted]
        policy = "compact" if self._cluster.compacted else "delete"
        answer = {"topic": {name: {"cleanup.policy": {"value": policy}} for name in names}}
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
            raise KafkaConnectionError("the simulation says so")
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
                topic["partitions"].append(said | {"replica_nodes": list(one.replicas)})
        return list(found.values())

    def _offset(self, at: TopicPartition, asked: Any, spec: OffsetSpec) -> tuple[TopicPartition, Any]:
        """As ``Partition.fetchOffsetForTimestamp`` answers one that asks as under ``current_leader_epoch``."""
        partition = self._cluster.partitions.get(at)
        replica = partition.replicas.get(self._broker) if partition else None
        error, offset = 0, -1
        if replica is None:
            error = UnknownTopicOrPartitionError.errno
        elif asked.current_leader_epoch < replica.leader_epoch:
            error = FencedLeaderEpochError.errno
        elif asked.current_leader_epoch > replica.leader_epoch:
            error = UnknownLeaderEpochError.errno
        elif not replica.leads or self._faults.strike("partition_error", f"{spec.name} of {at}"):
            error = NotLeaderForPartitionError.errno
        else:
            offset = replica.log_start if spec is OffsetSpec.EARLIEST else replica.high_watermark
        made = ListOffsetsResponse.ListOffsetsTopicResponse.ListOffsetsPartitionResponse
        return at, made(partition_index=at.partition, error_code=error, offset=offset)


def _answered(parts: Sequence[tuple[TopicPartition, Any]]) -> Any:
    topic = ListOffsetsResponse.ListOffsetsTopicResponse
    return ListOffsetsResponse(topics=[topic(name=at.topic, partitions=[part]) for at, part in parts])


class Questions(AdminMetadata):
    """The agent's own client; ``asked`` is told the kind of each question."""

    def __init__(self, broker: int, connect: Callable[[], Any], asked: Callable[[str], None]) -> None:
        super().__init__(broker, connect)
        self._asked = asked

    def leaders(self, wanted: Collection[TopicPartition]) -> dict[TopicPartition, Leader]:
        self._asked("leaders")
        return super().leaders(wanted)

    def offsets(self, led: Mapping[TopicPartition, Led]) -> dict[TopicPartition, Offsets]:
        self._asked("offsets")
        return super().offsets(led)
