"""A follower's questions to real brokers: kafka-python connects, authenticates, encrypts and negotiates versions.

Questions about topics and epochs go through kafka-python's own connections. Fetch has connections of its own, under
another client id, so a quota on it delays no question. kafka-python sets each of them up, and this module then takes
over its socket: kafka-python reads 4 KiB at a time, and limits frames to a size that a batch may exceed.

What is wrong with TLS and SASL is said here: the errors of kafka-python and OpenSSL name no file and no setting.

Fetch is asked by topic id, so by version 13 (Kafka 3.1) or later: by name, a topic that was deleted and made again
answers for its predecessor.

Source: KIP-392 (near replicas), KIP-516 (topic ids), KIP-74 (sizes of answers).
"""

from __future__ import annotations

import re
import selectors
import socket
import ssl
import struct
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from kafka import errors as kafka_errors
from kafka.admin import ConfigResourceType
from kafka.errors import (
    IncompatibleBrokerVersion,
    KafkaConfigurationError,
    KafkaError,
    SaslAuthenticationFailedError,
    UnsupportedSaslMechanismError,
)
from kafka.future import Future
from kafka.net.connection import KafkaConnection
from kafka.net.manager import KafkaConnectionManager
from kafka.net.sasl import SASL_MECHANISMS
from kafka.net.selector import NetworkSelector
from kafka.protocol.admin import DescribeConfigsRequest
from kafka.protocol.consumer import FetchRequest
from kafka.protocol.metadata import MetadataRequest
from typing_extensions import override

from tidemark.errors import BrokerError, ConfigError
from tidemark.formats.keys import TopicPartition
from tidemark.formats.raw.incarnations import topic_id_text
from uploader_agent.broker import partition_requests
from uploader_agent.broker.admin import BrokerUnavailable, Leader, Led
from uploader_agent.intake.fetch_connection import (
    ANSWER_SECONDS,
    FETCHES,
    REFUSALS,
    FetchConnection,
    FetchSession,
    refused,
)
from uploader_agent.intake.fetching import (
    Cluster,
    EpochAsked,
    EpochEnd,
    FetchAnswer,
    FetchLimits,
    FetchStopped,
    FrameTooLarge,
    PartitionRefused,
    Refusal,
    Result,
    Retention,
    StopReason,
    TopicAnswer,
    TopicLeaders,
    Wanted,
)

QUESTIONS: Final = "tidemark-agent"
"""The client id of all connections but those of Fetch. A quota on bytes belongs on the others."""

_BY_TOPIC_ID: Final = 13
_WITH_TOPIC_IDS: Final = 10
"""The first versions of Fetch and of Metadata with topic ids."""

_RETENTION: Final = ["cleanup.policy", "retention.ms", "retention.bytes"]

_CONNECT_SECONDS: Final = 10.0

_SILENT_SECONDS: Final = 1.0
"""Time without an answer after which another broker is asked as well, if any may answer."""

_TLS_FILE_RULES: Final = {
    "ssl_cafile": "must have authorities' certificates, in PEM",
    "ssl_crlfile": "must be a list of revoked certificates, in PEM",
    "ssl_certfile": "must have a certificate in PEM, with the key here or in ssl_keyfile, which ssl_password opens",
}

_CERTIFICATE_ALERT: Final = re.compile(r"alert ([a-z ]*certificate[a-z ]*|unknown ca)")
"""The ways in which a broker refuses a client's certificate, in OpenSSL's words."""


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
            ConfigError: a setting of TLS or SASL is wrong.
        """
        check_security(settings)
        self._limits, self._rack = limits, rack
        self._net = NetworkSelector(slow_task_threshold_secs=0)  # a task opens the spools of new partitions
        self._manager = KafkaConnectionManager(
            self._net, **({"receive_message_max_bytes": 100_000_000, "request_timeout_ms": 10_000} | dict(settings))
        )
        self._addresses: dict[int | str, _Address] = {
            found.node_id: _Address(found.node_id, found.host, found.port)
            for found in self._manager.cluster.bootstrap_brokers()
        }
        self._bootstrap = tuple(self._addresses)
        self._failed: dict[tuple[str, int], float] = {}
        """When the broker at an address failed last, or was silent: the others are asked first."""
        self._logged_in = False
        """A broker has accepted the settings."""
        self._questions: dict[int | str, Any] = {}
        self._fetches: dict[int, FetchConnection] = {}
        self._sessions: defaultdict[int, FetchSession] = defaultdict(FetchSession)
        self._asked: set[int] = set()
        """The brokers that owe an answer to a Fetch."""
        self._answers: list[FetchAnswer] = []
        self._errors: list[Exception] = []
        """Errors of work that was started."""
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._net._selector, selectors.EVENT_READ)

    @override
    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        result: Result = self._net.run(work)
        return result

    @override
    def start(self, work: Coroutine[Any, Any, None]) -> None:
        self._net.call_soon_with_future(work).add_errback(self._errors.append)

    @override
    async def topics(self, names: Collection[str] | None) -> dict[str, TopicAnswer]:
        described = {topic.name: _topic_answer(topic.name, topic) for topic in await self._described(names)}
        return {name: answer for name, answer in described.items() if answer is not None}

    @override
    async def retention(self, names: Collection[str]) -> dict[str, Retention]:
        resource = DescribeConfigsRequest.DescribeConfigsResource
        asked = [
            resource(resource_type=ConfigResourceType.TOPIC, resource_name=name, configuration_keys=_RETENTION)
            for name in sorted(names)
        ]
        answer = await self._anyone(lambda: DescribeConfigsRequest(resources=asked, max_version=4))
        topics = {
            result.resource_name: {config.name: config.value for config in result.configs}
            for result in answer.results
            if not result.error_code
        }
        return {name: _retention(configs) for name, configs in topics.items() if "delete" in configs["cleanup.policy"]}

    async def _described(self, names: Collection[str] | None) -> Any:
        """The topics ``names``, or all, as some broker describes them. Raises BrokerUnavailable, BrokerError."""
        asked, nobody = MetadataRequest.MetadataRequestTopic, uuid.UUID(int=0)
        wanted = None if names is None else [asked(name=name, topic_id=nobody) for name in sorted(names)]
        answer = await self._anyone(
            lambda: MetadataRequest(
                topics=wanted, allow_auto_topic_creation=False, min_version=_WITH_TOPIC_IDS, max_version=12
            )
        )
        self._keep_addresses(answer.brokers)
        return answer.topics

    async def _anyone(self, request: Callable[[], Any]) -> Any:
        """The first broker's answer to a new ``request``; a silent one is waited for beside the next.

        Raises BrokerUnavailable, BrokerError.
        """
        failures: list[BrokerUnavailable] = []

        async def ask(address: tuple[str, int]) -> Any:
            try:
                return await self._ask(addresses[address], request())
            except BrokerUnavailable as error:
                failures.append(error)
                return None

        addresses = {address[1:3]: broker for broker, address in self._addresses.items()}
        asked: list[Future] = []
        for address in sorted(addresses, key=lambda address: self._failed.get(address, 0.0)):
            asked.append(self._net.call_soon_with_future(ask(address)))
            answer = await self._first(asked, _SILENT_SECONDS)
            if answer is not None:
                return answer
            self._failed[address] = time.monotonic()
        answer = await self._first(asked, None)
        if answer is None:
            raise failures[-1] if failures else BrokerUnavailable("no broker is known")
        return answer

    async def _first(self, asked: Sequence[Future], seconds: float | None) -> Any:
        """The first result of ``asked`` that is not None; None once all are there, or ``seconds`` have passed.

        Raises the first error.
        """

        def look(_: object = None) -> None:
            done = [future for future in asked if future.is_done]
            if not ended.is_done and (len(done) == len(asked) or any(map(_tells, done))):
                ended.success(None)

        ended = Future()
        timer = None if seconds is None else self._net.call_later(seconds, lambda: ended.is_done or ended.success(None))
        for future in asked:
            future.add_both(look)
        look()
        await ended
        if timer is not None:
            self._net.cancel(timer)
        told = next((future for future in asked if future.is_done and _tells(future)), None)
        return None if told is None else await told

    @override
    async def epoch_ends(
        self, broker: int, asked: Mapping[TopicPartition, EpochAsked]
    ) -> dict[TopicPartition, EpochEnd | PartitionRefused]:
        request = partition_requests.epoch_ends(asked)
        return {
            (tp := TopicPartition(topic.topic, end.partition)): refused(tp, end.error_code)
            or EpochEnd(end.leader_epoch, end.end_offset)
            for topic in (await self._ask(broker, request)).topics
            for end in topic.partitions
        }

    @override
    async def log_starts(
        self, broker: int, epochs: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int | PartitionRefused]:
        request = partition_requests.offsets(epochs, "EARLIEST")
        return {
            (tp := TopicPartition(topic.name, start.partition_index)): refused(tp, start.error_code) or start.offset
            for topic in (await self._ask(broker, request)).topics
            for start in topic.partitions
        }

    @override
    def send(self, broker: int, wanted: Sequence[Wanted]) -> None:
        self._asked.add(broker)
        if broker in self._fetches:
            self._send(broker, wanted)
        else:
            self.start(self._connect_and_send(broker, wanted))

    @override
    def answers(self, seconds: float) -> list[FetchAnswer]:
        ready = [key.data for key, _ in self._selector.select(0 if self._answers else seconds)]
        self._net.poll(timeout_ms=0)
        self._net.drain()
        if self._errors:
            raise self._errors.pop(0)
        for broker in ready:
            if broker in self._fetches:
                self._receive(broker)
        now = time.monotonic()
        for broker in [broker for broker, connection in self._fetches.items() if connection.is_late(now)]:
            self._lose(broker, TimeoutError(f"nothing came for {ANSWER_SECONDS:g} s"))
        answers, self._answers = self._answers, []
        self._asked -= {answer.broker for answer in answers}
        return answers

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
        for broker in self._addresses.keys() - set(self._bootstrap):
            if self._addresses[broker] != listed.get(broker):
                self._lose(broker, ConnectionError("the cluster has it no more, or at another address"))
        self._addresses = {key: self._addresses[key] for key in self._bootstrap} | listed

    async def _ask(self, broker: int | str, request: Any) -> Any:
        """The answer to a question. Raises BrokerUnavailable, or BrokerError for what only a person can mend."""
        connection = self._questions.get(broker)
        if connection is None or connection.closed:
            made = await self._connected(broker, QUESTIONS)
            connection = self._questions.get(broker)
            if connection is None or connection.closed:  # another question may have connected meanwhile
                connection = self._questions[broker] = made
            else:
                made.close()
        try:
            return await connection.send_request(request)
        except IncompatibleBrokerVersion as error:
            raise self._too_old(broker, connection, error) from error
        except (KafkaError, OSError) as error:
            connection.close()
            raise self._unavailable(broker, error) from error

    async def _connected(self, broker: int | str, client_id: str) -> Any:
        """A connection of kafka-python's, which its manager does not know of."""
        address = self._addresses.get(broker)
        if address is None:
            raise BrokerUnavailable(f"broker {broker} is not listed by the cluster")
        connection = KafkaConnection(self._net, node_id=broker, **(self._manager.config | {"client_id": client_id}))
        try:
            await _connect(self._manager, address, connection)
        except (SaslAuthenticationFailedError, UnsupportedSaslMechanismError) as error:
            raise self._login_refused(address, str(error)) from error
        except (KafkaConfigurationError, AttributeError, TypeError, ValueError) as error:
            rule = "kafka-python does not take these settings to connect with"
            raise ConfigError("fetch.client", [("", f"{rule}: {type(error).__name__}: {error}")]) from error
        except IncompatibleBrokerVersion as error:
            raise self._too_old(broker, connection, error) from error
        except (KafkaError, OSError) as error:
            refusal = _tls_refusal(error, self._manager.config)
            if refusal is not None:
                kind = BrokerUnavailable if self._logged_in else BrokerError
                raise kind(f"{address.host}:{address.port}: {refusal}") from error
            # A broker closes the connection right behind its refusal, and kafka-python may lose that answer. The
            # broker has told its versions, so it is there. Once a login was accepted, it is a broker that goes.
            if connection.sasl_enabled and connection.broker_version_data is not None and not self._logged_in:
                raise self._login_refused(address, "it closed the connection during the login") from error
            raise self._unavailable(broker, error) from error
        self._logged_in = True
        return connection

    async def _connect_and_send(self, broker: int, wanted: Sequence[Wanted]) -> None:
        try:
            connection = self._fetches[broker] = await self._taken_over(broker)
        except BrokerUnavailable as error:
            self._answers.append(FetchAnswer(broker, error=error))
        else:
            self._selector.register(connection.socket, selectors.EVENT_READ, broker)
            self._send(broker, wanted)

    def _send(self, broker: int, wanted: Sequence[Wanted]) -> None:
        self._fetches[broker].send(wanted, self._rack if wanted[0].near else "")
        self._receive(broker)

    async def _taken_over(self, broker: int) -> FetchConnection:
        connection = await self._connected(broker, FETCHES)
        try:
            version = connection.broker_version_data.api_version(FetchRequest, min_version=_BY_TOPIC_ID)
        except IncompatibleBrokerVersion as error:
            connection.close()
            raise self._too_old(broker, connection, error) from error
        sock = _take_socket(self._net, connection)
        return FetchConnection(sock, broker, version, self._limits, self._sessions[broker])

    def _receive(self, broker: int) -> None:
        """Go on with the exchange with ``broker``, as far as its socket allows."""
        connection = self._fetches[broker]
        try:
            answer = connection.receive()
            self._selector.modify(connection.socket, connection.events, broker)
        except FrameTooLarge as error:
            self._drop(broker)
            answer = FetchAnswer(broker, error=error)
        except (OSError, ValueError, IndexError, struct.error) as error:
            self._lose(broker, error)
            return
        if answer is not None:
            self._answers.append(answer)

    def _lose(self, broker: int | str, error: Exception) -> None:
        """Close the connections to ``broker``; a request that it has not answered gets the ``error``."""
        self._drop(broker)
        if isinstance(broker, int) and broker in self._asked:
            self._answers.append(FetchAnswer(broker, error=self._unavailable(broker, error)))

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
        return BrokerError(f"{rule}: {reason}; correct the sasl_ settings of fetch.client")

    def _unavailable(self, broker: int | str, error: Exception) -> BrokerUnavailable:
        return BrokerUnavailable(f"{self._at(broker)} cannot be asked: {type(error).__name__}: {error}")

    def _too_old(self, broker: int | str, connection: Any, error: Exception) -> BrokerError:
        known = connection.broker_version_data
        rule = f"has the API of Kafka {known.broker_version_str if known else 'before 0.10'}, and fetching needs 3.1"
        reason = "without topic ids and epochs nothing proves that a batch is of this topic and of its leader's log"
        return BrokerError(f"{self._at(broker)} {rule}: {error}; {reason}")

    def _at(self, broker: int | str) -> str:
        address = self._addresses.get(broker)
        return f"broker {broker}" + (f" at {address.host}:{address.port}" if address else "")


def _tells(future: Future) -> bool:
    return future.exception is not None or future.value is not None


def _topic_answer(name: str, topic: Any) -> TopicAnswer | None:
    """The description of a topic; None if the broker knows none of this name."""
    error = kafka_errors.for_code(topic.error_code)
    refusal = REFUSALS.get(error)
    if refusal is Refusal.TOPIC:
        return None
    if refusal is Refusal.RIGHT:
        rule = f"{name}: the right DESCRIBE is missing: give this user READ on the topic, which includes it"
        return FetchStopped(StopReason.RIGHT, rule)
    if topic.error_code:
        return BrokerUnavailable(f"{name}: the broker cannot describe it now: {error.message}")
    identity = topic_id_text(topic.topic_id)
    if identity is None:
        rule = f"{name}: it has no topic id; fetching needs Kafka 3.1 or later"
        return FetchStopped(StopReason.NO_TOPIC_ID, rule)
    leaders = {
        part.partition_index: Leader(part.leader_id, Led(part.leader_epoch, identity), tuple(part.replica_nodes))
        for part in topic.partitions
    }
    return TopicLeaders(identity, leaders)


def _retention(configs: Mapping[str, str]) -> Retention:
    milliseconds, size = int(configs["retention.ms"]), int(configs["retention.bytes"])
    return Retention(None if milliseconds < 0 else milliseconds / 1000, None if size < 0 else size)


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


def check_security(settings: Mapping[str, Any]) -> None:
    """Check kafka-python's ``settings``.

    Raises:
        ConfigError: kafka-python has no such SASL mechanism, or a file of TLS is not there, or not what it must be.
    """
    protocol, mechanism = str(settings.get("security_protocol", "")), settings.get("sasl_mechanism")
    if protocol.startswith("SASL") and mechanism not in SASL_MECHANISMS:
        known = ", ".join(sorted(SASL_MECHANISMS))
        raise ConfigError("sasl_mechanism", [("", f"{mechanism!r} is not known; it must be one of {known}")])
    if not protocol.endswith("SSL"):
        return
    names = ("ssl_cafile", "ssl_crlfile", "ssl_keyfile", "ssl_certfile")
    files = {name: str(settings[name]) for name in names if settings.get(name)}
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for name, file in files.items():
        try:
            Path(file).open("rb").close()
            if name == "ssl_certfile":
                # Without a password OpenSSL would ask for one at the terminal.
                context.load_cert_chain(file, files.get("ssl_keyfile"), settings.get("ssl_password") or "")
            elif name != "ssl_keyfile":
                context.load_verify_locations(file)
        except ssl.SSLError as error:
            raise ConfigError(name, [("", f"{file} {_TLS_FILE_RULES[name]}: {error.reason}")]) from error
        except OSError as error:
            raise ConfigError(name, [("", f"{file} cannot be read: {error.strerror}")]) from error


def _tls_refusal(error: Exception, settings: Mapping[str, Any]) -> str | None:
    """The setting to correct, if TLS is why a connection failed with ``error``."""
    text = str(error)
    if "CERTIFICATE_VERIFY_FAILED" in text:
        file = settings["ssl_cafile"] or "of this system"
        return f"its certificate is not accepted: {text}; correct ssl_cafile ({file}), or that certificate"
    alert = _CERTIFICATE_ALERT.search(text)
    if alert is None:
        return None
    file = settings["ssl_certfile"]
    if file is None:
        return f"it wants a certificate of this client: {alert[0]}; set ssl_certfile, and ssl_keyfile"
    return (
        f"it refuses the certificate in {file}: {alert[0]}; ssl_certfile must be signed by an authority that it trusts"
    )
