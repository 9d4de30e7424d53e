"""What is measured: JSON values of about 1 KB, from real producers through a real broker, in segments of its making."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Producer

from tests.support.kafka import KafkaCluster
from tests.support.paths import STATE

HOME = STATE / "bench"
PARTITIONS = 4
CODECS = ("zstd", "lz4", "none")
BATCH = {"linger.ms": 50, "batch.size": 1 << 20, "batch.num.messages": 100_000, "queue.buffering.max.kbytes": 1 << 18}


@contextmanager
def broker(segment_bytes: int) -> Iterator[KafkaCluster]:
    """A fresh broker whose segments have this size."""
    common = {"log.segment.bytes": str(segment_bytes), "log.roll.ms": str(10**12)}
    with KafkaCluster(HOME / "kafka", common=common, jvm=("-Xmx1g", "-XX:+UseParallelGC")) as cluster:
        yield cluster


def values(seed: int, count: int) -> list[bytes]:
    """Different JSON values of about 1 KB that compress about 2.5 to 1, as events with ids and texts do."""
    rng = random.Random(seed)  # noqa: S311 - the data must be repeatable
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randrange(3, 11))) for _ in range(2000)]
    return [_value(rng, words, number) for number in range(count)]


def _value(rng: random.Random, words: list[str], number: int) -> bytes:
    event = {
        "id": number,
        "session": rng.randbytes(16).hex(),
        "user": {"id": rng.randrange(10**7), "name": " ".join(rng.choices(words, k=2))},
        "tags": rng.choices(words, k=12),
        "text": " ".join(rng.choices(words, k=70)),
        "measures": [round(rng.random(), 6) for _ in range(16)],
    }
    return json.dumps(event, separators=(",", ":")).encode()


class Produced(NamedTuple):
    """What a topic holds: records, and bytes of their values."""

    records: int
    value_bytes: int


def produce(cluster: KafkaCluster, topic: str, codec: str, total_bytes: int, *, seed: int = 1) -> Produced:
    """Fill ``topic`` with at least ``total_bytes`` of values over two dates."""
    cluster.create_topic(topic, partitions=PARTITIONS)
    pool = values(seed, 20_000)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "compression.type": codec, **BATCH})
    noon = datetime(2026, 11, 19, 12, tzinfo=UTC)
    sent = number = 0
    while sent < total_bytes:
        value = pool[number % len(pool)]
        moment = noon + timedelta(days=1) * (sent / total_bytes)
        _send(producer, topic, number, value, int(moment.timestamp() * 1000))
        sent += len(value)
        number += 1
    left = producer.flush(120)
    if left:
        raise TimeoutError(f"{left} records of {topic} were not acknowledged")
    return Produced(number, sent)


def _send(producer: Producer, topic: str, number: int, value: bytes, timestamp: int) -> None:
    while True:
        try:
            producer.produce(
                topic,
                key=b"k%012d" % number,
                value=value,
                partition=number // 200 % PARTITIONS,
                headers=[("h", b"bench")],
                timestamp=timestamp,
            )
        except BufferError:
            producer.poll(0.05)  # the queue is full: wait until the broker has taken some
        else:
            producer.poll(0)
            return


def files(cluster: KafkaCluster, topics: Sequence[str]) -> list[Path]:
    """All log segments of the topics, and the indexes of the closed ones (an active one's are preallocated)."""
    [log_dir] = cluster.brokers[0].log_dirs
    found: list[Path] = []
    for folder in (log_dir / f"{topic}-{partition}" for topic in topics for partition in range(PARTITIONS)):
        *closed, active = sorted(folder.glob("*.log"))
        found += [file for log in closed for file in (log, log.with_suffix(".index"), log.with_suffix(".timeindex"))]
        found.append(active)
    return found
