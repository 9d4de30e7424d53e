"""The consumer from the remote tier: beside kafka-python from the broker, and beside nothing but ranged GETs.

All read the same records: produced through a real broker, stored by the agent in a directory and on S3. Each reader is
a process of its own, and they take turns. Server and broker run on the same cores.
"""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Final

from bench.brokers import fetched_bytes, jmx_options
from bench.data import HOME, Topic, produce, upload, values
from bench.measure import MB, Row
from bench.remote_reader import CLUSTER, Answer, Request
from bench.seeks import seeks
from tests.support.kafka import KafkaCluster
from tests.support.paths import ROOT, env_python
from tests.support.ports import free_port
from tests.support.raw_builder import RawBuilder
from tests.support.s3 import S3Server
from tests.tidemark.kafka_log.build import T0, Record, batch
from tidemark.store import open_store

TOPICS: Final = tuple(Topic(codec, 1000, partitions=1, segment=32 << 20) for codec in ("none", "zstd"))
PRODUCED: Final = 192 << 20
"""Bytes of values of a topic."""

ROUNDS: Final = 2
HELD: Final = {"64 MiB": 64 << 20, "1 GiB": 1 << 30}
"""Sizes of segments with which memory is measured."""


def measure(s3: S3Server) -> list[Row]:
    """Everything; takes some three minutes."""
    folder = HOME / "consumer"
    rows: list[Row] = []
    try:
        port = free_port()
        jvm = ("-Xmx1g", "-XX:+UseParallelGC", *jmx_options(port))
        with KafkaCluster(folder / "kafka", common={"log.roll.ms": str(10**12)}, jvm=jvm) as cluster:
            for topic in TOPICS:
                cluster.create_topic(topic.name, config={"segment.bytes": str(topic.segment)})
                produce(cluster, topic, PRODUCED)
            names = [topic.name for topic in TOPICS]
            local = f"file://{folder}/raw"
            for url in (local, "s3://raw"):
                upload(cluster, url, names, env=s3.env())
            for topic in TOPICS:
                rows += _rates(topic, cluster.bootstrap, local, s3, port)
        rows += seeks(s3)
        rows += _memory(folder, s3)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return rows


def _rates(topic: Topic, bootstrap: str, local: str, s3: S3Server, port: int) -> list[Row]:
    """Records and bytes a second of one topic, in rounds; and what the broker gave meanwhile."""
    logs = sorted((Path(local.removeprefix("file://")) / CLUSTER / f"{topic.name}-0").glob("*.log"))
    size = sum(one.stat().st_size for one in logs)
    keys = tuple(f"{CLUSTER}/{topic.name}-0/{one.name}" for one in logs)

    def ask(how: str, url: str) -> Callable[[], Answer]:
        return lambda: read(Request(how, url, bootstrap, topic.name, keys), s3)

    before = fetched_bytes(port, topic.name)
    ours = ("poll", "records", "poll_arrow")
    found = _rounds(
        {
            **{(how, "directory"): ask(how, local) for how in ours},
            **{(how, "S3"): ask(how, "s3://raw") for how in ("poll_arrow", "bare")},
        }
    )
    after = fetched_bytes(port, topic.name)
    found |= _rounds({("kafka-python", "broker"): ask("kafka-python", "")})
    control = fetched_bytes(port, topic.name)
    if control <= after:
        raise RuntimeError("the broker's metric does not tell of what kafka-python fetched")
    part = f"consumer {topic.codec}, values of {topic.size} B"
    note = f"{size / MB:.0f} MB stored in segments of 32 MiB, CPU of all threads of the reader"
    rows: list[Row] = []
    names = {"poll": "TieredConsumer.poll", "records": "the tier's records alone", "kafka-python": "kafka-python"}
    for (how, where), answers in found.items():
        if how in names:
            rate = tuple(one.records / one.cpu for one in answers)
            rows.append(Row(part, f"{names[how]} ({where})", "records/CPU-s", rate, note))
            rate = tuple(one.records / one.wall for one in answers)
            rows.append(Row(part, f"{names[how]} ({where})", "records/s", rate, "wall time"))
    theirs = found["kafka-python", "broker"]
    ratios = tuple(
        mine.records / mine.cpu * other.cpu / other.records
        for mine, other in zip(found["poll", "directory"], theirs, strict=True)
    )
    rows.append(Row(part, "poll beside kafka-python (aim 4)", "ratio", ratios, "records a CPU second"))
    ratios = tuple(
        mine.records / mine.wall * other.wall / other.records
        for mine, other in zip(found["poll", "directory"], theirs, strict=True)
    )
    rows.append(Row(part, "poll beside kafka-python (aim 4)", "ratio", ratios, "records a second, wall time"))
    names = {"poll_arrow": "TieredConsumer.poll_arrow", "bare": "bare ranged GETs"}
    for (how, where), answers in found.items():
        if how in names:
            speed = tuple(size / MB / one.wall for one in answers)
            rows.append(Row(part, f"{names[how]} ({where})", "MB/s", speed, "stored bytes, wall time"))
    ratios = tuple(
        other.wall / mine.wall for mine, other in zip(found["poll_arrow", "S3"], found["bare", "S3"], strict=True)
    )
    rows.append(Row(part, "poll_arrow beside bare ranged GETs (aim 0.9)", "ratio", ratios, "of the same round"))
    fetched = (float(after - before),)
    rows.append(Row(part, "fetched from the broker meanwhile (aim 0)", "B", fetched, "by the broker's own metric"))
    return rows


def _rounds(of: dict[tuple[str, str], Callable[[], Answer]]) -> dict[tuple[str, str], list[Answer]]:
    """Each of them in turn, ROUNDS times."""
    found: dict[tuple[str, str], list[Answer]] = {name: [] for name in of}
    for _ in range(ROUNDS):
        for name, ask in of.items():
            found[name].append(ask())
    return found


def read(request: Request, s3: S3Server) -> Answer:
    """Have a process of its own read."""
    command: list[str | Path] = [env_python("dev"), "-m", "bench.remote_reader", json.dumps(asdict(request))]
    done = subprocess.run(command, cwd=ROOT, env=s3.env(), check=True, stdout=subprocess.PIPE, text=True)
    return Answer(**json.loads(done.stdout))


def _memory(folder: Path, s3: S3Server) -> list[Row]:
    """Peak memory above the imports', by the size of segments."""
    rows: list[Row] = []
    for name, size in HELD.items():
        for codec in ("none", "zstd"):
            with _filled(folder / "held", codec, size) as url:
                peak = read(Request("records", url, "", "held"), s3).peak
            note = "one partition, prefetch 32 MiB; of it some 48 MiB are the decoder's compiled loops"
            title = f"peak above the imports, segments of {name}, {codec} (aim 100)"
            rows.append(Row("consumer, memory", title, "MiB", (peak / (1 << 20),), note))
    return rows


@contextmanager
def _filled(folder: Path, codec: str, size: int) -> Iterator[str]:
    """A store with one partition in segments of that size: one, or 256 MiB of smaller ones."""
    raw = RawBuilder(open_store(f"file://{folder}"), cluster=CLUSTER, topic="held")
    pool = values(3, 2000)
    batches = [_batch(pool[at : at + 500], codec) for at in range(0, 2000, 500)]
    offset = 0
    for _ in range(max(1, (256 << 20) // size)):
        parts: list[bytes] = []
        left = size
        while left > 0:
            parts.append(struct.pack(">q", offset) + batches[len(parts) % len(batches)][8:])
            offset += 500
            left -= len(parts[-1])
        raw.segment(parts)
    raw.publish()
    yield f"file://{folder}"
    shutil.rmtree(folder)


def _batch(pool: Sequence[bytes], codec: str) -> bytes:
    return batch(0, [Record(at, T0 + at, b"k%012d" % at, value) for at, value in enumerate(pool)], codec)
