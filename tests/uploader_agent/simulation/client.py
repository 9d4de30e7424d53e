"""What the agent asks brokers: answers of the simulated cluster, given late, wrongly, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from types import coroutine
from typing import Any, TypeVar

from kafka.errors import (
    FencedLeaderEpochError,
    KafkaConnectionError,
    KafkaTimeoutError,
    NotLeaderForPartitionError,
    UnknownLeaderEpochError,
    UnknownTopicOrPartitionError,
)
from kafka.protocol.consumer import (
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetSpec,
)
from kafka.protocol.metadata import MetadataRequest, MetadataResponse

from tests.uploader_agent.simulation.broker import Cluster, Leading, Replica
from tests.uploader_agent.simulation.clock import Scheduler
from tests.uploader_agent.simulation.faults import HANGS, Faults
from tidemark.formats.keys import TopicPartition
from tidemark.formats.raw.incarnations import topic_id_text
from uploader_agent.broker.admin import Cleanup, KafkaTier, Leader, Led, Metadata, Offsets
from uploader_agent.broker.authority import Authority, MetadataMark

Answer = TypeVar("Answer")


class Client:
    """kafka-python's admin client, as far as the agent uses it."""

    def __init__(self, cluster: Cluster, scheduler: Scheduler, faults: Faults) -> None:
        self._cluster = cluster
        self._scheduler = scheduler
        self._faults = faults

    @property
    def _manager(self) -> Client:
        return self

    def run(self, _send: Callable[..., Any], _client: Client, request: Any, node_id: int | None) -> Any:
        """What ``request``, for offsets, is answered by ``node_id``, or for leaders by anybody."""
        if isinstance(request, MetadataRequest):
            names = None if request.topics is None else [topic.name for topic in request.topics]
            return self.request("topics", lambda: self._topics(names))
        assert node_id is not None
        if isinstance(request, OffsetForLeaderEpochRequest):
            named = [
                (TopicPartition(one.topic, part.partition), part) for one in request.topics for part in one.partitions
            ]
            what = f"log_ends {node_id} {[str(at) for at, _ in named]}"
            return self.request(what, lambda: _ends([self._log_end(at, part, node_id) for at, part in named]))
        assert isinstance(request, ListOffsetsRequest)
        asked = [
            (TopicPartition(topic.name, part.partition_index), part)
            for topic in request.topics
            for part in topic.partitions
        ]
        spec = OffsetSpec(asked[0][1].timestamp)
        what = f"list_offsets {request.isolation_level} {node_id} {spec.name} {[str(at) for at, _ in asked]}"
        return self.request(what, lambda: _answered([self._offset(at, part, spec, node_id) for at, part in asked]))

    def describe_configs(self, wanted: Sequence[Any], config_filter: str) -> dict[str, Any]:
        names = [one.name for one in wanted]
        policy = "compact" if self._cluster.compacted else "delete"
        told = {"cleanup.policy": {"value": policy}, "delete.retention.ms": {"value": "86400000"}}
        answer = {"topic": dict.fromkeys(names, told)}
        return self.request(f"describe_configs {config_filter}", lambda: answer)

    def close(self) -> None:
        """Nothing is open."""

    def request(self, what: str, answer: Callable[[], Answer]) -> Answer:
        """What :meth:`exchange` comes to, for a thread that waits."""
        steps = self.exchange(what, answer)
        while True:
            try:
                self._scheduler.sleep(next(steps))
            except StopIteration as end:
                said: Answer = end.value
                return said

    @coroutine
    def exchange(self, what: str, answer: Callable[[], Answer]) -> Generator[float, None, Answer]:
        """The ``answer`` at the arrival of the request, and what goes wrong. Yields the seconds that both take."""
        faults = self._faults
        faults.tell(f"   asked: {what}")
        if faults.strike("broker_hangs", what):
            yield faults.felt(faults.within(1.0, HANGS))
            raise KafkaTimeoutError("the simulation says so")
        yield faults.latency("broker_slow", what)
        if faults.strike("broker_error", what):
            raise KafkaConnectionError("the simulation says so")
        if faults.strike("broker_odd_error", what):
            raise ValueError("what no client library promised to raise")
        said = answer()
        yield faults.latency("broker_slow", what)
        faults.tell(f"   answered: {what}: {said}")
        return said

    def view(self, what: str) -> dict[TopicPartition, Leading]:
        """The leaders as any broker may tell them: one that lags behind tells of the past."""
        lags = self._faults.strike("broker_lags", what)
        return self._cluster.view(self._scheduler.now - (self._faults.within(0.0, 3.0) if lags else 0.0))

    def _topics(self, names: Sequence[str] | None) -> Any:
        made, found = MetadataResponse.MetadataResponseTopic, dict[str, Any]()
        for at, one in self.view(f"topics {names}").items():
            if names is None or at.topic in names:
                topic = found.setdefault(at.topic, made(name=at.topic, topic_id=one.topic_id, partitions=[]))
                said = {"leader_id": one.leader, "leader_epoch": one.leader_epoch, "replica_nodes": list(one.replicas)}
                topic.partitions.append(made.MetadataResponsePartition(partition_index=at.partition, **said))
        return MetadataResponse(topics=list(found.values()))

    def leading(self, at: TopicPartition, broker: int, epoch: int, what: str) -> Any:
        """The replica of ``broker``, if it leads under the ``epoch`` by which it is asked; else its error."""
        partition = self._cluster.partitions.get(at)
        replica = partition.replicas.get(broker) if partition else None
        if replica is None:
            return UnknownTopicOrPartitionError
        if epoch != replica.leader_epoch:
            return FencedLeaderEpochError if epoch < replica.leader_epoch else UnknownLeaderEpochError
        if not replica.leads or self._faults.strike("partition_error", f"{what} of {at}"):
            return NotLeaderForPartitionError
        return replica

    def _offset(self, at: TopicPartition, asked: Any, spec: OffsetSpec, broker: int) -> tuple[TopicPartition, Any]:
        """As ``Partition.fetchOffsetForTimestamp`` answers one that asks as under ``current_leader_epoch``."""
        made = ListOffsetsResponse.ListOffsetsTopicResponse.ListOffsetsPartitionResponse
        replica = self.leading(at, broker, asked.current_leader_epoch, spec.name)
        if not isinstance(replica, Replica):
            return at, made(partition_index=at.partition, error_code=replica.errno, offset=-1)
        if spec is OffsetSpec.LATEST_TIERED:
            offset = -1
        else:
            offset = replica.high_watermark if spec is OffsetSpec.LATEST else replica.log_start
        return at, made(partition_index=at.partition, error_code=0, offset=offset)

    def _log_end(self, at: TopicPartition, asked: Any, broker: int) -> tuple[TopicPartition, Any]:
        """As a leader answers for its own epoch (KIP-101)."""
        made = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult.EpochEndOffset
        replica = self.leading(at, broker, asked.current_leader_epoch, "log end")
        if not isinstance(replica, Replica):
            return at, made(partition=at.partition, error_code=replica.errno, leader_epoch=-1, end_offset=-1)
        return at, made(partition=at.partition, error_code=0, leader_epoch=replica.leader_epoch, end_offset=replica.end)


def _answered(parts: Sequence[tuple[TopicPartition, Any]]) -> Any:
    topic = ListOffsetsResponse.ListOffsetsTopicResponse
    return ListOffsetsResponse(topics=[topic(name=at.topic, partitions=[part]) for at, part in parts])


def _ends(parts: Sequence[tuple[TopicPartition, Any]]) -> Any:
    topic = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
    return OffsetForLeaderEpochResponse(topics=[topic(topic=at.topic, partitions=[part]) for at, part in parts])


class CommittedLeaders(Authority):
    """The leaders as the cluster's metadata have them now."""

    def __init__(self, cluster: Cluster, scheduler: Scheduler) -> None:
        self._cluster = cluster
        self._scheduler = scheduler

    def mark(self) -> MetadataMark:
        return MetadataMark()

    def confirms(self, mark: MetadataMark) -> bool | None:
        del mark  # there is one log of metadata, and each answer is of its end
        return True

    def leader(self, tp: TopicPartition) -> Leader | None:
        found = self._cluster.view(self._scheduler.now).get(tp)
        if found is None:
            return None
        return Leader(found.leader, Led(found.leader_epoch, topic_id_text(found.topic_id)), found.replicas)


class Questions(Metadata):
    """The agent's own questions; ``asked`` is told the kind of each."""

    def __init__(self, own: Metadata, asked: Callable[[str], None]) -> None:
        self._own = own
        self._asked = asked

    def leaders(self, wanted: Collection[TopicPartition], *, everything: bool = False) -> dict[TopicPartition, Leader]:
        self._asked("leaders")
        return self._own.leaders(wanted, everything=everything)

    def offsets(self, led: Mapping[TopicPartition, Led]) -> dict[TopicPartition, Offsets]:
        self._asked("offsets")
        return self._own.offsets(led)

    def remote_tier(self, led: Mapping[TopicPartition, Led]) -> dict[TopicPartition, KafkaTier | None]:
        self._asked("remote_tier")
        return self._own.remote_tier(led)

    def cleanup(self, topics: Collection[str]) -> dict[str, Cleanup]:
        return self._own.cleanup(topics)
