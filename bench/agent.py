"""The agent: a backlog beside a bare boto3 loop on the same files, and the time from rotation to watermark."""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Message, Producer
from inotify_simple import INotify, flags

from bench.data import HOME, Data, Topic, agent_file, values
from bench.measure import MB, Row, Usage, run
from tests.support.kafka import KafkaCluster
from tests.support.paths import env_bin, env_python
from tests.support.process import ManagedProcess
from tests.support.s3 import S3Server
from tidemark.errors import NotFound
from tidemark.formats.keys import ControlKeys, Endpoint, PartitionKeys, TopicPartition
from tidemark.formats.raw import watermark
from tidemark.formats.raw.cluster import FIRST_SLOT
from tidemark.raw.heads import read_head
from tidemark.storage import ClusterStore
from tidemark.store import Store, open_store

TOPICS = tuple(Topic(codec, 1000) for codec in ("zstd", "lz4", "none"))
THREADS = 8
REPETITIONS = 3
AGENT = env_bin("agent", "tidemark-agent")
BARE = Path(__file__).with_name("bare_boto3.py")


def backlog(made: Data, s3: S3Server) -> list[Row]:
    """Throughput, CPU and memory for all segments, active segments included, alternating with the peer."""
    topics = [topic.name for topic in TOPICS]
    files = made.files(TOPICS)
    size = sum(file.stat().st_size for file in files)
    ours: list[Usage] = []
    bare: list[Usage] = []
    for number in range(REPETITIONS):
        arguments = ["raw", f"bare-{number}", str(THREADS), *map(str, files)]
        bare.append(run([env_python("agent"), BARE, *arguments], env=s3.env(), log=HOME / "bare.log"))
        upload = {"concurrency": THREADS}
        config = agent_file(made.cluster, f"agent-{number}", f"s3://raw/agent-{number}", topics, upload=upload)
        ours.append(run([AGENT, "upload-once", "-c", config], env=s3.env(), log=HOME / "agent.log"))
    gib = size / (1 << 30)
    note = f"{gib:.2f} GiB in segments of up to 256 MiB, {THREADS} threads, plain HTTP, server on the same 2 cores"
    rows: list[Row] = []
    for name, usages in (("tidemark-agent upload-once", ours), ("bare boto3 put_object", bare)):
        rows += [
            Row("agent", f"{name}: throughput", "MB/s", tuple(size / MB / usage.wall for usage in usages), note),
            Row("agent", f"{name}: CPU", "s/GiB", tuple(usage.cpu / gib for usage in usages), "start-up included"),
            Row("agent", f"{name}: peak memory", "MiB", tuple(usage.peak / (1 << 20) for usage in usages)),
        ]
    ratios = tuple(theirs.wall / mine.wall for mine, theirs in zip(ours, bare, strict=True))
    rows.append(Row("agent", "throughput beside bare boto3 (aim 0.95)", "ratio", ratios, "of the same round"))
    return rows


def fetching(made: Data, s3: S3Server) -> list[Row]:
    """Throughput, CPU and memory of a slot that fetches the same topics from their broker, and seals them."""
    topics = [topic.name for topic in TOPICS]
    size = sum(file.stat().st_size for file in made.files(TOPICS) if file.suffix == ".log")
    usages: list[Usage] = []
    for number in range(REPETITIONS):
        name = f"fetch-{number}"
        shutil.rmtree(HOME / f"{name}-spool", ignore_errors=True)
        config = agent_file(made.cluster, name, f"s3://raw/{name}", topics, fetch=True, upload={"concurrency": THREADS})
        usages.append(run([AGENT, "upload-once", "--tails", "-c", config], env=s3.env(), log=HOME / "fetch.log"))
    note = f"{size / (1 << 30):.2f} GiB, to sealed segments; broker, spool and store on the same 2 cores, no TLS"
    return [
        Row(
            "fetch", "bytes for a second of CPU (aim 250)", "MB", tuple(size / MB / usage.cpu for usage in usages), note
        ),
        Row("fetch", "throughput", "MB/s", tuple(size / MB / usage.wall for usage in usages), note),
        Row("fetch", "peak memory", "MiB", tuple(usage.peak / (1 << 20) for usage in usages)),
    ]


def append_to_stored(cluster: KafkaCluster, s3: S3Server, *, seconds: float = 200.0) -> list[Row]:
    """Time from append to a head that names the record, on a slot with ``freshness: 60s`` and a steady producer."""
    topic, partitions = f"bench-fresh-{uuid.uuid4().hex[:8]}", 8
    cluster.create_topic(topic, partitions=partitions)
    config = agent_file(
        cluster, "fresh", "s3://raw/fresh", [topic], fetch=True, tail_after="10m", freshness={".*": "60s"}
    )
    appended: list[tuple[TopicPartition, int, float]] = []

    def acknowledged(error: object, message: Message) -> None:
        if error is not None:
            raise RuntimeError(f"a record was not appended: {error}")
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        appended.append((TopicPartition(topic, partition), offset, time.monotonic()))

    waited: list[float] = []
    store, control = open_store("s3://raw"), ControlKeys("fresh", "bench")
    with _running_agent(config, s3):
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 5})
        pool, number, started = values(2, 2000), 0, time.monotonic()
        while appended or time.monotonic() < started + seconds:
            if time.monotonic() < started + seconds:
                for partition in range(partitions):
                    producer.produce(
                        topic, value=pool[number % len(pool)], partition=partition, on_delivery=acknowledged
                    )
                    number += 1
            producer.poll(0)
            time.sleep(0.1)
            ends, now = _packed_ends(ClusterStore(store, control)), time.monotonic()
            waited += [now - at for tp, offset, at in appended if offset < ends.get(tp, 0)]
            appended = [record for record in appended if record[1] >= ends.get(record[0], 0)]
    ordered = sorted(waited)
    note = f"freshness 60s; {len(ordered)} records in {partitions} partitions over {seconds:.0f} s"
    return [
        Row("fetch", "append to stored, p50", "s", (ordered[len(ordered) // 2],), note),
        Row("fetch", "append to stored, p99 (aim 20)", "s", (ordered[int(len(ordered) * 0.99)],), note),
    ]


def _packed_ends(cluster: ClusterStore) -> dict[TopicPartition, int]:
    head = read_head(cluster, FIRST_SLOT)
    entries = head.value.entries if head else ()
    return {TopicPartition(entry.topic, entry.partition): entry.tail_end for entry in entries}


def latency(cluster: KafkaCluster, s3: S3Server, *, rotations: int = 60) -> list[Row]:
    """Time from rotation to watermark: from the next segment's file to an `offset.wm` that covers the closed one."""
    topic = f"bench-latency-{uuid.uuid4().hex[:8]}"  # the brokers outlive the bench
    cluster.create_topic(topic, config={"segment.bytes": str(1 << 20)})
    config = agent_file(cluster, "latency", "s3://raw/latency", [topic], tail_after="10m")
    store = open_store("s3://raw")
    key = PartitionKeys(Endpoint("s3://raw", "latency"), "bench", topic, 0).watermark
    folder = cluster.brokers[0].log_dirs[0] / f"{topic}-0"
    latencies: list[float] = []
    with _running_agent(config, s3), INotify() as watch:
        watch.add_watch(folder, flags.CREATE)
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 5})
        pool, number, sent, started = values(2, 2000), 0, 0, time.monotonic()
        rotated_at: dict[int, float] = {}
        while len(latencies) < rotations:
            value = pool[number % len(pool)]
            producer.produce(topic, value=value)
            producer.poll(0)
            number, sent = number + 1, sent + len(value)
            if sent / (2 * MB) <= time.monotonic() - started:
                continue  # behind 2 MB/s: send on
            rotated_at |= dict.fromkeys(_created(watch), time.monotonic())
            latencies += _covered(store, key, rotated_at)
        producer.flush(30)
    ordered = sorted(1000 * seconds for seconds in latencies)
    note = f"{len(ordered)} rotations of 1 MiB segments at 2 MB/s; observer on the same 2 cores, resolution about 3 ms"
    return [
        Row("agent", "rotation to watermark, p50 (aim 150)", "ms", (ordered[len(ordered) // 2],), note),
        Row("agent", "rotation to watermark, p99", "ms", (ordered[int(len(ordered) * 0.99)],), note),
    ]


@contextmanager
def _running_agent(config: Path, s3: S3Server) -> Iterator[None]:
    with ManagedProcess(
        "agent", [AGENT, "run", "-c", config], log=HOME / "latency.log", env={**s3.env(), "PATH": "/usr/bin:/bin"}
    ):
        yield


def _created(watch: INotify) -> list[int]:
    """Base offsets of the segments begun since the last call, which are the end offsets of the closed segments."""
    names = [event.name for event in watch.read(timeout=0)]
    return [int(name.removesuffix(".log")) for name in names if name.endswith(".log")]


def _covered(store: Store, key: str, rotated_at: dict[int, float]) -> list[float]:
    """Seconds from rotation of each segment that the watermark covers now; removes these from ``rotated_at``."""
    if not rotated_at:
        return []
    try:
        _, line = watermark.parse(store.get(key).body, key)
    except NotFound:
        return []
    now = time.monotonic()
    done = [end for end in rotated_at if line is not None and end <= line.next_offset]
    return [now - rotated_at.pop(end) for end in done]
