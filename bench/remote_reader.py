"""One reader in a process of its own: ``python -m bench.remote_reader JSON``, see :class:`Request`; answers in JSON.

Times and CPU seconds begin with the first record, when all code is loaded. Memory is what comes on top of the imports.
"""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import boto3
import kafka
from kafka.consumer.fetcher import ConsumerRecord

from tidemark import TieredConsumer
from tidemark.formats.keys import TopicPartition
from tidemark.remote import Storage
from tidemark.remote.reader.consumer_records import consumer_records
from tidemark.remote.reader.range_requests import RANGE_BYTES
from tidemark.remote.reader.tier import RemoteTier
from tidemark.store import StoreOptions

CLUSTER = "bench"
MAX_POLL_RECORDS = 500


@dataclass(frozen=True)
class Request:
    """What to read and how, all of partition 0 of ``topic``.

    ``how`` is ``poll`` or ``poll_arrow`` (TieredConsumer, REMOTE_ONLY), ``records`` or ``arrow`` (the tier below it),
    ``kafka-python``, or ``bare`` (the objects ``keys``, by nothing but ranged GETs).
    """

    how: str
    url: str
    bootstrap: str
    topic: str
    keys: tuple[str, ...] = ()
    range_bytes: int = RANGE_BYTES


@dataclass(frozen=True)
class Answer:
    """``records`` read in ``wall`` and ``cpu`` seconds; ``peak`` bytes above the imports'."""

    records: int
    wall: float
    cpu: float
    peak: int


Counts = Iterator[int]
"""How many records have come, each time that some have."""


def main() -> None:
    """Read everything, and say what it took."""
    request = Request(**json.loads(sys.argv[1]))
    how: dict[str, Callable[[Request], Counts]] = {
        "poll": _poll,
        "poll_arrow": _poll_arrow,
        "records": partial(_remote, max_rows=MAX_POLL_RECORDS),
        "arrow": partial(_remote, max_rows=None),
        "kafka-python": _kafka,
        "bare": _bare,
    }
    before = _memory("VmRSS")
    counts = how[request.how](request)
    next(counts)
    started, cpu = time.perf_counter(), time.process_time()
    records = sum(counts)
    answer = Answer(records, time.perf_counter() - started, time.process_time() - cpu, _memory("VmHWM") - before)
    sys.stdout.write(json.dumps(asdict(answer)))


def _memory(field: str) -> int:
    [kib] = re.findall(rf"^{field}:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(kib) << 10


def _remote(request: Request, *, max_rows: int | None) -> Counts:
    """The tier alone, as a consumer drives it; with ``max_rows`` also the records that it hands out."""
    ready = threading.Event()
    make: Any = partial(tuple.__new__, ConsumerRecord)
    with RemoteTier(_storage(request), committed=True, on_ready=ready.set) as tier:
        tp = TopicPartition(request.topic, 0)
        partition = tier.partition(*tp)
        assert partition is not None
        tier.read(tp, partition.start)
        while not tier.at_end(tp):
            ready.clear()
            block = tier.take(tp, max_rows)
            if block is None:
                ready.wait(1)
                continue
            if max_rows is not None:
                consumer_records(block.rows, tp.topic, 0, len(block.rows), make)
            yield len(block.rows)


def _poll(request: Request) -> Counts:
    return _polled(_tiered(request), request.topic)


def _kafka(request: Request) -> Counts:
    """kafka-python as it comes."""
    return _polled(kafka.KafkaConsumer(**_settings(request)), request.topic)


def _poll_arrow(request: Request) -> Counts:
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
    """The partition, from its start on, and its end."""
    tp = kafka.TopicPartition(topic, 0)
    consumer.assign([tp])
    consumer.seek_to_beginning(tp)
    return tp, consumer.end_offsets([tp])[tp]


def _settings(request: Request) -> dict[str, Any]:
    return {
        "bootstrap_servers": request.bootstrap,
        "enable_auto_commit": False,
        "auto_offset_reset": "earliest",
        "group_id": None,
    }


def _tiered(request: Request) -> TieredConsumer:
    return TieredConsumer(mode="REMOTE_ONLY", storage=_storage(request), **_settings(request))


def _storage(request: Request) -> Storage:
    return Storage.at(request.url, CLUSTER, options=StoreOptions(path_style=True))


def _bare(request: Request) -> Counts:
    """Nothing but ranged GETs, one after the other."""
    client = boto3.client("s3")
    bucket = request.url.removeprefix("s3://")
    yield 0
    for key in request.keys:
        size = client.head_object(Bucket=bucket, Key=key)["ContentLength"]
        for start in range(0, size, request.range_bytes):
            end = min(size, start + request.range_bytes)
            reply = client.get_object(Bucket=bucket, Key=key, Range=f"bytes={start}-{end - 1}")
            reply["Body"].read()
            yield 0


if __name__ == "__main__":
    main()
