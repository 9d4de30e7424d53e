"""What real clusters have committed about who leads: by the quorum, while a broker lags, and by ZooKeeper."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest
from kafka.admin import NewTopic

from tests.support.kafka import KafkaCluster
from tests.support.waiting import wait_until
from tidemark.layout import TopicPartition
from uploader_agent.authority import Authority, Mark, QuorumAuthority, ZooKeeperAuthority
from uploader_agent.broker import read_broker
from uploader_agent.metadata import AdminMetadata, BrokerUnavailable, Leader, connect

Answer = TypeVar("Answer")

GONE = TopicPartition("never-made", 0)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    with KafkaCluster(tmp_path_factory.mktemp("kafka"), brokers=2) as started:
        yield started


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


def test_a_quorum_confirms_once_the_broker_has_it(pair: KafkaCluster) -> None:
    """A broker that is frozen does not get the metadata, and nothing is confirmed for it, whoever is asked."""
    at = TopicPartition("quorum", 0)
    with pair.admin() as admin:
        admin.create_topics([NewTopic(at.topic, -1, -1, replica_assignments={0: [2, 1]})])
    wait_until(lambda: pair.leaders(at.topic) == {0: 2}, what="the topic to be led")
    own = quorum(pair, 2, asked=2)
    confirmed(own)
    assert own.leader(at) == leader_of(pair, at)
    assert own.leader(GONE) is None

    frozen, lagging = pair.brokers[1].process, quorum(pair, 2, asked=1)
    before = lagging.mark()
    frozen.send(signal.SIGSTOP)
    try:
        marks: list[Mark] = []

        def has_gone_on() -> bool:
            """The metadata has: the controller writes a record of nothing each half second."""
            marks.append(answered(lagging.mark))
            return marks[-1].offset > before.offset + 4

        wait_until(has_gone_on, what="the metadata to go on")
        assert answered(lambda: lagging.confirms(marks[-1])) is False
    finally:
        frozen.send(signal.SIGCONT)
    wait_until(lambda: answered(lambda: lagging.confirms(marks[-1])) is True, what="the broker to catch up")


class Told(QuorumAuthority):
    """Of broker 4, beside three voters that lead and have fetched as ``said`` has it."""

    def __init__(self, **said: Any) -> None:
        super().__init__(4, _nobody)
        self.said = {
            "leader_id": 1,
            "leader_epoch": 7,
            "high_watermark": 100,
            "end": 100,
            "fetched": (0, 50, 50),
            **said,
        }

    def _quorum(self) -> Any:
        voters = [
            {"replica_id": number, "log_end_offset": 100, "last_fetch_timestamp": at}
            for number, at in enumerate(self.said["fetched"], 1)
        ]
        observers = [{"replica_id": 4, "log_end_offset": self.said["end"], "last_fetch_timestamp": 50}]
        return {**self.said, "current_voters": voters, "observers": observers}


def _nobody() -> Any:
    raise AssertionError("nobody is asked")


@pytest.mark.parametrize(
    ("later", "confirmed"),
    [
        ({"fetched": (0, 60, 60)}, True),
        ({"fetched": (0, 50, 60)}, True),
        ({"fetched": (0, 50, 50)}, False),
        ({"fetched": (99, 50, 50)}, False),
        ({"fetched": (0, 60, 60), "end": 99}, False),
        ({"fetched": (0, 60, 60, 60)}, True),
        ({"fetched": (0, 60, 50, 60)}, False),
        ({"fetched": (0, 60, 60), "leader_epoch": 8}, None),
        ({"fetched": (0, 60, 60), "leader_id": 2}, None),
    ],
    ids=str,
)
def test_only_a_leader_that_a_majority_still_fetches_from_confirms(
    later: dict[str, Any], confirmed: bool | None
) -> None:
    """One that was deposed may not know it; of a voter that is new nothing is known since."""
    mark = Told().mark()
    assert Told(**later).confirms(mark) is confirmed
    with pytest.raises(BrokerUnavailable, match="high watermark"):
        Told(high_watermark=-1).mark()


def test_an_election_is_seen(pair: KafkaCluster) -> None:
    at = TopicPartition("elected", 0)
    with pair.admin() as admin:
        admin.create_topics([NewTopic(at.topic, -1, -1, replica_assignments={0: [2, 1]})])
    wait_until(lambda: pair.leaders(at.topic) == {0: 2}, what="the topic to be led")
    authority, before = quorum(pair, 1, asked=1), leader_of(pair, at)
    pair.brokers[1].stop()
    try:
        wait_until(lambda: pair.leaders(at.topic) == {0: 1}, what="broker 1 to lead")
        confirmed(authority)
        found = authority.leader(at)
        assert found is not None
        assert (found.broker, found.led.topic_id) == (1, before.led.topic_id)
        assert found.led.leader_epoch > before.led.leader_epoch
    finally:
        pair.brokers[1].start()


def test_zookeeper_says_what_the_controller_wrote(kafka39: KafkaCluster) -> None:
    at = TopicPartition("in-zookeeper", 0)
    kafka39.create_topic(at.topic)
    options = read_broker(kafka39.brokers[0].properties_path).zookeeper
    assert options is not None
    authority = ZooKeeperAuthority(options)
    confirmed(authority)
    assert authority.leader(at) == leader_of(kafka39, at)
    assert authority.leader(GONE) is None
    with pytest.raises(BrokerUnavailable, match="cannot be asked"):
        ZooKeeperAuthority({**options, "hosts": "127.0.0.1:1", "connection_retry": {"max_tries": 0}}).leader(at)
