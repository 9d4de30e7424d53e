"""Asks the broker for the partitions that it leads, their offsets and their clean-up policy. No record is ever fetched.

One admin client serves KRaft and ZooKeeper clusters. Leadership is a hint for who uploads; an answer about offsets
counts only if the broker gave it under the leader epoch that came with the leadership. While the broker cannot be
asked, its ``replication-offset-checkpoint`` gives a lower bound of the high watermark.

Source: KIP-516 (topic ids), KIP-405 and KIP-1005 (Kafka's own remote tier).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

from typing_extensions import override

from tidemark.errors import FormatError, TidemarkError
from tidemark.formats.keys import TopicPartition
from tidemark.formats.raw.incarnations import topic_id_text
from tidemark.formats.raw.manifest import compacts
from tidemark.kafka_log import parse_offset_checkpoint
from uploader_agent.disk.log_dirs import PARTITION_METADATA, read_text

Item = TypeVar("Item")

QUERY_SIZE = 1000
"""Partitions or topics in one request: between two requests the broker answers other clients."""

CHECKPOINT = "replication-offset-checkpoint"
UNKNOWN_POLICY = "unknown"


class Cleanup(NamedTuple):
    """A topic's ``cleanup.policy``, and its ``delete.retention.ms``; None if that is unknown."""

    policy: str = UNKNOWN_POLICY
    delete_retention_ms: int | None = None

    @property
    def may_compact(self) -> bool:
        """True if the broker's cleaner may remove records, or the policy is unknown."""
        return self.policy == UNKNOWN_POLICY or compacts(self.policy)


class BrokerUnavailable(TidemarkError):
    """The broker did not answer, or its answer is unusable; try again later."""


class Led(NamedTuple):
    """A partition that this broker leads. ``topic_id`` is None on clusters without topic ids."""

    leader_epoch: int
    topic_id: str | None


class Leader(NamedTuple):
    """The broker that leads a partition, and its leadership. ``broker`` is -1 while no broker leads.

    ``replicas`` are the brokers that have a replica, as far as the answer names them.
    """

    broker: int
    led: Led
    replicas: tuple[int, ...] = ()


class KafkaTier(NamedTuple):
    """The end of what Kafka's own remote tier may have of a log, from its start on.

    ``local_start`` is the first offset that the broker keeps on its disk: offsets below have left it. ``end`` is the
    offset after the last one in the remote tier; 0 while the broker does not know it, as right after a restart; None
    if it cannot say (before Kafka 3.9), where it deletes nothing that is not in the remote tier.
    """

    local_start: int
    end: int | None


@dataclass(frozen=True, slots=True)
class Offsets:
    """A partition's offsets as last observed; None for offsets that the checkpoint does not have.

    ``log_end`` is the leader's log end before it named the others; None where the log itself is at hand. ``tier`` is
    None unless the disk begins above the log's start, and the broker knows of remote tiers.
    """

    high_watermark: int
    last_stable_offset: int | None = None
    log_start_offset: int | None = None
    source: Literal["broker", "checkpoint"] = "broker"
    log_end: int | None = None
    tier: KafkaTier | None = None


class Metadata(Protocol):
    """The questions that the agent asks its broker. Every method raises :class:`BrokerUnavailable`."""

    def leaders(self, wanted: Collection[TopicPartition], *, everything: bool = False) -> dict[TopicPartition, Leader]:
        """The leader of each partition in ``wanted``. Partitions that are not in the cluster are left out.

        With ``everything`` also the partitions beside ``wanted`` that this broker leads.
        """
        ...

    def offsets(self, led: Mapping[TopicPartition, Led]) -> dict[TopicPartition, Offsets]:
        """Offsets of the partitions that this broker still leads under the epoch in ``led``; others are left out."""
        ...

    def remote_tier(self, led: Mapping[TopicPartition, Led]) -> dict[TopicPartition, KafkaTier | None]:
        """The remote tier's part of the logs that this broker still leads; None if the broker knows of no such tier."""
        ...

    def cleanup(self, topics: Collection[str]) -> dict[str, Cleanup]:
        """The clean-up of each topic that exists."""
        ...


class AdminMetadata(Metadata):
    """:class:`Metadata` from kafka-python's admin client, connected on first use and again after a failure."""

    def __init__(self, node_id: int, connect: Callable[[], Any], cluster: str | None = None) -> None:
        """Prepare to ask broker ``node_id``, about its partitions and all else; nothing is connected yet.

        An answer about leaders counts only if it comes from the cluster with the id ``cluster``; None: from any.
        """
        self._node_id = node_id
        self._connect = connect
        self._cluster = cluster
        self.answered: str | None = None
        """The id of the cluster that has given the last answer about leaders. For any thread."""
        self._client: Any = None

    def brokers(self) -> list[int]:
        """The ids of the cluster's brokers. Raises :class:`BrokerUnavailable`."""
        return sorted(broker["broker_id"] for broker in self._ask(lambda client: client.describe_cluster())["brokers"])

    def cluster_id(self) -> str:
        """The cluster's own id. Raises :class:`BrokerUnavailable`."""
        return str(self._ask(lambda client: client.describe_cluster())["cluster_id"])

    @override
    def leaders(self, wanted: Collection[TopicPartition], *, everything: bool = False) -> dict[TopicPartition, Leader]:
        """See :class:`Metadata`. Else only the topics of ``wanted`` are asked for, and asking creates no topic."""
        from uploader_agent.broker.partition_requests import topics

        names = sorted({tp.topic for tp in wanted})
        asked = topics(None if everything else names)
        leaders = leaders_in(self._answer(asked)) if names or everything else {}
        ours = self._node_id if everything else None
        return {tp: leader for tp, leader in leaders.items() if tp in wanted or leader.broker == ours}

    def _answer(self, request: Any) -> Any:
        """Any broker's answer to a Metadata request, which names the cluster."""
        answer = self._ask(partial(_send_to, request, None))
        if answer.cluster_id is not None:
            self.answered = answer.cluster_id
            if self._cluster not in {None, self.answered}:
                rule = f"it is of the cluster {self.answered}, and the disk is of {self._cluster}"
                raise BrokerUnavailable(f"another broker has answered: {rule}; correct broker.bootstrap, or restart")
        return answer

    @override
    def offsets(self, led: Mapping[TopicPartition, Led]) -> dict[TopicPartition, Offsets]:
        return self.offsets_from(self._node_id, led)

    def offsets_from(self, broker: int, led: Mapping[TopicPartition, Led]) -> dict[TopicPartition, Offsets]:
        """The :meth:`offsets` of partitions that ``broker`` leads."""
        offsets: dict[TopicPartition, Offsets] = {}
        for chunk in _chunks(sorted(led)):
            stable = self._list_offsets(broker, chunk, led, "LATEST", committed=True)
            high = self._list_offsets(broker, stable, led, "LATEST", committed=False)
            start = self._list_offsets(broker, high, led, "EARLIEST", committed=False)
            for tp, high_watermark in high.items():
                offsets[tp] = Offsets(high_watermark, stable[tp], start.get(tp))
        return offsets

    @override
    def remote_tier(self, led: Mapping[TopicPartition, Led]) -> dict[TopicPartition, KafkaTier | None]:
        tiers: dict[TopicPartition, KafkaTier | None] = {}
        for chunk in _chunks(sorted(led)):
            starts = self._of_remote_tier(chunk, led, "EARLIEST_LOCAL")
            ends = self._of_remote_tier(starts, led, "LATEST_TIERED") if starts else {}
            if starts is None:
                tiers |= dict.fromkeys(chunk)
            elif ends is None:
                tiers |= {tp: KafkaTier(start, None) for tp, start in starts.items()}
            else:
                tiers |= {tp: KafkaTier(starts[tp], last + 1) for tp, last in ends.items()}
        return tiers

    def _of_remote_tier(
        self, wanted: Iterable[TopicPartition], led: Mapping[TopicPartition, Led], spec: str
    ) -> dict[TopicPartition, int] | None:
        """As :meth:`_list_offsets`; None if the broker's version does not know ``spec``."""
        from kafka.errors import UnsupportedVersionError

        try:
            return self._list_offsets(self._node_id, wanted, led, spec, committed=False)
        except BrokerUnavailable as error:
            if isinstance(error.__cause__, UnsupportedVersionError):
                return None
            raise

    @override
    def cleanup(self, topics: Collection[str]) -> dict[str, Cleanup]:
        from kafka.admin import ConfigResource, ConfigResourceType

        found: dict[str, Cleanup] = {}
        for chunk in _chunks(topics):
            names = dict.fromkeys(("cleanup.policy", "delete.retention.ms"))
            wanted = [ConfigResource(ConfigResourceType.TOPIC, name, configs=names) for name in chunk]
            answer = self._ask(partial(_describe_configs, wanted))
            for name, configs in answer.get("topic", {}).items():
                retention = int(configs["delete.retention.ms"]["value"])
                found[name] = Cleanup(configs["cleanup.policy"]["value"], retention)
        return found

    def close(self) -> None:
        """Close the connection, if there is one."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def log_ends(self, broker: int, led: Mapping[TopicPartition, Led]) -> dict[TopicPartition, int]:
        """The log end offsets of the partitions that ``broker`` leads under the epoch in ``led``; others are left out.

        A leader answers OffsetForLeaderEpoch of its own epoch with its log end (KIP-101).
        """
        from uploader_agent.broker.partition_requests import epoch_ends

        ends: dict[TopicPartition, int] = {}
        for chunk in _chunks(sorted(led)):
            request = epoch_ends({tp: (led[tp].leader_epoch, led[tp].leader_epoch) for tp in chunk})
            for answered in self._ask(partial(_send_to, request, broker)).topics:
                for part in answered.partitions:
                    tp = TopicPartition(answered.topic, part.partition)
                    if not part.error_code and part.leader_epoch == led[tp].leader_epoch:
                        ends[tp] = part.end_offset
        return ends

    def _list_offsets(
        self,
        broker: int,
        wanted: Iterable[TopicPartition],
        led: Mapping[TopicPartition, Led],
        spec: str,
        *,
        committed: bool,
    ) -> dict[TopicPartition, int]:
        """Offsets from ListOffsets for each partition of ``wanted`` that the broker leads under the epoch in ``led``.

        The admin client's own method looks up all leaders before each request, which takes ten times as long. Here, the
        end of a leadership is an answer.
        """
        from uploader_agent.broker.partition_requests import offsets

        epochs = {tp: led[tp].leader_epoch for tp in wanted}
        if not epochs:
            return {}
        request = offsets(epochs, spec, committed=committed)
        answer = self._ask(partial(_send_to, request, broker))
        return {
            TopicPartition(answered.name, part.partition_index): part.offset
            for answered in answer.topics
            for part in answered.partitions
            if not part.error_code
        }

    def _ask(self, question: Callable[[Any], Any]) -> Any:
        from kafka.errors import BrokerResponseError, KafkaError

        try:
            if self._client is None:
                self._client = self._connected()
            return question(self._client)
        except (KafkaError, OSError, TimeoutError) as error:
            if not isinstance(error, BrokerResponseError):  # an error that the broker answers proves the connection
                self.close()
            raise BrokerUnavailable(f"the broker cannot be asked: {type(error).__name__}: {error}") from error

    def _connected(self) -> Any:
        try:
            return self._connect()
        except (AttributeError, TypeError, ValueError) as error:
            rule = "kafka-python takes no such broker.bootstrap or broker.client, as the agent's file has them"
            raise BrokerUnavailable(f"{rule}: {type(error).__name__}: {error}") from error


def _send_to(request: Any, broker: int | None, client: Any) -> Any:
    return send(client, request, broker)


def send(client: Any, request: Any, node_id: int | None) -> Any:
    """The answer of broker ``node_id`` and no other to ``request``; if None, of any. Raises kafka-python's errors."""
    return client._manager.run(_sent, client, request, node_id)


async def _sent(client: Any, request: Any, node_id: int | None) -> Any:
    return await client._manager.send(request, node_id=node_id)


def connect(node_id: int, bootstrap: str, security_protocol: str, options: Mapping[str, str | int | bool]) -> Any:
    """An admin client that asks broker ``node_id`` at ``bootstrap``. Raises kafka-python's errors."""
    from kafka.admin import KafkaAdminClient

    chosen: dict[str, str | int | bool] = {
        "bootstrap_servers": bootstrap,
        "bootstrap_timeout_ms": 10_000,
        "client_id": "tidemark-agent",
        "request_timeout_ms": 10_000,
        "security_protocol": security_protocol,
    }
    client = KafkaAdminClient.__new__(KafkaAdminClient)
    try:
        client.__init__(**(chosen | dict(options)))
    except BaseException:
        client._closed = False
        with suppress(AttributeError):  # the client may have failed before it had anything to close
            client.close()
        raise
    _prefer(client._manager, node_id)
    return client


def _prefer(manager: Any, node_id: int) -> None:
    """Send requests that any broker can answer to ``node_id``, while the cluster lists it.

    kafka-python picks a broker at random, and another broker that hangs would cost this agent its answers.
    """
    at_random = manager.least_loaded_node

    def preferred() -> int | None:
        chosen: int | None = node_id if manager.cluster.broker_metadata(node_id) else at_random()
        return chosen

    manager.least_loaded_node = preferred


def checkpointed_offsets(
    log_dirs: Iterable[Path],
    wanted: Mapping[TopicPartition, Path],
    unreadable: Callable[[FormatError], object] | None = None,
) -> dict[TopicPartition, Offsets]:
    """High watermarks as the broker last wrote them to its disks, never ahead of the real ones.

    ``wanted`` are partitions and their directories. A checkpoint has no topic ids: if it is older than a partition's
    directory, it may be about a deleted topic of that name, so it does not count for that partition.

    Raises:
        FormatError: a checkpoint is damaged or cannot be read. With ``unreadable`` that is told, and the others count.
    """
    offsets: dict[TopicPartition, Offsets] = {}
    for log_dir in log_dirs:
        try:
            offsets |= _checkpointed(log_dir / CHECKPOINT, wanted)
        except FormatError as error:
            if unreadable is None:
                raise
            unreadable(error)
    return offsets


def _checkpointed(path: Path, wanted: Mapping[TopicPartition, Path]) -> dict[TopicPartition, Offsets]:
    """The offsets of ``wanted`` partitions in the checkpoint ``path``. Raises FormatError."""
    try:
        written = path.stat().st_mtime
        text = read_text(path)
        return {
            tp: Offsets(offset, source="checkpoint")
            for (topic, partition), offset in parse_offset_checkpoint(text, str(path)).items()
            if (tp := TopicPartition(topic, partition)) in wanted and _made(wanted[tp]) <= written
        }
    except FileNotFoundError:
        return {}  # a log directory that has never held a partition
    except OSError as error:
        raise FormatError(str(path), f"cannot be read: {error}") from error


def _made(folder: Path) -> float:
    """The time at which a partition's directory was made, in seconds since 1970; 0 where the cluster has no topic ids.

    Kafka writes ``partition.metadata`` once, when it makes the directory. Infinite if that cannot be told.
    """
    try:
        return (folder / PARTITION_METADATA).stat().st_mtime
    except (FileNotFoundError, NotADirectoryError):
        return 0.0
    except OSError:
        return float("inf")


def _chunks(items: Iterable[Item]) -> Iterator[list[Item]]:
    rest = iter(items)
    while chunk := list(islice(rest, QUERY_SIZE)):
        yield chunk


def _describe_configs(wanted: list[Any], client: Any) -> Any:
    return client.describe_configs(wanted, config_filter="all")


def leaders_in(answer: Any) -> dict[TopicPartition, Leader]:
    """The leaders that a broker's answer to Metadata names; without those of topics that it cannot describe."""
    return {
        TopicPartition(topic.name, part.partition_index): Leader(
            part.leader_id, Led(part.leader_epoch, topic_id), tuple(part.replica_nodes)
        )
        for topic, topic_id in ((topic, topic_id_text(topic.topic_id)) for topic in answer.topics)
        for part in topic.partitions
        if not topic.error_code
    }
