"""Cost of the agent beside a broker that leads 4,000 partitions, while all are idle and while 1 % are active.

Every partition holds a record that is already uploaded, as after some quiet minutes. The agent is then started again,
as after an update, and measured from the outside, first without new records, then with new records in 40 partitions.
"""

from __future__ import annotations

import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
from confluent_kafka import Producer
from inotify_simple import INotify, flags
from kafka.admin import NewTopic

from bench.agent import AGENT
from bench.data import HOME, agent_file, values
from bench.measure import MB, Row, run
from tests.support.kafka import KafkaCluster
from tests.support.ports import HOST, free_port
from tests.support.process import ManagedProcess
from tests.support.s3 import S3Server
from tests.support.waiting import wait_until
from tidemark.formats.keys import Endpoint, PartitionKeys
from tidemark.formats.raw import watermark
from tidemark.store import Store, open_store

TOPICS = 40
PARTITIONS = 100
ACTIVE = 40
SECONDS = 120.0
ROTATIONS = 120
SETTLING = 20.0
"""Seconds after ready in which the agent requests the first offsets and writes the index: part of the start."""

_NAME = "idle"
_AIMS = {"idle": (5, 1, 120), "fetch": (10, 3, 350)}
"""Seconds to ready, % of a core, and MiB, beside a disk and fetching."""


def fetching(s3: S3Server) -> list[Row]:
    """The idle rows of a slot that follows all partitions, started again with its spool."""
    with _broker() as cluster:
        return _started_again(cluster, s3, _fill(cluster), fetch=True)


def measure(s3: S3Server) -> list[Row]:
    """Start to ready, CPU, memory and requests while idle; then rotation to watermark with 1 % active."""
    with _broker() as cluster:
        return _started_again(cluster, s3, _fill(cluster), lambda: _active(cluster, s3))


def _started_again(
    cluster: KafkaCluster,
    s3: S3Server,
    topics: Sequence[str],
    more_rows: Callable[[], list[Row]] = list,
    *,
    fetch: bool = False,
) -> list[Row]:
    """The rows of an agent that has stored all ``topics``, is started again, and idles; then ``more_rows``."""
    port, part = free_port(), "fetch" if fetch else "idle"
    url, env = f"s3://raw/{_NAME}-{part}" if fetch else f"s3://raw/{_NAME}", {**s3.env(), "PATH": "/usr/bin:/bin"}
    once = agent_file(cluster, _NAME, url, topics, fetch=fetch, tail_after="0s")
    run([AGENT, "upload-once", "-c", once], env=s3.env(), log=HOME / f"{part}.log")
    more = {"tail_after": "10m", "http": {"port": port}}
    config = agent_file(cluster, _NAME, url, topics, fetch=fetch, **more)
    with ManagedProcess("agent", [AGENT, "run", "-c", config], log=HOME / f"{part}.log", env=env) as agent:
        ready = agent.wait_until(lambda: _ready(port))
        time.sleep(SETTLING)
        aims = _AIMS[part]
        rows = [Row(part, f"start to ready (aim {aims[0]})", "s", (ready,), f"{TOPICS * PARTITIONS} led partitions")]
        return rows + _idle(agent.pid, port, part) + more_rows()


def _idle(pid: int, port: int, part: str) -> list[Row]:
    _, most_cpu, most_memory = _AIMS[part]
    process, requests = psutil.Process(pid), _requests(port)
    cpu, started = sum(process.cpu_times()[:2]), time.monotonic()
    time.sleep(SECONDS)
    wall = time.monotonic() - started
    used = sum(process.cpu_times()[:2]) - cpu
    memory = process.memory_info().rss / (1 << 20)
    hourly = (_requests(port) - requests) * 3600 / wall
    note = f"over {SECONDS:.0f} s without a record produced; default intervals"
    return [
        Row(part, f"CPU (aim {most_cpu})", "% of a core", (100 * used / wall,), note),
        Row(part, f"memory (aim {most_memory})", "MiB RSS", (memory,), note),
        Row(part, "store requests", "per hour", (hourly,), note),
    ]


def _active(cluster: KafkaCluster, s3: S3Server) -> list[Row]:
    """Time from rotation to watermark, like :func:`bench.agent.latency`, with 1 % of the partitions active."""
    topic = f"{_NAME}-00"
    first: dict[int, float] = {}
    later: list[float] = []
    keys = [PartitionKeys(Endpoint("s3://raw", _NAME), "bench", topic, number).watermark for number in range(ACTIVE)]
    store = open_store("s3://raw")
    rotated: dict[tuple[int, int], float] = {}
    with INotify() as watch:
        log_dir = cluster.brokers[0].log_dirs[0]
        numbers = {watch.add_watch(log_dir / f"{topic}-{number}", flags.CREATE): number for number in range(ACTIVE)}
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 5})
        pool, number, sent = values(2, 2000), 0, 0
        _stagger(producer, topic, pool)
        watch.read(timeout=0)
        started = time.monotonic()
        while len(later) < ROTATIONS:
            value = pool[number % len(pool)]
            producer.produce(topic, value=value, partition=number % ACTIVE)
            producer.poll(0)
            number, sent = number + 1, sent + len(value)
            if sent / (2 * MB) <= time.monotonic() - started:
                continue  # behind 2 MB/s: send on
            for event in watch.read(timeout=0):
                if event.name.endswith(".log"):
                    rotated[numbers[event.wd], int(event.name.removesuffix(".log"))] = time.monotonic()
            for partition, seconds in _covered(store, keys, rotated):
                if partition in first:
                    later.append(seconds)
                else:
                    first[partition] = seconds
        producer.flush(30)
    ordered = sorted(1000 * seconds for seconds in later)
    firsts = sorted(1000 * seconds for seconds in first.values())
    note = f"{len(ordered)} rotations of 1 MiB segments in {ACTIVE} of {TOPICS * PARTITIONS} partitions at 2 MB/s"
    return [
        Row("idle", "1 % active: rotation to watermark, p50 (aim 150)", "ms", (ordered[len(ordered) // 2],), note),
        Row("idle", "1 % active: rotation to watermark, p99 (aim 1000)", "ms", (ordered[int(len(ordered) * 0.99)],)),
        Row(
            "idle",
            "1 % active: first rotation of a partition, p50",
            "ms",
            (firsts[len(firsts) // 2],),
            "offset.wm and listing included",
        ),
    ]


def _stagger(producer: Producer, topic: str, pool: Sequence[bytes]) -> None:
    """Fill the active segments to different degrees, so that they are not all rotated at once."""
    for partition in range(ACTIVE):
        size = 0
        while size < partition * (1 << 20) // ACTIVE:
            value = pool[size % len(pool)]
            producer.produce(topic, value=value, partition=partition)
            producer.poll(0)
            size += len(value)
    producer.flush(60)


def _covered(store: Store, keys: Sequence[str], rotated: dict[tuple[int, int], float]) -> list[tuple[int, float]]:
    """(Partition, seconds from rotation) of segments that the watermark covers now; removes these from ``rotated``."""
    covered: list[tuple[int, float]] = []
    for partition in {partition for partition, _ in rotated}:
        _, line = watermark.parse(store.get(keys[partition]).body, keys[partition])
        now = time.monotonic()
        done = [key for key in rotated if key[0] == partition and line is not None and key[1] <= line.next_offset]
        covered += [(partition, now - rotated.pop(key)) for key in done]
    return covered


@contextmanager
def _broker() -> Iterator[KafkaCluster]:
    """A broker that can hold all these partitions: small indexes, small segments."""
    common = {
        "broker.session.timeout.ms": "60000",
        "log.index.size.max.bytes": "65536",
        "log.segment.bytes": str(1 << 20),
    }
    with KafkaCluster(HOME / "idle-kafka", common=common, jvm=("-Xmx1g", "-XX:+UseSerialGC")) as cluster:
        yield cluster


def _fill(cluster: KafkaCluster) -> list[str]:
    """Produce a record into each partition; return the topics' names."""
    topics = [f"{_NAME}-{number:02d}" for number in range(TOPICS)]
    with cluster.admin() as admin:
        for topic in topics:
            admin.create_topics([NewTopic(topic, PARTITIONS, 1)])
    log_dir = cluster.brokers[0].log_dirs[0]
    made = TOPICS * PARTITIONS
    wait_until(lambda: _count(log_dir) == made, timeout=600, what=f"{made} directories")
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 50})
    for topic in topics:
        for partition in range(PARTITIONS):
            producer.produce(topic, b"one", partition=partition)
        left = producer.flush(60)
        if left:
            raise TimeoutError(f"{left} records of {topic} were not acknowledged")
    return topics


def _count(log_dir: Path) -> int:
    return sum(1 for path in log_dir.iterdir() if path.name.startswith(_NAME))


def _ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://{HOST}:{port}/-/ready", timeout=5):
            return True
    except urllib.error.URLError:
        return False


def _requests(port: int) -> float:
    """Requests sent to the store so far, according to the agent's metrics."""
    with urllib.request.urlopen(f"http://{HOST}:{port}/metrics", timeout=5) as reply:
        text = reply.read().decode()
    return sum(map(float, re.findall(r"^tidemark_agent_store_requests_total\{.*\} (\S+)$", text, re.MULTILINE)))
