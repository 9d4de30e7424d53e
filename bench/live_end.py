"""The live end: how soon a record is stored, and how soon it can be queried, while thousands of partitions trickle.

First an agent alone, beside a broker that leads 4,000 partitions with a record a second each: from acknowledged to
named by the head. Then topics end to end, under Airflow: from acknowledged to committed, and what each part costs.
"""

from __future__ import annotations

import re
import shutil
import threading
import time
import urllib.request
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Self

import psutil
import yaml
from confluent_kafka import KafkaError, Message, Producer
from kafka.admin import NewTopic

from bench.agent import AGENT
from bench.data import HOME, agent_file
from bench.measure import Row
from bench.stack import connect_env, cpu, of_living, tree
from demo.accounts import landings, waits
from tests.support.airflow import AirflowStack
from tests.support.kafka import KafkaCluster
from tests.support.paths import ROOT
from tests.support.pipeline import pipeline_env
from tests.support.ports import HOST, free_port
from tests.support.process import ManagedProcess
from tests.support.s3 import S3Server
from tests.support.spark import ConnectServer
from tests.support.waiting import wait_until
from tidemark.errors import NotFound
from tidemark.formats.head import Head
from tidemark.formats.keys import ControlKeys
from tidemark.store import open_store
from tidemark.table.delta_table import committed_ledger, open_topic_table
from tidemark.topics import load_topics

TOPICS: Final = 50
PARTITIONS: Final = 80
FRESHNESS: Final = 60
SECONDS: Final = 180.0
END_TO_END: Final = ((5, 20), (5, 60), (100, 60))
"""Topics, and the seconds that they are promised."""

_VALUE: Final = b'{"sensor": 17, "celsius": 21.25, "at": "2026-11-23T12:00:00Z"}'
_JVM: Final = ("-Xmx1g", "-XX:+UseSerialGC")

Acknowledged = dict[tuple[str, int], list[tuple[int, float]]]
"""By topic and partition, the offsets in their order, each with when it was acknowledged (seconds since 1970)."""


class Trickle:
    """A record a second to each partition, from a thread; usable with ``with``."""

    def __init__(self, bootstrap: str, partitions: Sequence[tuple[str, int]]) -> None:
        self.acknowledged: Acknowledged = defaultdict(list)
        self._partitions = partitions
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End it, and wait until all is acknowledged."""
        self._stop.set()
        self._thread.join()
        if left := self._producer.flush(60):
            raise TimeoutError(f"{left} records were not acknowledged")

    def _run(self) -> None:
        began, number = time.monotonic(), 0
        while not self._stop.is_set():
            due = began + number / len(self._partitions)
            if (pause := due - time.monotonic()) > 0:
                self._producer.poll(min(pause, 0.05))
                continue
            topic, partition = self._partitions[number % len(self._partitions)]
            self._producer.produce(topic, _VALUE, partition=partition, on_delivery=self._delivered)
            self._producer.poll(0)
            number += 1

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            raise RuntimeError(str(error))
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        assert topic is not None
        assert partition is not None
        assert offset is not None
        self.acknowledged[topic, partition].append((offset, time.time()))


def measure(s3: S3Server) -> list[Row]:
    """The agent alone, then all of it."""
    rows = list(_agent_alone(s3))
    for topics, freshness in END_TO_END:
        rows += _end_to_end(s3, topics, freshness)
    return rows


def _waits(acknowledged: Acknowledged, seen: Mapping[tuple[str, int], Sequence[tuple[int, float]]]) -> list[float]:
    """Seconds from each acknowledgement until ``seen`` covers it, ascending."""
    return sorted(seconds for one, records in acknowledged.items() for seconds in waits(records, seen.get(one, ())))


def _agent_alone(s3: S3Server) -> Iterator[Row]:
    common = {"broker.session.timeout.ms": "60000", "log.index.size.max.bytes": "65536"}
    folder = HOME / "live-end-kafka"
    shutil.rmtree(folder, ignore_errors=True)
    topics = [f"trickle-{number:02d}" for number in range(TOPICS)]
    partitions = [(topic, number) for number in range(PARTITIONS) for topic in topics]
    with KafkaCluster(folder, common=common, jvm=_JVM) as cluster:
        _create(cluster, topics, PARTITIONS)
        port = free_port()
        more = {"tail_after": "10m", "http": {"port": port}, "freshness": {".*": f"{FRESHNESS}s"}}
        config = agent_file(cluster, "live-end", "s3://raw/live-end", topics, **more)
        env = {**s3.env(), "PATH": "/usr/bin:/bin"}
        with (
            ManagedProcess("agent", [AGENT, "run", "-c", config], log=HOME / "live-end.log", env=env) as agent,
            Trickle(cluster.bootstrap, partitions) as trickle,
        ):
            heads = Heads("live-end")
            packed = f"all {len(partitions)} partitions to be packed"
            wait_until(lambda: heads.look() and len(heads.seen) == len(partitions), timeout=600, what=packed)
            settled, process = time.time(), psutil.Process(agent.pid)
            used, sent, began = -sum(process.cpu_times()[:2]), -puts(port), time.monotonic()
            while time.monotonic() < began + SECONDS:
                heads.look()
                time.sleep(0.2)
            wall = time.monotonic() - began
            used += sum(process.cpu_times()[:2])
            sent += puts(port)
            memory = process.memory_info().rss / (1 << 20)
            ended = time.time() - FRESHNESS
        counts = {
            one: [(offset, at) for offset, at in records if settled < at < ended]
            for one, records in trickle.acknowledged.items()
        }
        stored = _waits(counts, heads.seen)
        records = sum(len(one) for one in counts.values())
    note = f"{len(partitions)} partitions of {TOPICS} topics, a record a second each, freshness {FRESHNESS} s, 2 cores"

    def row(name: str, unit: str, value: float, note: str = note) -> Row:
        return Row("live end", f"agent alone: {name}", unit, (value,), note)

    yield row("records not stored", "", records - len(stored))
    yield from (row(f"append to stored, {name}", "s", value) for name, value in _shown(stored))
    yield row("CPU", "% of a core", 100 * used / wall)
    yield row("memory", "MiB RSS", memory)
    yield row("PUTs", "an hour", sent * 3600 / wall)
    written = sum(one.size for one in open_store("s3://raw").list(ControlKeys("live-end", "bench").packs(1)))
    every = sum(len(one) for one in trickle.acknowledged.values())
    yield row("bytes of packs", "a record", written / every, f"a record of {len(_VALUE)} bytes, in a batch of its own")


class Heads:
    """What the heads of broker 1 name, look by look."""

    def __init__(self, prefix: str) -> None:
        self.seen: dict[tuple[str, int], list[tuple[int, float]]] = defaultdict(list)
        self._store = open_store("s3://raw")
        self._key = ControlKeys(prefix, "bench").head(1)
        self._etag = ""

    def look(self) -> bool:
        """Whether there is one; what is new in it goes to :attr:`seen`."""
        try:
            if self._store.head(self._key).etag == self._etag:
                return True
            found = Head.load_version(self._store, self._key)
        except NotFound:
            return False
        self._etag, now = found.etag, time.time()
        for entry in found.value.entries:
            seen = self.seen[entry.topic, entry.partition]
            if not seen or seen[-1][0] < entry.tail_end:
                seen.append((entry.tail_end, now))
        return True


def _shown(seconds: Sequence[float]) -> Iterator[tuple[str, float]]:
    """p50, p99 and the longest of ascending ``seconds``."""
    for name, share in (("p50", 0.5), ("p99", 0.99), ("longest", 1.0)):
        yield name, seconds[max(0, round(share * len(seconds)) - 1)]


def puts(port: int) -> float:
    """PUTs that the agent has sent to the store."""
    with urllib.request.urlopen(f"http://{HOST}:{port}/metrics", timeout=5) as reply:
        text = reply.read().decode()
    return sum(
        map(float, re.findall(r'^tidemark_agent_store_requests_total\{operation="PutObject"\} (\S+)$', text, re.M))
    )


def _create(cluster: KafkaCluster, topics: Sequence[str], partitions: int) -> None:
    with cluster.admin() as admin:
        for topic in topics:
            admin.create_topics([NewTopic(topic, partitions, 1)])
    [log_dir] = cluster.brokers[0].log_dirs
    made = len(topics) * partitions

    def directories() -> int:
        return sum(path.name.rpartition("-")[0] in topics for path in log_dir.iterdir())

    wait_until(lambda: directories() == made, timeout=600, what=f"{made} directories")


def _end_to_end(s3: S3Server, count: int, freshness: int) -> Iterator[Row]:
    name = f"live-end-{count}-{freshness}"
    folder = HOME / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    topics = [f"t-{number:03d}" for number in range(count)]
    file = _topics_file(folder / "topics.yaml", name, topics, freshness)
    deployment = load_topics(file)
    with ExitStack() as parts:
        cluster = parts.enter_context(KafkaCluster(folder / "kafka", jvm=_JVM))
        _create(cluster, topics, 1)
        config = agent_file(
            cluster, name, f"s3://raw/{name}", topics, tail_after="10m", freshness={".*": f"{freshness}s"}
        )
        agent = parts.enter_context(
            ManagedProcess("agent", [AGENT, "run", "-c", config], log=folder / "agent.log", env=s3.env())
        )
        server = parts.enter_context(ConnectServer(folder / "spark"))
        env = pipeline_env(file, folder / "spark-conf", scan_seconds=2.0) | connect_env(server)
        stack = parts.enter_context(
            AirflowStack(
                folder / "airflow",
                dags=ROOT / "dags",
                plugins=ROOT / "plugins",
                env=env,
                unpaused=["tidemark_live__bench"],
            )
        )
        tables = {topic: open_topic_table(deployment, deployment.topic(topic)) for topic in topics}
        processes = (agent, server.process, *stack.processes)
        with Trickle(cluster.bootstrap, [(topic, 0) for topic in topics]) as trickle:
            all_landed = "all topics to have landed"
            wait_until(lambda: all(committed_ledger(one).n for one in tables.values()), timeout=600, what=all_landed)
            settled, began, before = time.time(), time.monotonic(), {one.name: _cpu(one) for one in processes}
            time.sleep(max(SECONDS, 4 * freshness))
            minutes = (time.monotonic() - began) / 60
            used = {one.name: _cpu(one) - before[one.name] for one in processes}
            ended = time.time() - 3 * freshness
        counts = {
            one: [(offset, at) for offset, at in records if settled < at < ended]
            for one, records in trickle.acknowledged.items()
        }
        landed = {(topic, 0): landings(table)[0] for topic, table in tables.items()}
    queryable = _waits(counts, landed)
    records = sum(len(one) for one in counts.values())
    commits = sum(settled < at for ends in landed.values() for _, at in ends)
    note = f"{count} topics of a partition with a record a second, freshness {freshness} s, {minutes:.0f} min, 2 cores"

    def row(what: str, unit: str, value: float) -> Row:
        return Row("live end", f"{count} topics at {freshness} s: {what}", unit, (value,), note)

    yield row("records not landed", "", records - len(queryable))
    yield from (row(f"append to queryable, {name}", "s", value) for name, value in _shown(queryable))
    yield row("commits a minute", "", commits / minutes)
    for part, spent in used.items():
        what = f"{part}{', with tasks and jobs' if part == 'scheduler' else ''}"
        yield row(f"CPU of a minute: {what}", "s", spent / minutes)
    yield row("CPU of a commit: Airflow, client and Spark", "s", (sum(used.values()) - used["agent"]) / max(1, commits))


def _topics_file(path: Path, name: str, topics: Sequence[str], freshness: int) -> Path:
    settings = {
        "cluster": "bench",
        "raw": {"url": f"s3://raw/{name}"},
        "lake": f"s3://lake/{name}",
        "defaults": {"freshness": f"{freshness}s"},
        "topics": [{"topic": topic} for topic in topics],
    }
    path.write_text(yaml.safe_dump(settings))
    return path


def _cpu(process: ManagedProcess) -> float:
    return sum(of_living(one, cpu) for one in tree(process))
