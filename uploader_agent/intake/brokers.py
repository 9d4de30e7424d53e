"""A follower's questions to real brokers: kafka-python connects, authenticates, encrypts and negotiates versions.

Questions about topics and epochs go through kafka-python's own connections. Fetch has connections of its own, under
another client id, so a quota on it delays no question. kafka-python sets each of them up, and this module then takes
over its socket: kafka-python reads 4 KiB at a time, and limits frames to a size that a batch may exceed.

Fetch is asked by topic id, so by version 13 (Kafka 3.1) or later: by name, a topic that was deleted and made again
answers for its predecessor.

Source: KIP-320 (epochs), KIP-392 (near replicas), KIP-516 (topic ids), KIP-74 (sizes of answers).
"""

from __future__ import annotations

import io
import selectors
import socket
import struct
import time
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final, NamedTuple

from kafka import errors as kafka_errors
from kafka.errors import (
    IncompatibleBrokerVersion,
    KafkaConfigurationError,
    KafkaError,
    SaslAuthenticationFailedError,
    UnsupportedSaslMechanismError,
)
from kafka.net.connection import KafkaConnection
from kafka.net.manager import KafkaConnectionManager
from kafka.net.sasl import SASL_MECHANISMS
from kafka.net.selector import NetworkSelector
from kafka.protocol.consumer import (
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    OffsetForLeaderEpochRequest,
    OffsetSpec,
)
from kafka.protocol.metadata import MetadataRequest
from typing_extensions import override

from tidemark.errors import BrokerError, ConfigError
from tidemark.formats.keys import TopicPartition
from tidemark.formats.raw.incarnations import topic_id_text, topic_id_uuid
from uploader_agent.broker.admin import BrokerUnavailable, Leader, Led
from uploader_agent.intake.fetching import (
    Cluster,
    EpochEnd,
    FetchAnswer,
    FetchedPart,
    FetchLimits,
    FrameTooLarge,
    PartitionRefused,
    Refusal,
    TopicLeaders,
    Wanted,
)

QUESTIONS: Final = "tidemark-agent"
FETCHES: Final = "tidemark-fetch"
"""The client ids of the two kinds of connections. A quota on bytes belongs on the second."""

_BY_TOPIC_ID: Final = 13
_WITH_TOPIC_IDS: Final = 10
_WITH_EPOCHS: Final = 4
_WITH_EPOCH_FENCING: Final = 2
"""The first versions of Fetch, Metadata, ListOffsets and OffsetForLeaderEpoch with what the name says."""

_CONNECT_SECONDS: Final = 10.0
_ANSWER_SECONDS: Final = 30.0
_WAIT_MS: Final = 500
"""Time for which a broker may keep a Fetch request that it has no batch for."""

_LONGEST_HEADER: Final = 64

_REFUSALS: Final[dict[type[KafkaError], Refusal]] = {
    kafka_errors.OffsetOutOfRangeError: Refusal.RANGE,
    kafka_errors.LeaderNotAvailableError: Refusal.LEADER,
    kafka_errors.NotLeaderForPartitionError: Refusal.LEADER,
    kafka_errors.ReplicaNotAvailableError: Refusal.LEADER,
    kafka_errors.FencedLeaderEpochError: Refusal.LEADER,
    kafka_errors.UnknownLeaderEpochError: Refusal.LATER,
    kafka_errors.OffsetNotAvailableError: Refusal.LATER,
    kafka_errors.UnknownTopicOrPartitionError: Refusal.TOPIC,
    kafka_errors.UnknownTopicIdError: Refusal.TOPIC,
    kafka_errors.InconsistentTopicIdError: Refusal.TOPIC,
    kafka_errors.TopicAuthorizationFailedError: Refusal.RIGHT,
}

_FETCH_TOPIC: Final = FetchRequest.FetchTopic


class _Address(NamedTuple):
    """A broker's address, as kafka-python's manager reads it."""

    node_id: int | str
    host: str
    port: int
    rack: str | None = None


class BrokerConnections(Cluster):
    """The :class:`Cluster` at kafka-python's ``bootstrap_servers``. For one thread."""

    def __init__(self, settings: Mapping[str, Any], limits: FetchLimits, rack: str = "") -> None:
        """Nothing is connected yet. ``settings`` are kafka-python's; ``rack`` is the own one, for near replicas.

        Raises:
            ConfigError: kafka-python has no such SASL mechanism.
        """
        mechanism = settings.get("sasl_mechanism")
        if str(settings.get("security_protocol", "")).startswith("SASL") and mechanism not in SASL_MECHANISMS:
            known = ", ".join(sorted(SASL_MECHANISMS))
            raise ConfigError("sasl_mechanism", [("", f"{mechanism!r} is not known; it must be one of {known}")])
        self._limits, self._rack = limits, rack
        self._net = NetworkSelector()
        self._manager = KafkaConnectionManager(
            self._net, **({"receive_message_max_bytes": 100_000_000, "request_timeout_ms": 10_000} | dict(settings))
        )
        self._addresses: dict[int | str, _Address] = {
            found.node_id: _Address(found.node_id, found.host, found.port)
            for found in self._manager.cluster.bootstrap_brokers()
        }
        self._bootstrap = tuple(self._addresses)
        self._failed: dict[int | str, float] = {}
        """When a broker failed last: the others are asked first."""
        self._logged_in = False
        """A broker has accepted the settings."""
        self._questions: dict[int | str, Any] = {}
        self._fetches: dict[int, _FetchConnection] = {}
        self._selector = selectors.DefaultSelector()

    @override
    def topic(self, name: str) -> TopicLeaders | None:
        [topic] = self._described([name])
        return self._leaders(name, topic)

    @override
    def topics(self, names: Collection[str] | None) -> dict[str, TopicLeaders]:
        described = {topic.name: self._leaders(topic.name, topic) for topic in self._described(names)}
        return {name: leaders for name, leaders in described.items() if leaders is not None}

    def _described(self, names: Collection[str] | None) -> Any:
        """The topics ``names``, or all, as some broker describes them. Raises BrokerUnavailable, BrokerError."""
        asked, nobody = MetadataRequest.MetadataRequestTopic, uuid.UUID(int=0)
        wanted = None if names is None else [asked(name=name, topic_id=nobody) for name in sorted(names)]
        failure: BrokerUnavailable | None = None
        for broker in sorted(self._addresses, key=lambda broker: self._failed.get(broker, 0.0)):
            request = MetadataRequest(
                topics=wanted, allow_auto_topic_creation=False, min_version=_WITH_TOPIC_IDS, max_version=12
            )
            try:
                answer = self._ask(broker, request)
            except BrokerUnavailable as error:
                self._failed[broker] = time.monotonic()
                failure = error
            else:
                self._keep_addresses(answer.brokers)
                return answer.topics
        raise failure or BrokerUnavailable("no broker is known")

    @override
    def epoch_end(self, tp: TopicPartition, leader: Leader, epoch: int) -> EpochEnd:
        topic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
        part = topic.OffsetForLeaderPartition(
            partition=tp.partition, current_leader_epoch=leader.led.leader_epoch, leader_epoch=epoch
        )
        asked = [topic(topic=tp.topic, partitions=[part])]
        request = OffsetForLeaderEpochRequest(replica_id=-1, topics=asked, min_version=_WITH_EPOCH_FENCING)
        [[answer]] = [found.partitions for found in self._ask(leader.broker, request).topics]
        _raise_refused(tp, answer.error_code)
        return EpochEnd(answer.leader_epoch, answer.end_offset)

    @override
    def log_start(self, tp: TopicPartition, leader: Leader) -> int:
        topic = ListOffsetsRequest.ListOffsetsTopic
        part = topic.ListOffsetsPartition(
            partition_index=tp.partition,
            current_leader_epoch=leader.led.leader_epoch,
            timestamp=OffsetSpec.EARLIEST,
        )
        asked = [topic(name=tp.topic, partitions=[part])]
        request = ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=asked, min_version=_WITH_EPOCHS)
        [[answer]] = [found.partitions for found in self._ask(leader.broker, request).topics]
        _raise_refused(tp, answer.error_code)
        start: int = answer.offset
        return start

    @override
    def send(self, broker: int, wanted: Sequence[Wanted]) -> None:
        connection = self._fetches.get(broker)
        if connection is None:
            connection = self._fetches[broker] = self._taken_over(broker)
            self._selector.register(connection.socket, selectors.EVENT_READ, broker)
        try:
            connection.send(wanted, self._rack if wanted[0].near else "")
        except OSError as error:
            self._drop(broker)
            raise self._unavailable(broker, error) from error

    @override
    def answers(self, seconds: float) -> list[FetchAnswer]:
        ready = [key.data for key, _ in self._selector.select(seconds)]
        now = time.monotonic()
        late = [broker for broker, found in self._fetches.items() if broker not in ready and found.is_late(now)]
        return [self._answer(broker) for broker in ready] + [
            self._lost(broker, TimeoutError(f"no answer for {_ANSWER_SECONDS:g} s")) for broker in late
        ]

    def close(self) -> None:
        """Close all connections."""
        for broker in list(self._fetches):
            self._drop(broker)
        for connection in self._questions.values():
            connection.close()
        self._questions.clear()
        self._manager.close()
        self._net.close()
        self._selector.close()

    def _keep_addresses(self, brokers: Any) -> None:
        listed = {broker.node_id: _Address(*tuple(broker)[:3]) for broker in brokers}
        for broker in self._addresses.keys() - listed.keys() - set(self._bootstrap):
            self._drop(broker)
        for broker, address in listed.items():
            if self._addresses.get(broker, address) != address:
                self._drop(broker)
        self._addresses = {key: self._addresses[key] for key in self._bootstrap} | listed

    def _leaders(self, name: str, topic: Any) -> TopicLeaders | None:
        """The description of a topic; None if the broker knows none of this name."""
        error = kafka_errors.for_code(topic.error_code)
        refusal = _REFUSALS.get(error)
        if refusal is Refusal.TOPIC:
            return None
        if refusal is Refusal.RIGHT:
            raise BrokerError(f"{name}: {error.message}; give this user READ and DESCRIBE on the topic")
        if topic.error_code:
            raise BrokerUnavailable(f"{name}: the broker cannot describe it now: {error.message}")
        identity = topic_id_text(topic.topic_id)
        if identity is None:
            raise BrokerError(f"{name}: it has no topic id; fetching needs Kafka 3.1 or later")
        leaders = {
            part.partition_index: Leader(part.leader_id, Led(part.leader_epoch, identity), tuple(part.replica_nodes))
            for part in topic.partitions
        }
        return TopicLeaders(identity, leaders)

    def _ask(self, broker: int | str, request: Any) -> Any:
        """The answer to a question. Raises BrokerUnavailable, or BrokerError for what only a person can mend."""
        connection = self._questions.get(broker)
        if connection is None or connection.closed:
            connection = self._questions[broker] = self._connected(broker, QUESTIONS)
        try:
            return self._net.run(connection.send_request, request)
        except IncompatibleBrokerVersion as error:
            raise self._too_old(broker, error) from error
        except (KafkaError, OSError) as error:
            connection.close()
            raise self._unavailable(broker, error) from error

    def _connected(self, broker: int | str, client_id: str) -> Any:
        """A connection of kafka-python's, which its manager does not know of."""
        address = self._addresses.get(broker)
        if address is None:
            raise BrokerUnavailable(f"broker {broker} is not listed by the cluster")
        connection = KafkaConnection(self._net, node_id=broker, **(self._manager.config | {"client_id": client_id}))
        try:
            self._net.run(_connect, self._manager, address, connection)
        except (SaslAuthenticationFailedError, UnsupportedSaslMechanismError) as error:
            raise self._login_refused(address, str(error)) from error
        except (KafkaConfigurationError, AttributeError, TypeError, ValueError) as error:
            rule = "kafka-python does not take these settings to connect with"
            raise ConfigError("--config", [("", f"{rule}: {type(error).__name__}: {error}")]) from error
        except IncompatibleBrokerVersion as error:
            raise self._too_old(broker, error) from error
        except (KafkaError, OSError) as error:
            # A broker closes the connection right behind its refusal, and kafka-python may lose that answer. The
            # broker has told its versions, so it is there. Once a login was accepted, it is a broker that goes.
            if connection.sasl_enabled and connection.broker_version_data is not None and not self._logged_in:
                raise self._login_refused(address, "it closed the connection during the login") from error
            raise self._unavailable(broker, error) from error
        self._logged_in = True
        return connection

    def _taken_over(self, broker: int) -> _FetchConnection:
        connection = self._connected(broker, FETCHES)
        try:
            version = connection.broker_version_data.api_version(FetchRequest, min_version=_BY_TOPIC_ID)
        except IncompatibleBrokerVersion as error:
            connection.close()
            raise self._too_old(broker, error) from error
        sock = _take_socket(self._net, connection)
        return _FetchConnection(sock, broker, version, self._limits)

    def _answer(self, broker: int) -> FetchAnswer:
        try:
            return self._fetches[broker].receive()
        except FrameTooLarge as error:
            self._drop(broker)
            return FetchAnswer(broker, error=error)
        except (OSError, ValueError, IndexError, struct.error) as error:
            return self._lost(broker, error)

    def _lost(self, broker: int, error: Exception) -> FetchAnswer:
        self._drop(broker)
        return FetchAnswer(broker, error=self._unavailable(broker, error))

    def _drop(self, broker: int | str) -> None:
        """Close the connections to ``broker``."""
        connection = self._questions.pop(broker, None)
        if connection is not None:
            connection.close()
        if isinstance(broker, int) and (fetches := self._fetches.pop(broker, None)) is not None:
            self._selector.unregister(fetches.socket)
            fetches.socket.close()

    def _login_refused(self, address: _Address, reason: str) -> BrokerError:
        rule = f"{address.host}:{address.port}: the broker refuses the login"
        return BrokerError(f"{rule}: {reason}; correct the sasl_ settings of --config")

    def _unavailable(self, broker: int | str, error: Exception) -> BrokerUnavailable:
        return BrokerUnavailable(f"{self._at(broker)} cannot be asked: {type(error).__name__}: {error}")

    def _too_old(self, broker: int | str, error: Exception) -> BrokerError:
        return BrokerError(f"{self._at(broker)} is too old, fetching by topic id needs Kafka 3.1 or later: {error}")

    def _at(self, broker: int | str) -> str:
        address = self._addresses.get(broker)
        return f"broker {broker}" + (f" at {address.host}:{address.port}" if address else "")


class _FetchConnection:
    """A socket that is connected and authenticated, with one Fetch request at a time."""

    def __init__(self, sock: socket.socket, broker: int, version: int, limits: FetchLimits) -> None:
        sock.settimeout(_ANSWER_SECONDS)
        self.socket = sock
        self._broker = broker
        self._version = version
        self._limits = limits
        self._number = 0
        self._sent: Sequence[Wanted] = ()
        self._sent_at = 0.0
        self._buffer = bytearray(limits.partition)

    def is_late(self, now: float) -> bool:
        """True if the broker owes an answer for too long."""
        return bool(self._sent) and now - self._sent_at > _ANSWER_SECONDS

    def send(self, wanted: Sequence[Wanted], rack: str) -> None:
        """Send a request. Its order is kept: the first partition has the most room in the answer."""
        topics = [
            _FETCH_TOPIC(topic_id=topic_id_uuid(topic_id), topic=name, partitions=[self._part(part) for part in parts])
            for (topic_id, name), parts in groupby(wanted, key=lambda part: (part.topic_id, part.tp.topic))
        ]
        request = FetchRequest(
            version=self._version,
            max_wait_ms=_WAIT_MS,
            min_bytes=1,
            max_bytes=self._limits.answer,
            isolation_level=0,
            session_id=0,
            session_epoch=-1,
            topics=topics,
            forgotten_topics_data=[],
            rack_id=rack,
        )
        self._number = (self._number + 1) % (1 << 31)
        request.with_header(correlation_id=self._number, client_id=FETCHES)
        self._sent, self._sent_at = wanted, time.monotonic()
        self.socket.sendall(request.encode(framed=True, header=True))

    def receive(self) -> FetchAnswer:
        """Read the answer.

        Raises:
            FrameTooLarge: the answer is longer than the limit.
            OSError: the connection is lost.
            ValueError, IndexError, struct.error: the bytes are no answer to the request.
        """
        if not self._sent:
            raise ConnectionError("the broker closed the connection")
        sent, self._sent = self._sent, ()
        size = int.from_bytes(self._exactly(4), "big")
        if size > self._limits.frame:
            raise FrameTooLarge(sent[0].tp, sent[0].offset, size, self._limits.frame)
        frame = self._exactly(size)
        head = io.BytesIO(frame[:_LONGEST_HEADER])
        header = FetchResponse.parse_header(head, version=self._version)
        if header.correlation_id != self._number:
            raise ValueError(f"the broker answered {header.correlation_id}, and request {self._number} was sent")
        answer = FetchResponse.decode(frame[head.tell() :], version=self._version)
        throttled = answer.throttle_time_ms / 1000
        if answer.error_code:
            error = BrokerUnavailable(
                f"broker {self._broker} refused to fetch: {kafka_errors.for_code(answer.error_code).message}"
            )
            return FetchAnswer(self._broker, throttled=throttled, error=error)
        return FetchAnswer(self._broker, list(_fetched(sent, answer)), throttled)

    def _part(self, wanted: Wanted) -> Any:
        return _FETCH_TOPIC.FetchPartition(
            partition=wanted.tp.partition,
            current_leader_epoch=wanted.leader_epoch,
            fetch_offset=wanted.offset,
            last_fetched_epoch=wanted.last_epoch,
            log_start_offset=-1,
            partition_max_bytes=self._limits.partition,
        )

    def _exactly(self, size: int) -> memoryview:
        """The next ``size`` bytes, valid until the next call."""
        if size > len(self._buffer):
            self._buffer = bytearray(size)
        frame, at = memoryview(self._buffer)[:size], 0
        while at < size:
            count = self.socket.recv_into(frame[at:])
            if not count:
                raise ConnectionError("the broker closed the connection")
            at += count
        return frame


def _fetched(sent: Sequence[Wanted], answer: Any) -> Iterator[FetchedPart]:
    """The parts of an answer, with the parts of the request that they answer."""
    asked = {(topic_id_uuid(wanted.topic_id), wanted.tp.partition): wanted for wanted in sent}
    for topic in answer.responses:
        for part in topic.partitions:
            wanted = asked.get((topic.topic_id, part.partition_index))
            if wanted is None:
                continue
            diverging = part.diverging_epoch
            yield FetchedPart(
                wanted,
                memoryview(part.records or b""),
                part.high_watermark,
                part.preferred_read_replica,
                diverging is not None and diverging.end_offset >= 0,
                wanted is sent[0],
                _refused(wanted.tp, part.error_code),
            )


async def _connect(manager: Any, address: _Address, connection: Any) -> None:
    await manager._connect(address, connection, timeout_at=time.monotonic() + _CONNECT_SECONDS)
    await connection


def _take_socket(net: Any, connection: Any) -> socket.socket:
    """Take the socket away from kafka-python, which has read all that the broker has sent so far."""
    transport = connection.transport
    taken: socket.socket = transport._sock
    transport.pause_reading()
    if transport._read_task is not None:
        net.cancel(transport._read_task)
        transport._read_task = None
    transport._sock = None
    connection.close()
    return taken


def _refused(tp: TopicPartition, code: int) -> PartitionRefused | None:
    if not code:
        return None
    error = kafka_errors.for_code(code)
    return PartitionRefused(tp, _REFUSALS.get(error, Refusal.OTHER), error.message)


def _raise_refused(tp: TopicPartition, code: int) -> None:
    refused = _refused(tp, code)
    if refused is not None:
        raise refused
