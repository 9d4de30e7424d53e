"""Clients write with codecs to topics of every kind: what a broker then has on its disk, to be landed.

The partition tells client and codec, the topic tells who sets the timestamp and whether it is compacted. To each
partition write two transactional producers, whose transactions interleave and go on over segments, a plain one, and one
whose transaction stays open. Topics with the same settings share a transaction.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from tests.support.java_client import JavaClient
from tests.support.kafka import KafkaCluster
from tests.tidemark.decode.clients import Client, JavaProducer, PythonClient, RdkafkaClient
from tests.tidemark.decode.real_logs import small_segments, unique
from tests.tidemark.kafka_log.build import CODEC_IDS, T0, Record

CLIENTS = ("kafka-python", "librdkafka", "java")
Combination = tuple[str, str]
COMBINATIONS: list[Combination] = [(client, codec) for client in CLIENTS for codec in CODEC_IDS]
SEGMENT_BYTES = 3000
_THREADS = 6


def sample(rng: random.Random) -> list[Combination]:
    """Each codec once, and each client at least once."""
    clients = rng.sample(CLIENTS, len(CLIENTS)) + rng.choices(CLIENTS, k=len(CODEC_IDS) - len(CLIENTS))
    return list(zip(clients, CODEC_IDS, strict=True))


class Topic(NamedTuple):
    """A topic with a partition for each combination."""

    name: str
    append_time: bool
    compacted: bool


def create_topics(cluster: KafkaCluster, partitions: int) -> list[Topic]:
    """One for each timestamp type and clean-up policy."""
    topics = [
        Topic(unique(f"{'append' if append else 'create'}-{'compact' if compacted else 'delete'}"), append, compacted)
        for append in (False, True)
        for compacted in (False, True)
    ]
    for topic in topics:
        config = {
            "message.timestamp.type": "LogAppendTime" if topic.append_time else "CreateTime",
            "cleanup.policy": "compact" if topic.compacted else "delete",
            "min.cleanable.dirty.ratio": "0.001",
            "delete.retention.ms": "86400000",
            **small_segments(cluster, SEGMENT_BYTES),
        }
        cluster.create_topic(topic.name, partitions=partitions, config=config)
    return topics


class Writer:
    """A client that writes random records to one partition of all topics, and tells what readers must get."""

    def __init__(
        self, client: Client, topics: Iterable[Topic], partition: int, rng: random.Random, *, nulls: bool
    ) -> None:
        """``nulls``: the client sends what is all null."""
        self.client = client
        self._topics, self._partition, self._rng, self._nulls = list(topics), partition, rng, nulls
        self._pending: dict[str, list[Record]] = defaultdict(list)
        self.readable: dict[str, list[Record]] = defaultdict(list)

    def write(self) -> None:
        """Send a few records to each topic."""
        records = [
            (topic.name, self._record(topic, number))
            for topic in self._topics
            for number in range(self._rng.randint(1, 6))
        ]
        self.client.send(self._partition, records)
        for name, record in records:
            self._pending[name].append(record)

    def settle(self) -> None:
        """What was written since the last time can be read, without a transaction or because it is committed."""
        for name, records in self._pending.items():
            self.readable[name] += records
        self._pending.clear()

    def commit(self) -> None:
        """Commit the transaction."""
        self.client.commit()
        self.settle()

    def abort(self) -> None:
        """Abort the transaction."""
        self.client.abort()
        self._pending.clear()

    def _record(self, topic: Topic, number: int) -> Record:
        rng = self._rng
        keys = [b"", *(b"key-%d" % i for i in range(6)), *([] if topic.compacted else [None, rng.randbytes(30)])]
        key = rng.choice(keys)
        values = [b"", b"text %d " % number * rng.randint(1, 20), rng.randbytes(300)]
        value = rng.choice(values if key is None and not self._nulls else [*values, None])
        headers = [
            (rng.choice(["trace", "", "clé"]), rng.choice([b"", b"%d" % number, *([None] if self._nulls else [])]))
            for _ in range(rng.choice([0, 0, 1, 3]))
        ]
        return Record(number, T0 + rng.randint(-90_000_000, 90_000_000), key, value, headers)


class Written(NamedTuple):
    """What a combination's producers wrote: records that can be read, by topic; and the producer that hangs."""

    readable: dict[str, list[Record]]
    hanging: Client


def write_all(
    cluster: KafkaCluster,
    java: JavaClient,
    topics: list[Topic],
    combinations: Sequence[Combination],
    rng: random.Random,
    rounds: int,
) -> list[Written]:
    """Let all write, ``rounds`` times two transactions of each producer; they mostly wait, so at once."""
    seeds = [rng.getrandbits(32) for _ in combinations]

    def write(partition: int) -> Written:
        one = combinations[partition]
        return _write(cluster, java, topics, partition, one, random.Random(seeds[partition]), rounds)

    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(write, range(len(combinations))))


def _write(
    cluster: KafkaCluster,
    java: JavaClient,
    topics: list[Topic],
    partition: int,
    combination: Combination,
    rng: random.Random,
    rounds: int,
) -> Written:
    family, codec = combination

    def writer(transactional_id: str | None) -> Writer:
        client = _maker(family, java)(cluster.bootstrap, codec, transactional_id)
        return Writer(client, topics, partition, rng, nulls=family != "kafka-python")

    first, second, hanging = (writer(unique("t")) for _ in range(3))
    plain = writer(None)
    for _ in range(rounds):
        for commit_long in (True, False):
            first.client.begin()
            second.client.begin()
            first.write()
            second.write()
            first.write()
            first.abort() if commit_long else first.commit()
            plain.write()
            plain.settle()
            for _ in range(2):  # meanwhile segments roll
                first.client.begin()
                first.write()
                first.commit()
            second.write()
            second.commit() if commit_long else second.abort()
    hanging.client.begin()
    hanging.write()
    plain.write()  # cannot be read while the other hangs
    readable: dict[str, list[Record]] = defaultdict(list)
    for one in (first, second, plain):
        one.client.close()
        for name, records in one.readable.items():
            readable[name] += records
    return Written(readable, hanging.client)


def _maker(family: str, java: JavaClient) -> Callable[..., Client]:
    makers: dict[str, Callable[..., Client]] = {
        "kafka-python": PythonClient,
        "librdkafka": RdkafkaClient,
        "java": lambda *arguments, **options: JavaProducer(java, *arguments, **options),
    }
    return makers[family]
