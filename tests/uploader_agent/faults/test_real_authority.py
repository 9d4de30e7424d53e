"""What a real quorum has committed about who leads, while a broker lags, and after an election."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import TypeVar

from tests.support.kafka import KafkaCluster
from tests.support.waiting import wait_until
from tests.uploader_agent.faults.cluster import await_in_sync, await_leader, create
from tidemark.formats.keys import TopicPartition
from uploader_agent.broker.admin import AdminMetadata, BrokerUnavailable, Leader, connect
from uploader_agent.broker.authority import Authority, MetadataMark, QuorumAuthority
from uploader_agent.broker.properties import read_broker

Answer = TypeVar("Answer")

GONE = TopicPartition("never-made", 0)


def quorum(cluster: KafkaCluster, node: int, asked: int) -> QuorumAuthority:
    """That of broker ``node``, which asks broker ``asked``."""
    bootstrap = read_broker(cluster.brokers[asked - 1].properties_path).bootstrap
    return QuorumAuthority(node, lambda: connect(bootstrap, "PLAINTEXT", {"request_timeout_ms": 5000}))


def leader_of(cluster: KafkaCluster, at: TopicPartition) -> Leader:
    """As an agent learns it."""
    broker = read_broker(cluster.brokers[0].properties_path)
    metadata = AdminMetadata(lambda: connect(broker.bootstrap, broker.security_protocol, {}))
    try:
        return metadata.leaders([at])[at]
    finally:
        metadata.close()


def answered(question: Callable[[], Answer]) -> Answer:
    """The answer of whichever broker gives one: kafka-python asks the frozen one, too."""
    found: list[Answer] = []

    def ask() -> bool:
        try:
            found.append(question())
        except BrokerUnavailable:
            return False
        return True

    wait_until(ask, what="an answer")
    return found[-1]


def confirmed(authority: Authority) -> None:
    mark = authority.mark()
    wait_until(lambda: authority.confirms(mark) is True, what="the broker to have what the quorum has")


def test_a_quorum_confirms_once_the_broker_has_it(kraft3: KafkaCluster) -> None:
    """A broker that is frozen does not get the metadata, and nothing is confirmed for it, whoever is asked."""
    at = TopicPartition("quorum", 0)
    create(kraft3, at.topic, [[2, 1]], min_insync_replicas="1")
    await_leader(kraft3, at.topic, 2)
    own = quorum(kraft3, 2, asked=2)
    confirmed(own)
    assert own.leader(at) == leader_of(kraft3, at)
    assert own.leader(GONE) is None

    frozen, lagging = kraft3.brokers[1].process, quorum(kraft3, 2, asked=1)
    before = lagging.mark()
    frozen.send(signal.SIGSTOP)
    try:
        marks: list[MetadataMark] = []

        def has_gone_on() -> bool:
            """The metadata has: the controller writes a record of nothing each half second."""
            marks.append(answered(lagging.mark))
            return marks[-1].offset > before.offset + 4

        wait_until(has_gone_on, what="the metadata to go on")
        assert answered(lambda: lagging.confirms(marks[-1])) is False
    finally:
        frozen.send(signal.SIGCONT)
    wait_until(lambda: answered(lambda: lagging.confirms(marks[-1])) is True, what="the broker to catch up")


def test_an_election_is_seen(kraft3: KafkaCluster) -> None:
    at = TopicPartition("elected", 0)
    create(kraft3, at.topic, [[2, 1]], min_insync_replicas="1")
    await_leader(kraft3, at.topic, 2)
    authority, before = quorum(kraft3, 1, asked=1), leader_of(kraft3, at)
    kraft3.brokers[1].stop()
    try:
        await_leader(kraft3, at.topic, 1)
        confirmed(authority)
        found = authority.leader(at)
        assert found is not None
        assert (found.broker, found.led.topic_id) == (1, before.led.topic_id)
        assert found.led.leader_epoch > before.led.leader_epoch
    finally:
        kraft3.brokers[1].start()
        await_in_sync(kraft3, at.topic, 2)
