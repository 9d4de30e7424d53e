"""What a read_committed consumer reads from the broker equals the table, row for row, for each topic."""

from __future__ import annotations

import random

import pytest
from confluent_kafka import Producer

from tests.end_to_end.deployment import SmallDeployment
from tests.end_to_end.rows import consumed, landed
from tidemark.formats.raw.watermark_index import IndexEntry
from tidemark.raw_topic import RawTopic
from tidemark.table.delta_table import committed_ledger

DAY = 86_400_000
NOVEMBER_18 = 1_794_960_000_000 - 1_794_960_000_000 % DAY
SMALL = {"segment.bytes": str(1 << 20)}


def send(producer: Producer, topic: str, rng: random.Random, count: int, partitions: int) -> None:
    """Records of all kinds: keys, values and header values that are there, empty and null; three dates."""
    headers: list[tuple[str, str | bytes | None]] = [("a", b"1"), ("a", None), ("", b"")]
    for number in range(count):
        producer.produce(
            topic,
            key=rng.choice([None, b"", b"key-%d" % number]),
            value=rng.choice([None, b"", rng.randbytes(rng.randrange(1, 1500))]),
            headers=rng.choice([[], headers]),
            timestamp=NOVEMBER_18 + rng.randrange(3 * DAY),
            partition=rng.randrange(partitions),
        )
        producer.poll(0)
    assert producer.flush(60) == 0


def plain(bootstrap: str, topic: str, codec: str, rng: random.Random) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "compression.type": codec, "linger.ms": 20})
    send(producer, topic, rng, 6_000, 3)


def transactional(bootstrap: str, topic: str, codec: str, rng: random.Random) -> Producer:
    """Committed, aborted and interleaved transactions; the last one stays open, as long as its producer is kept."""
    patient = {"bootstrap.servers": bootstrap, "compression.type": codec, "transaction.timeout.ms": 600_000}
    producers = [Producer({**patient, "transactional.id": f"{topic}-{number}"}) for number in range(2)]
    for producer in producers:
        producer.init_transactions()
    for round_number in range(6):
        for producer in producers:
            producer.begin_transaction()
            send(producer, topic, rng, 400, 3)
        for number, producer in enumerate(producers):
            if (round_number + number) % 3 == 0:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
    producers[0].begin_transaction()
    send(producers[0], topic, rng, 50, 3)
    return producers[0]


@pytest.mark.essential
def test_the_table_is_what_a_consumer_reads(small: SmallDeployment, rng: random.Random) -> None:
    bootstrap = small.kafka.bootstrap
    for topic in small.topics:
        small.kafka.create_topic(topic, partitions=3, config=SMALL)
    plain(bootstrap, small.topics[0], "zstd", rng)
    producer = transactional(bootstrap, small.topics[1], "lz4", rng)
    small.upload()
    for topic in small.topics:
        assert small.land(topic).status == "landed"
        rows = landed(small.table(topic))
        assert len(rows) == len(set(rows)) == committed_ledger(small.table(topic)).rows
        assert set(rows) == consumed(bootstrap, topic)
    held = [state for state in committed_ledger(small.table(small.topics[1])).partitions if state.held_by]
    assert held, "the open transaction holds its partitions back"

    producer.commit_transaction()
    plain(bootstrap, small.topics[0], "gzip", rng)
    small.upload()
    for topic in small.topics:
        assert small.land(topic).status == "landed"
        rows = landed(small.table(topic))
        assert len(rows) == len(set(rows))
        assert set(rows) == consumed(bootstrap, topic)
        closing = small.land(topic)
        assert (closing.status, closing.rows) == ("landed", 0), "its dates are over: they are closed"
        states = {date.state for date in committed_ledger(small.table(topic)).dates.values()}
        assert states == {"final"}
        assert small.land(topic).status == "empty", "nothing is left to do"


def test_what_is_only_packed_lands_and_closes_its_dates(small: SmallDeployment, rng: random.Random) -> None:
    """Of a topic without a ``freshness``: its tails are quiet, and Kafka has rolled nothing."""
    topic, bootstrap = small.topics[0], small.kafka.bootstrap
    small.kafka.create_topic(topic, partitions=3)
    plain(bootstrap, topic, "zstd", rng)

    def stored() -> list[IndexEntry]:
        return list(RawTopic(small.table(topic)).entries.values())

    with small.running_agent() as agent:
        agent.wait_until(lambda: sum(one.least_stored_end for one in stored()) == 6_000, what="all to be packed")
    assert {one.next_offset for one in stored()} == {0}, "nothing is sealed"
    assert small.land(topic).status == "landed"
    rows = landed(small.table(topic))
    assert len(rows) == len(set(rows)) == committed_ledger(small.table(topic)).rows
    assert set(rows) == consumed(bootstrap, topic)
    assert (small.land(topic).status, small.land(topic).status) == ("landed", "empty")
    assert {date.state for date in committed_ledger(small.table(topic)).dates.values()} == {"final"}

    small.upload()
    assert {one.least_stored_end - one.next_offset for one in stored()} == {0}, "the tails are sealed"
    assert small.land(topic).status == "empty", "seals hold the same"
