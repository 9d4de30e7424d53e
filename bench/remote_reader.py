"""The consumer from the remote tier: beside kafka-python from the broker, and beside bare ranged GETs.

All readers read the same records: produced through a real broker, stored by the agent in a directory and on S3. Each
reader is a process of its own, ``python -m bench.remote_reader JSON`` (see :class:`ReadRequest`), and they take turns.
Server and broker run on the same cores. Times and CPU seconds begin with the first record, when all code is loaded.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import boto3
import kafka

from bench.data import HOME, Topic, produce, upload
from bench.measure import MB, Row
from tests.support.kafka import KafkaCluster
from tests.support.paths import ROOT, env_python
from tests.support.s3 import S3Server
from tidemark import TieredConsumer
from tidemark.remote.reader.partition_reader import RANGE_BYTES
from tidemark.storage import Storage
from tidemark.store import StoreOptions

CLUSTER: Final = "bench"
MAX_POLL_RECORDS: Final = 500
TOPICS: Final = tuple(Topic(codec, 1000, partitions=1, segment=32 << 20) for codec in ("none", "zstd"))
PRODUCED: Final = 192 << 20
"""Bytes of values of a topic."""

ROUNDS: Final = 2


@dataclass(frozen=True)
class ReadRequest:
    """A reader, and the topic whose partition 0 it reads.

    ``reader`` is ``poll`` or ``poll_arrow`` (TieredConsumer, REMOTE_ONLY), ``kafka-python``, or ``bare`` (ranged GETs
    of the objects ``keys``).
    """

    reader: str
    url: str
    bootstrap: str
    topic: str
    keys: tuple[str, ...] = ()


@dataclass(frozen=True)
class ReadAnswer:
    """``records`` read in ``wall`` and ``cpu`` seconds."""

    records: int
    wall: float
    cpu: float


Counts = Iterator[int]
"""Numbers of records, one for each arrival."""


def measure(s3: S3Server) -> list[Row]:
    """Rates of all readers, for each topic."""
    folder = HOME / "consumer"
    local = f"file://{folder}/raw"
    rows: list[Row] = []
    try:
        jvm = ("-Xmx1g", "-XX:+UseParallelGC")
        with KafkaCluster(folder / "kafka", common={"log.roll.ms": str(10**12)}, jvm=jvm) as cluster:
            for topic in TOPICS:
                cluster.create_topic(topic.name, config={"segment.bytes": str(topic.segment)})
                produce(cluster, topic, PRODUCED)
            for url in (local, "s3://raw"):
                upload(cluster, url, [topic.name for topic in TOPICS], env=s3.env())
            for topic in TOPICS:
                rows += _rates(topic, cluster.bootstrap, local, s3)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return rows


def _rates(topic: Topic, bootstrap: str, local: str, s3: S3Server) -> list[Row]:
    """Records and bytes a second of one topic."""
    logs = sorted((Path(local.removeprefix("file://")) / CLUSTER / f"{topic.name}-0").glob("*.log"))
    size = sum(log.stat().st_size for log in logs)
    keys = tuple(f"{CLUSTER}/{topic.name}-0/{log.name}" for log in logs)
    readers = (
        ("poll", local),
        ("poll_arrow", local),
        ("poll_arrow", "s3://raw"),
        ("bare", "s3://raw"),
        ("kafka-python", ""),
    )
    answers: dict[tuple[str, str], list[ReadAnswer]] = {reader: [] for reader in readers}
    for _ in range(ROUNDS):
        for reader, url in readers:
            answers[reader, url].append(_read(ReadRequest(reader, url, bootstrap, topic.name, keys), s3))
    part = f"consumer {topic.codec}, values of {topic.size} B"
    note = f"{size / MB:.0f} MB stored in segments of 32 MiB, CPU of all threads of the reader"
    rows: list[Row] = []
    polled, kafka_python = answers["poll", local], answers["kafka-python", ""]
    for name, found in (("TieredConsumer.poll (directory)", polled), ("kafka-python (broker)", kafka_python)):
        rows += [
            Row(part, name, "records/CPU-s", tuple(answer.records / answer.cpu for answer in found), note),
            Row(part, name, "records/s", tuple(answer.records / answer.wall for answer in found), "wall time"),
        ]
    pairs = list(zip(polled, kafka_python, strict=True))
    by_cpu = tuple(ours.records / ours.cpu * theirs.cpu / theirs.records for ours, theirs in pairs)
    by_time = tuple(ours.records / ours.wall * theirs.wall / theirs.records for ours, theirs in pairs)
    name = "poll beside kafka-python (aim 4)"
    rows.append(Row(part, name, "ratio", by_cpu, "records a CPU second"))
    rows.append(Row(part, name, "ratio", by_time, "records a second, wall time"))
    arrow, bare = answers["poll_arrow", "s3://raw"], answers["bare", "s3://raw"]
    for name, found in (
        ("TieredConsumer.poll_arrow (directory)", answers["poll_arrow", local]),
        ("TieredConsumer.poll_arrow (S3)", arrow),
        ("bare ranged GETs (S3)", bare),
    ):
        speeds = tuple(size / MB / answer.wall for answer in found)
        rows.append(Row(part, name, "MB/s", speeds, "stored bytes, wall time"))
    ratios = tuple(theirs.wall / ours.wall for ours, theirs in zip(arrow, bare, strict=True))
    rows.append(Row(part, "poll_arrow beside bare ranged GETs (aim 0.9)", "ratio", ratios, "of the same round"))
    return rows


def _read(request: ReadRequest, s3: S3Server) -> ReadAnswer:
    """Read in a process of its own."""
    command: list[str | Path] = [env_python("dev"), "-m", "bench.remote_reader", json.dumps(asdict(request))]
    done = subprocess.run(command, cwd=ROOT, env=s3.env(), check=True, stdout=subprocess.PIPE, text=True)
    return ReadAnswer(**json.loads(done.stdout))


def main() -> None:
    """Read the whole partition, and print the :class:`ReadAnswer` as JSON."""
    request = ReadRequest(**json.loads(sys.argv[1]))
    readers: dict[str, Callable[[ReadRequest], Counts]] = {
        "poll": _poll,
        "poll_arrow": _poll_arrow,
        "kafka-python": _kafka_python,
        "bare": _bare,
    }
    counts = readers[request.reader](request)
    next(counts)
    started, cpu = time.perf_counter(), time.process_time()
    records = sum(counts)
    answer = ReadAnswer(records, time.perf_counter() - started, time.process_time() - cpu)
    sys.stdout.write(json.dumps(asdict(answer)))


def _poll(request: ReadRequest) -> Counts:
    return _polled(_tiered(request), request.topic)


def _kafka_python(request: ReadRequest) -> Counts:
    """kafka-python as it comes."""
    return _polled(kafka.KafkaConsumer(**_settings(request)), request.topic)


def _poll_arrow(request: ReadRequest) -> Counts:
    consumer = _tiered(request)
    tp, end = _begun(consumer, request.topic)
    while consumer.position(tp) < end:
        yield sum(map(len, consumer.poll_arrow(1000).values()))
    consumer.close()


def _polled(consumer: Any, topic: str) -> Counts:
    tp, end = _begun(consumer, topic)
    while consumer.position(tp) < end:
        yield sum(map(len, consumer.poll(1000, max_records=MAX_POLL_RECORDS).values()))
    consumer.close()


def _begun(consumer: Any, topic: str) -> tuple[Any, int]:
    """The partition and its end offset, after a seek to its start."""
    tp = kafka.TopicPartition(topic, 0)
    consumer.assign([tp])
    consumer.seek_to_beginning(tp)
    return tp, consumer.end_offsets([tp])[tp]


def _settings(request: ReadRequest) -> dict[str, Any]:
    return {
        "bootstrap_servers": request.bootstrap,
        "enable_auto_commit": False,
        "auto_offset_reset": "earliest",
        "group_id": None,
    }


def _tiered(request: ReadRequest) -> TieredConsumer:
    storage = Storage.at(request.url, CLUSTER, options=StoreOptions(path_style=True))
    return TieredConsumer(mode="REMOTE_ONLY", storage=storage, **_settings(request))


def _bare(request: ReadRequest) -> Counts:
    """Only ranged GETs, one after the other."""
    client = boto3.client("s3")
    bucket = request.url.removeprefix("s3://")
    yield 0
    for key in request.keys:
        size = client.head_object(Bucket=bucket, Key=key)["ContentLength"]
        for start in range(0, size, RANGE_BYTES):
            end = min(size, start + RANGE_BYTES)
            reply = client.get_object(Bucket=bucket, Key=key, Range=f"bytes={start}-{end - 1}")
            reply["Body"].read()
            yield 0


if __name__ == "__main__":
    main()
