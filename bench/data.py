"""The benchmarks' data: JSON values of about 1 KB and about 250 B, from a real producer through a real broker.

Topics are made once and kept in the user's cache, outside the checkout: the broker's own files, on which each run
starts a broker, and the raw store into which the agent uploaded them.
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
"""Files of a run, which the next run deletes."""

CODECS: Final = ("zstd", "lz4", "none", "snappy", "gzip")
BATCH = {"linger.ms": 50, "batch.size": 1 << 20, "batch.num.messages": 100_000, "queue.buffering.max.kbytes": 1 << 18}
_POOL: Final = 20_000


@dataclass(frozen=True)
class Topic:
    """A topic to measure: values have about ``size`` bytes, and segments at most ``segment`` bytes."""

    codec: str
    size: int
    partitions: int = 4
    segment: int = 256 << 20

    @property
    def name(self) -> str:
        """The name on the broker, which contains all fields."""
        return f"bench-{self.codec}-{self.size}-{self.partitions}x{self.segment >> 20}"


@dataclass(frozen=True)
class Produced:
    """Content of a topic: its records, and the bytes of their values."""

    records: int
    value_bytes: int


class Data:
    """A running broker with the requested topics, and local raw stores with their segments."""

    def __init__(self, folder: Path, cluster: KafkaCluster, made: Mapping[str, Produced]) -> None:
        self._folder = folder
        self.cluster = cluster
        self._made = made

    def __getitem__(self, topic: Topic) -> Produced:
        return self._made[topic.name]

    def raw(self, topic: Topic) -> Path:
        """Folder of the segments of ``topic`` that the agent stored."""
        return _raw(self._folder, topic)

    def files(self, topics: Sequence[Topic]) -> list[Path]:
        """All log segments of the topics, and the indexes of closed segments (active segments preallocate theirs)."""
        [log_dir] = self.cluster.brokers[0].log_dirs
        files: list[Path] = []
        folders = (log_dir / f"{topic.name}-{partition}" for topic in topics for partition in range(topic.partitions))
        for folder in folders:
            *closed, active = sorted(folder.glob("*.log"))
            for log in closed:
                files += [log, log.with_suffix(".index"), log.with_suffix(".timeindex")]
            files.append(active)
        return files


@contextmanager
def data(gib: float, topics: Sequence[Topic], steps: Steps) -> Iterator[Data]:
    """Start a broker on ``topics`` with ``gib`` of values each, from the cache; make the missing topics there first."""
    folder = cache_dir() / "bench" / f"{gib:g}"
    table = folder / "made.json"
    made = json.loads(table.read_text()) if table.exists() else {}
    known = {name: Produced(**produced) for name, produced in made.items()}
    jvm = ("-Xmx1g", "-XX:+UseParallelGC")
    before = folder / "kafka" / "broker-1" / "data-1" / "meta.properties"
    cluster_id = read_properties(before)["cluster.id"] if before.exists() else None
    common = {"log.roll.ms": str(10**12)}
    with KafkaCluster(folder / "kafka", common=common, jvm=jvm, cluster_id=cluster_id) as cluster:
        for topic in topics:
            if topic.name not in known:
                with steps.step(f"{gib:g} GiB of values produced to {topic.name}"):
                    known[topic.name] = _make(cluster, topic, int(gib * (1 << 30)), folder)
                table.write_text(json.dumps({name: asdict(produced) for name, produced in known.items()}))
        yield Data(folder, cluster, known)


def agent_file(
    cluster: KafkaCluster, name: str, url: str, topics: Sequence[str], *, fetch: bool = False, **more: object
) -> Path:
    """Write the settings file of an agent beside the first broker of ``cluster``, and return its path.

    With ``fetch`` the agent fetches all that the brokers have.
    """
    HOME.mkdir(parents=True, exist_ok=True)
    path = HOME / f"{name}.yaml"
    disk = {"broker": {"properties": str(cluster.brokers[0].properties_path)}}
    spool = {"fetch": {"bootstrap": cluster.bootstrap, "spool": str(HOME / f"{name}-spool")}}
    settings = {
        "cluster": "bench",
        **(spool if fetch else disk),
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
    """Have an agent upload all segments of the topics to a raw store, active segments included."""
    config = agent_file(cluster, "upload", url, topics)
    command: list[str | Path] = [env_bin("agent", "tidemark-agent"), "upload-once", "-c", config]
    subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL)


def values(seed: int, count: int, size: int = 1000) -> list[bytes]:
    """Different JSON values of about ``size`` bytes that compress about 2.5 to 1, like events with ids and texts."""
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
    """Fill a topic and its raw store, after removing leftovers of an earlier try."""
    with cluster.admin() as admin:
        exists = topic.name in admin.list_topics()
    if exists:
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
    """Produce at least ``total_bytes`` of values over two dates."""
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
            producer.poll(0.05)  # the queue is full: wait until the broker has taken records
        else:
            producer.poll(0)
            return
