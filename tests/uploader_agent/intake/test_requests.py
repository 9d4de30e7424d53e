"""Requests to a real broker: how many there are, and what becomes of a session that it does not know."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.support.kafka import KafkaCluster
from tests.support.waiting import wait_until
from tests.uploader_agent.intake.scripted import batches_in
from tests.uploader_agent.intake.topic_copy import TopicCopy
from tidemark.errors import BrokerError
from tidemark.formats.keys import TopicPartition
from uploader_agent.intake.brokers import BrokerConnections
from uploader_agent.intake.fetch_connection import FetchSession
from uploader_agent.intake.fetching import FetchLimits, Retention, Wanted

TOPIC = "requests"
PARTITIONS = 4


class Counting(BrokerConnections):
    """Counts the questions by kind."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__({"bootstrap_servers": [bootstrap]}, FetchLimits())
        self.asked: Counter[str] = Counter()

    async def _ask(self, broker: int | str, request: Any) -> Any:
        self.asked[type(request).__name__] += 1
        return await super()._ask(broker, request)


def produce(cluster: KafkaCluster) -> None:
    client = Producer({"bootstrap.servers": cluster.bootstrap})
    for number in range(100):
        client.produce(TOPIC, b"x" * 100, partition=number % PARTITIONS)
    assert client.flush(60) == 0


@pytest.mark.essential
def test_one_question_for_all_partitions_and_sessions_that_the_broker_does_not_know(
    kafka: KafkaCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost, lose = list[bool](), FetchSession.lose

    def noted(session: FetchSession) -> bool:
        lost.append(lose(session))
        return lost[-1]

    monkeypatch.setattr(FetchSession, "lose", noted)
    kafka.create_topic(TOPIC, partitions=PARTITIONS)
    with (
        closing(Counting(kafka.bootstrap)) as brokers,
        closing(TopicCopy(brokers, TOPIC, tmp_path, follow=True)) as copy,
    ):
        session = brokers._sessions[1]
        for rounds, spoilt in enumerate(("_number", "_epoch", None), 1):
            produce(kafka)
            copy.run(lambda end=25 * rounds: {row.next_offset for row in copy.rows()} == {end} and session._epoch > 2)  # type: ignore[misc]
            assert lost == [False, True, True][:rounds], "the connection's begin, and what was spoilt before"
            if spoilt:
                setattr(session, spoilt, getattr(session, spoilt) + 5)
        assert brokers.asked["ListOffsetsRequest"] == brokers.asked["OffsetForLeaderEpochRequest"] == 1
    for partition in range(PARTITIONS):
        mine = batches_in(tmp_path / f"{TOPIC}-{partition}")
        assert mine == batches_in(kafka.brokers[0].log_dirs[0] / f"{TOPIC}-{partition}") != []


@pytest.mark.essential
def test_the_retention_of_topics_that_delete(kafka: KafkaCluster) -> None:
    configs = {
        "kept-by-both": {"retention.ms": "5000", "retention.bytes": "70000"},
        "kept-for-ever": {"retention.ms": "-1"},
        "kept-compacted": {"cleanup.policy": "compact"},
    }
    for name, config in configs.items():
        kafka.create_topic(name, config=config)
    with closing(BrokerConnections({"bootstrap_servers": [kafka.bootstrap]}, FetchLimits())) as brokers:
        found = brokers.run(brokers.retention({*configs, "no-such"}))
    assert found == {"kept-by-both": Retention(5.0, 70_000), "kept-for-ever": Retention(None, None)}


def test_a_broker_that_is_too_old_is_refused_with_its_version(
    kafka: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if a later version of Fetch were needed than the broker has."""
    kafka.create_topic("too-old")
    monkeypatch.setattr("uploader_agent.intake.brokers._BY_TOPIC_ID", 99)
    with closing(BrokerConnections({"bootstrap_servers": [kafka.bootstrap]}, FetchLimits())) as brokers:
        brokers.run(brokers.topics(None))
        brokers.send(1, [Wanted(TopicPartition("too-old", 0), "", 1, False, 0, 0, -1)])
        with pytest.raises(BrokerError, match=r"broker 1 at .* has the API of Kafka 4\.\d.*needs 3\.1.*Fetch.*proves"):
            wait_until(lambda: bool(brokers.answers(0.1)), what="the refusal")
