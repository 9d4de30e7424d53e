"""What is measured: JSON values of about 1 KB and about 250 B, from a real producer through a real broker.

Topics are made once and kept in the user's cache, outside the checkout: the broker's own files, which each run starts
a broker upon, and the raw store that the agent made of them, which holds the same bytes.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import yaml
from confluent_kafka import Producer

from demo.steps import Steps
from tests.support.kafka import KafkaCluster
from tests.support.kafka_config import read_properties
from tests.support.paths import STATE, cache_dir, env_bin

HOME = STATE / "bench"
"""What a run makes and the next one throws away."""

CODECS: Final = ("zstd", "lz4", "none", "snappy", "gzip")
BATCH = {"linger.ms": 50, "batch.size": 1 << 20, "batch.num.messages": 100_000, "queue.buffering.max.kbytes": 1 << 18}
_POOL: Final = 20_000


@dataclass(frozen=True)
class Topic:
    """A topic to measure: ``size`` is the bytes of a value, about; ``segment`` those of a segment, at most."""

    codec: str
    size: int
    partitions: int = 4
    segment: int = 256 << 20

    @property
    def name(self) -> str:
        """Its name on the broker, which tells all of it."""
        return f"bench-{self.codec}-{self.size}-{self.partitions}x{self.segment >> 20}"


@dataclass(frozen=True)
class Produced:
    """What a topic holds: records, and bytes of their values."""

    records: int
    value_bytes: int


class Data:
    """A running broker with the topics that were asked for, and local raw stores with their segments."""

    def __init__(self, folder: Path, cluster: KafkaCluster, made: Mapping[str, Produced]) -> None:
        self._folder = folder
        self.cluster = cluster
        self._made = made

    def __getitem__(self, topic: Topic) -> Produced:
        return self._made[topic.name]

    def raw(self, topic: Topic) -> Path:
        """Where the segments of ``topic`` lie, as the agent stored them."""
        return _raw(self._folder, topic)

    def files(self, topics: Sequence[Topic]) -> list[Path]:
        """All log segments of the topics, and the indexes of the closed ones (an active one's are preallocated)."""
        [log_dir] = self.cluster.brokers[0].log_dirs
        found: list[Path] = []
        for folder in (log_dir / f"{topic.name}-{one}" for topic in topics for one in range(topic.partitions)):
            *closed, active = sorted(folder.glob("*.log"))
            for log in closed:
                found += [log, log.with_suffix(".index"), log.with_suffix(".timeindex")]
            found.append(active)
        return found


@contextmanager
def data(gib: float, topics: Sequence[Topic], steps: Steps) -> Iterator[Data]:
    """``topics`` with ``gib`` of values each: found in the cache, or made there."""
    folder = cache_dir() / "bench" / f"{gib:g}"
    table = folder / "made.json"
    known = {name: Produced(**one) for name, one in json.loads(table.read_text()).items()} if table.exists() else {}
    jvm = ("-Xmx1g", "-XX:+UseParallelGC")
    before = folder / "kafka" / "broker-1" / "data-1" / "meta.properties"
    cluster_id = read_properties(before)["cluster.id"] if before.exists() else None
    common = {"log.roll.ms": str(10**12)}
    with KafkaCluster(folder / "kafka", common=common, jvm=jvm, cluster_id=cluster_id) as cluster:
        for topic in topics:
            if topic.name not in known:
                with steps.step(f"{gib:g} GiB of values produced to {topic.name}"):
                    known[topic.name] = _make(cluster, topic, int(gib * (1 << 30)), folder)
                table.write_text(json.dumps({name: asdict(one) for name, one in known.items()}))
        yield Data(folder, cluster, known)


def agent_file(cluster: KafkaCluster, name: str, url: str, topics: Sequence[str], **more: object) -> Path:
    """An agent's file for the first broker of ``cluster``."""
    HOME.mkdir(parents=True, exist_ok=True)
    path = HOME / f"{name}.yaml"
    settings = {
        "cluster": "bench",
        "broker": {"properties": str(cluster.brokers[0].properties_path)},
        "raw": {"url": url},
        "store": {"path_style": True},
        "include": list(topics),
        "state_dir": str(HOME / name),
        "tail_after": "0s",
        **more,
    }
    path.write_text(yaml.safe_dump(settings))
    return path


def upload(cluster: KafkaCluster, url: str, topics: Sequence[str], env: Mapping[str, str] | None = None) -> None:
    """All segments of the topics to a raw store, as the agent stores them, the active ones as they are."""
    config = agent_file(cluster, "upload", url, topics)
    command: list[str | Path] = [env_bin("agent", "tidemark-agent"), "upload-once", "-c", config]
    subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL)


def values(seed: int, count: int, size: int = 1000) -> list[bytes]:
    """Different JSON values of about ``size`` bytes that compress about 2.5 to 1, as events with ids and texts do."""
    rng = random.Random(seed)  # noqa: S311 - the data must be repeatable
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randrange(3, 11))) for _ in range(2000)]
    return [_value(rng, words, number, size) for number in range(count)]


def _value(rng: random.Random, words: list[str], number: int, size: int) -> bytes:
    event = {
        "id": number,
        "session": rng.randbytes(16).hex(),
        "user": {"id": rng.randrange(10**7), "name": " ".join(rng.choices(words, k=2))},
        "tags": rng.choices(words, k=12 * size // 1000),
        "text": " ".join(rng.choices(words, k=70 * size // 1000)),
        "measures": [round(rng.random(), 6) for _ in range(16 * size // 1000)],
    }
    return json.dumps(event, separators=(",", ":")).encode()


def _make(cluster: KafkaCluster, topic: Topic, total_bytes: int, folder: Path) -> Produced:
    """Fill a topic and its raw store; what an earlier try left of it goes first."""
    with cluster.admin() as admin:
        there = topic.name in admin.list_topics()
    if there:
        cluster.delete_topic(topic.name)
    cluster.create_topic(topic.name, partitions=topic.partitions, config={"segment.bytes": str(topic.segment)})
    produced = produce(cluster, topic, total_bytes)
    raw = _raw(folder, topic)
    shutil.rmtree(raw, ignore_errors=True)
    upload(cluster, f"file://{raw}", [topic.name])
    return produced


def _raw(folder: Path, topic: Topic) -> Path:
    return folder / "raw" / topic.name


def produce(cluster: KafkaCluster, topic: Topic, total_bytes: int) -> Produced:
    """At least ``total_bytes`` of values over two dates."""
    pool = values(1, _POOL, topic.size)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "compression.type": topic.codec, **BATCH})
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
        raise TimeoutError(f"{left} records of {topic.name} were not acknowledged")
    return Produced(number, sent)


def _send(producer: Producer, topic: Topic, number: int, value: bytes, timestamp: int) -> None:
    while True:
        try:
            producer.produce(
                topic.name,
                key=b"k%012d" % number,
                value=value,
                partition=number // 200 % topic.partitions,
                headers=[("h", b"bench")],
                timestamp=timestamp,
            )
        except BufferError:
            producer.poll(0.05)  # the queue is full: wait until the broker has taken some
        else:
            producer.poll(0)
            return
