"""The kinds of topics that every mode reads, and what they are made of."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from confluent_kafka import Producer

from tests.consumer.world import PRODUCER, SMALL, World, partitions, produce, some
from tests.support.kafka_broker import KafkaVersion
from tests.support.waiting import wait_until


@dataclass(frozen=True)
class Kind:
    """A kind of topic: how it is filled before the upload, and how many partitions it has."""

    fill: Callable[[World, str, KafkaVersion], None]
    partitions: int = 2
    isolation: str = "read_uncommitted"


def codec(name: str) -> Kind:
    """Records in batches of a codec."""

    def fill(world: World, topic: str, version: KafkaVersion) -> None:
        world.kafka.create_topic(topic, partitions=2, config=SMALL[version])
        produce(world.kafka.bootstrap, topic, some(800, 2), **{"compression.type": name})

    return Kind(fill)


def transactions(world: World, topic: str, version: KafkaVersion) -> None:
    """Committed and aborted transactions of two producers, in between plain records; then one that stays open."""
    world.kafka.create_topic(topic, partitions=2, config=SMALL[version])
    chance = random.Random(topic)
    # One stays in a transaction beyond the broker's end: it need not tell of every try to reach it.
    common = {"bootstrap.servers": world.kafka.bootstrap, "log_level": 2, **PRODUCER}
    # Longer than a module lasts on a busy machine: the broker would end the transaction, and the log would grow.
    lasting = {**common, "transaction.timeout.ms": 900_000}
    producers = [Producer({**lasting, "transactional.id": f"{topic}-{number}"}) for number in range(2)]
    plain = Producer(common)
    for producer in producers:
        producer.init_transactions(30)
    for number in range(60):
        producer = chance.choice(producers)
        producer.begin_transaction()
        for part in range(chance.randrange(1, 30)):
            producer.produce(topic, b"%d.%d" % (number, part) + bytes(100), partition=chance.randrange(2))
        producer.flush(30)
        if chance.random() < 0.4:
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)
        if chance.random() < 0.3:
            plain.produce(topic, b"plain %d" % number, partition=chance.randrange(2))
            plain.flush(30)
    producers[0].begin_transaction()
    for part in range(300):
        producers[0].produce(topic, b"open %d" % part + bytes(100), partition=part % 2)
    producers[0].flush(30)
    for part in range(300):
        plain.produce(topic, b"after %d" % part + bytes(100), partition=part % 2)
    plain.flush(30)
    _OPEN.append(producers[0])


_OPEN: list[Producer] = []
"""Producers whose transaction stays open as long as they live."""


def compacted(world: World, topic: str, version: KafkaVersion) -> None:
    """Few keys, written over and over: whole batches and ends of segments are gone."""
    config = {**SMALL[version], "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
    world.kafka.create_topic(topic, partitions=2, config=config)
    records = [(number % 2, b"key-%d" % (number % 7), b"%d" % number + bytes(300)) for number in range(1000)]
    produce(world.kafka.bootstrap, topic, records)
    with world.plain() as consumer:
        consumer.assign(partitions(topic, 2))

        def left() -> int:
            consumer.seek_to_beginning()
            ends = consumer.end_offsets(partitions(topic, 2))
            count = 0
            while any(consumer.position(tp) < end for tp, end in ends.items()):
                count += sum(map(len, consumer.poll(timeout_ms=100).values()))
            return count

        seen = [1000, 1000, 1000]

        def settled() -> bool:
            seen.append(left())
            return seen[-1] < 300 and len(set(seen[-3:])) == 1

        wait_until(settled, what="the cleaner to compact", interval=0.4)


def idle(world: World, topic: str, version: KafkaVersion) -> None:
    """One partition with a few records that never rotate, one with none."""
    world.kafka.create_topic(topic, partitions=2, config=SMALL[version])
    produce(world.kafka.bootstrap, topic, [(0, None, b"a"), (0, b"k", None), (0, b"", b"")])


def many(world: World, topic: str, version: KafkaVersion) -> None:
    """Forty partitions."""
    world.kafka.create_topic(topic, partitions=40, config=SMALL[version])
    produce(world.kafka.bootstrap, topic, some(8000, 40))


KINDS = {
    **{name: codec(name) for name in ("none", "gzip", "snappy", "lz4", "zstd")},
    "transactions": Kind(transactions),
    "committed": Kind(transactions, isolation="read_committed"),
    "compacted": Kind(compacted),
    "idle": Kind(idle),
    "many": Kind(many, partitions=40),
}
