"""A broker that accepts connections and never answers, beside a real one."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from unittest.mock import Mock

import pytest
from confluent_kafka import Producer

from tests.support.kafka import KafkaCluster
from tests.support.ports import HOST
from tidemark.formats.keys import TopicPartition
from tidemark.kafka_log import Lineage
from uploader_agent.broker.admin import BrokerUnavailable, Leader, Led
from uploader_agent.intake.brokers import BrokerConnections, _Address
from uploader_agent.intake.fetching import FetchLimits, TopicLeaders, Wanted
from uploader_agent.intake.leader_logs import LogAsked, leader_logs

TOPIC, MUTE = "beside-a-mute-broker", 99
T = TopicPartition(TOPIC, 0)


@pytest.fixture
def mute() -> Iterator[_Address]:
    """The address of a mute broker."""
    with socket.create_server((HOST, 0)) as server:
        yield _Address(MUTE, *server.getsockname())


def test_a_mute_broker_holds_up_no_answer_of_another(
    kafka: KafkaCluster, mute: _Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real broker answers many requests before the connections to the mute one are given up."""
    monkeypatch.setattr("uploader_agent.intake.brokers._CONNECT_SECONDS", 3.0)
    kafka.create_topic(TOPIC)
    client = Producer({"bootstrap.servers": kafka.bootstrap})
    client.produce(TOPIC, b"x")
    assert client.flush(60) == 0
    asked = list[str]()
    with closing(BrokerConnections({"bootstrap_servers": [kafka.bootstrap]}, FetchLimits())) as brokers:
        topic = brokers.run(brokers.topics({TOPIC}))[TOPIC]
        assert isinstance(topic, TopicLeaders)
        brokers._addresses[MUTE] = mute

        async def ask() -> None:
            log = LogAsked(Leader(MUTE, Led(0, topic.topic_id)), Lineage())
            [answer] = (await leader_logs(brokers, MUTE, {T: log})).values()
            assert isinstance(answer, BrokerUnavailable)
            asked.append("question")

        brokers.start(ask())
        wanted = Wanted(T, topic.topic_id, MUTE, False, 0, 0, -1)
        brokers.send(MUTE, [wanted])
        for _ in range(20):
            brokers.send(1, [wanted._replace(broker=1)])
            while not (found := brokers.answers(0.1)):
                pass
            [answer] = found
            assert (answer.broker, answer.error, asked) == (1, None, [])
            assert answer.parts[0].records
        failed = list[BrokerUnavailable]()
        while not (failed and asked):
            failed += [answer.error for answer in brokers.answers(0.1) if isinstance(answer.error, BrokerUnavailable)]
    assert f"broker {MUTE} at {mute.host}:{mute.port} cannot be asked" in str(failed[0])


def test_what_any_broker_may_answer_is_asked_of_another_beside_a_mute_one(
    kafka: KafkaCluster, mute: _Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer comes before the connection to the mute one is given up; after that the mute one is asked last."""
    monkeypatch.setattr("uploader_agent.intake.brokers._SILENT_SECONDS", 0.1)
    kafka.create_topic(f"{TOPIC}-asked")
    both = [f"{mute.host}:{mute.port}", kafka.bootstrap]
    with closing(BrokerConnections({"bootstrap_servers": both}, FetchLimits())) as brokers:
        brokers._failed = {
            (address.host, address.port): address.port != mute.port for address in brokers._addresses.values()
        }
        given_up = Mock(side_effect=brokers._unavailable)
        monkeypatch.setattr(brokers, "_unavailable", given_up)
        assert f"{TOPIC}-asked" in brokers.run(brokers.topics(None))
        monkeypatch.setattr("uploader_agent.intake.brokers._SILENT_SECONDS", 3600.0)
        assert f"{TOPIC}-asked" in brokers.run(brokers.topics(None))
        given_up.assert_not_called()


def test_without_any_answer_the_last_failure_is_told(mute: _Address, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("uploader_agent.intake.brokers._SILENT_SECONDS", 0.1)
    monkeypatch.setattr("uploader_agent.intake.brokers._CONNECT_SECONDS", 0.5)
    both = [f"{mute.host}:{mute.port}", f"{HOST}:1"]
    with closing(BrokerConnections({"bootstrap_servers": both}, FetchLimits())) as brokers:
        with pytest.raises(BrokerUnavailable, match="cannot be asked"):
            brokers.run(brokers.topics(None))
        assert {address for address, moment in brokers._failed.items() if moment} == {mute[1:3], (HOST, 1)}


def test_a_broker_at_another_address_owes_no_answer_any_more(kafka: KafkaCluster) -> None:
    """A request that was on its way to the old address gets an answer; else the broker would never be asked again."""
    kafka.create_topic(f"{TOPIC}-moved")
    with closing(BrokerConnections({"bootstrap_servers": [kafka.bootstrap]}, FetchLimits())) as brokers:
        topic = brokers.run(brokers.topics({f"{TOPIC}-moved"}))[f"{TOPIC}-moved"]
        assert isinstance(topic, TopicLeaders)
        wanted = Wanted(TopicPartition(f"{TOPIC}-moved", 0), topic.topic_id, 1, False, 0, 0, -1)
        brokers.send(1, [wanted])
        while not brokers.answers(0.1):
            pass
        brokers.send(1, [wanted])
        brokers._addresses[1] = brokers._addresses[1]._replace(port=1)
        brokers.run(brokers.topics(None))
        [answer] = brokers.answers(0.1)
        assert "at another address" in str(answer.error)
