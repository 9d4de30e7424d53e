"""A topic's history on a real broker, uploaded by the agent, for what is restored and read from the command line."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import yaml
from kafka.admin import ConfigResource, ConfigResourceType

from tests.support.kafka import KafkaCluster
from tests.support.waiting import wait_until
from tests.tidemark.decode.clients import Client, PythonClient, RdkafkaClient
from tests.tidemark.decode.real_logs import consumed_of, random_records, small_segments, unique
from tests.tidemark.kafka_log.build import T0, Record
from tests.uploader_agent.in_process import run_here

SEGMENT_BYTES = 8000
_SENT_AT_ONCE = 15
CODECS = ("none", "gzip", "lz4", "zstd")

Kept = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]], int]
"""What a restore keeps of a record: key, value, headers, timestamp."""


class History(NamedTuple):
    """A topic whose rotated segments, and its quiet tail, lie below ``raw``."""

    cluster: KafkaCluster
    topic: str
    partitions: int
    topics_file: Path

    def records(self, *, committed: bool = True) -> list[list[Kept]]:
        """What kafka-python reads of each partition from the broker, without offsets."""
        return kept(self.cluster, self.topic, self.partitions, committed=committed)


def kept(cluster: KafkaCluster, topic: str, partitions: int, *, committed: bool = True) -> list[list[Kept]]:
    """What kafka-python reads of each partition of a topic: what a restore keeps."""
    found = consumed_of(cluster, topic, partitions, committed=committed)
    return [[(one.key, one.value, one.headers, one.timestamp or -1) for one in rows] for rows in found]


def make(
    cluster: KafkaCluster, folder: Path, rng: random.Random, *, partitions: int = 4, records: int = 120
) -> History:
    """A topic with each codec in its partition, nulls everywhere, times out of order, commits and aborts; uploaded."""
    topic = unique("history")
    cluster.create_topic(topic, partitions=partitions, config=small_segments(cluster, SEGMENT_BYTES))
    for partition in range(partitions):
        codec = CODECS[partition % len(CODECS)]
        plain = RdkafkaClient(cluster.bootstrap, codec, None)
        made = RdkafkaClient(cluster.bootstrap, codec, unique("t"))
        other = PythonClient(cluster.bootstrap, codec, unique("t"))
        for number in range(4):
            made.begin()
            other.begin()
            _send(plain, topic, partition, random_records(rng, records // 8, librdkafka=True))
            _send(made, topic, partition, random_records(rng, records // 16, librdkafka=True))
            _send(other, topic, partition, random_records(rng, records // 16))
            made.commit() if number % 2 else made.abort()
            other.abort() if number == 1 else other.commit()
        _send(plain, topic, partition, [Record(0, T0 - 1, None, None, [("n", None), ("n", b"")])])
        for one in (plain, made, other):
            one.close()
    return upload(cluster, folder, topic, partitions)


def make_compacted(cluster: KafkaCluster, folder: Path, rng: random.Random) -> History:
    """A topic that was compacted once, and is left alone since; uploaded."""
    topic = unique("compacted")
    settings = {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0.001",
        "delete.retention.ms": "86400000",
        **small_segments(cluster, 2000),
    }
    cluster.create_topic(topic, config=settings)
    client = RdkafkaClient(cluster.bootstrap, "lz4", None)
    for number in range(30):
        found = [
            Record(i, T0 + number, b"key-%d" % rng.randrange(8), rng.choice([None, rng.randbytes(60)]))
            for i in range(8)
        ]
        _send(client, topic, 0, found)
    client.close()
    wait_until(lambda: len(kept(cluster, topic, 1)[0]) < 100, what=f"{topic} to be compacted", interval=0.5)
    with cluster.admin() as admin:
        admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, {"cleanup.policy": "delete"})])
    return upload(cluster, folder, topic, 1)


def _send(client: Client, topic: str, partition: int, records: Iterable[Record]) -> None:
    waiting = list(records)
    while waiting:  # in batches that fit into a segment
        client.send(partition, [(topic, one) for one in waiting[:_SENT_AT_ONCE]])
        del waiting[:_SENT_AT_ONCE]


def upload(cluster: KafkaCluster, folder: Path, topic: str, partitions: int) -> History:
    """Run the agent until all that lies on the broker's disk is stored, the tail included; write a topics file."""
    raw = {"url": f"file://{folder}/raw"}
    (folder / "raw").mkdir(parents=True, exist_ok=True)
    agent, topics = folder / "agent.yaml", folder / "topics.yaml"
    settings = {
        "cluster": "test",
        "broker": {"properties": str(cluster.brokers[0].properties_path)},
        "raw": raw,
        "state_dir": str(folder / "agent"),
        "include": [topic],
        "tail_after": "0s",
    }
    agent.write_text(yaml.safe_dump(settings))
    topics.write_text(
        yaml.safe_dump({"cluster": "test", "raw": raw, "lake": f"file://{folder}/lake", "topics": [{"topic": topic}]})
    )
    log = folder / "agent.log"
    assert run_here(["upload-once", "--config", agent], log) == 0, log.read_text()
    return History(cluster, topic, partitions, topics)
