"""What a real quorum has committed about who leads, while a broker lags, and after an election."""

from __future__ import annotations

import signal
from contextlib import closing

from tests.support.kafka import KafkaCluster
from tests.support.waiting import wait_until
from tests.uploader_agent.faults.cluster import await_in_sync, await_leader, create
from tidemark.formats.keys import TopicPartition
from uploader_agent.broker.admin import AdminMetadata, Leader, connect
from uploader_agent.broker.authority import Authority, MetadataMark, QuorumAuthority
from uploader_agent.broker.properties import read_broker

GONE = TopicPartition("never-made", 0)


def quorum(cluster: KafkaCluster, node: int, asked: int) -> QuorumAuthority:
    """That of broker ``node``, which asks broker ``asked``."""
    bootstrap = read_broker(cluster.brokers[asked - 1].properties_path).bootstrap
    return QuorumAuthority(node, lambda: connect(asked, bootstrap, "PLAINTEXT", {"request_timeout_ms": 5000}))


def leader_of(cluster: KafkaCluster, at: TopicPartition) -> Leader:
    """As an agent learns it."""
    broker = read_broker(cluster.brokers[0].properties_path)
    with closing(AdminMetadata(1, lambda: connect(1, broker.bootstrap, broker.security_protocol, {}))) as metadata:
        return metadata.leaders([at])[at]


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
            marks.append(lagging.mark())
            return marks[-1].offset > before.offset + 4

        wait_until(has_gone_on, what="the metadata to go on")
        assert lagging.confirms(marks[-1]) is False
    finally:
        frozen.send(signal.SIGCONT)
    wait_until(lambda: lagging.confirms(marks[-1]) is True, what="the broker to catch up")


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


def test_another_broker_that_hangs_costs_no_answer(kraft3: KafkaCluster) -> None:
    """Its own broker is asked, by every new connection, where kafka-python would ask one of the three by chance."""
    at = TopicPartition("beside-a-hung-broker", 0)
    create(kraft3, at.topic, [[1, 2]], min_insync_replicas="1")
    hung = kraft3.brokers[1].process
    hung.send(signal.SIGSTOP)
    try:
        assert [leader_of(kraft3, at).broker for _ in range(20)] == [1] * 20
    finally:
        hung.send(signal.SIGCONT)
    await_in_sync(kraft3, at.topic, 2)
