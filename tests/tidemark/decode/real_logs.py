"""A partition's log as it lies on a broker's disk, decoded; and as a consumer gets it from the broker."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cramjam
import kafka.codec
import pytest
from confluent_kafka import Producer
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from tests.support.kafka import KafkaCluster
from tests.tidemark.decode.reference import Row, rows_of
from tests.tidemark.kafka_log.build import T0, Record
from tidemark.decode import Headers, aborted_mask, decode_batches, scan_headers
from tidemark.kafka_log import (
    AbortedTransaction,
    BatchHeader,
    OpenTransaction,
    SegmentScanner,
    carry_forward,
    parse_segment_file,
    parse_txn_index,
    segment_name,
)


@dataclass(frozen=True)
class Segment:
    """A segment: its bytes as they were, their headers, and the aborts that its ``.txnindex`` lists."""

    path: Path
    base_offset: int
    data: bytes
    headers: Headers
    aborted: list[AbortedTransaction]


@dataclass(frozen=True)
class Log:
    """All segments of a partition, in order, and its transactions."""

    segments: list[Segment]
    opened: tuple[OpenTransaction, ...]
    next_offset: int

    @property
    def aborted(self) -> list[AbortedTransaction]:
        """All aborted transactions."""
        return [one for segment in self.segments for one in segment.aborted]

    def open_at(self, offset: int) -> tuple[OpenTransaction, ...]:
        """The transactions open before ``offset``, by the headers."""
        headers = [BatchHeader(*row) for segment in self.segments for row in segment.headers.tolist()]
        return carry_forward((), [header for header in headers if header.base_offset < offset])

    def rows(self, *, committed: bool) -> list[Row]:
        """The records; if ``committed``, as far as is decided, without those of aborted transactions."""
        end = min([self.next_offset, *(each.first_offset for each in self.opened)]) if committed else self.next_offset
        rows: list[Row] = []
        for segment in self.segments:
            keep = ~aborted_mask(segment.headers, self.aborted if committed else [])
            batches = decode_batches(
                segment.data,
                segment.headers,
                name=segment.path.name,
                partition=0,
                incarnation=0,
                select=keep,
                to_offset=end,
            )
            rows += rows_of(batches)
        return rows


@pytest.fixture(autouse=True)
def snappy_for_kafka_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """kafka-python does the framing itself, and takes the blocks from python-snappy, which is not installed."""
    blocks = SimpleNamespace(
        compress=lambda data: bytes(cramjam.snappy.compress_raw(bytes(data))),
        decompress=lambda data: bytes(cramjam.snappy.decompress_raw(bytes(data))),
    )
    monkeypatch.setattr(kafka.codec, "snappy", blocks)


def directory(cluster: KafkaCluster, topic: str, partition: int = 0) -> Path:
    """Where a partition of a topic lies."""
    return cluster.brokers[0].log_dirs[0] / f"{topic}-{partition}"


def read_log(folder: Path) -> Log:
    """Read a log from disk; both scans must agree on every segment."""
    segments: list[Segment] = []
    opened: tuple[OpenTransaction, ...] = ()
    next_offset = 0
    for path in sorted(folder.glob("*.log")):
        parsed = parse_segment_file(path.name)
        assert parsed is not None
        data = path.read_bytes()
        scanner = SegmentScanner(path.name, parsed[0], open_before=opened)
        seen = [tuple(header) for header in scanner.batches(data)]
        summary = scanner.finish()
        headers = scan_headers(data, path.name, parsed[0])
        assert headers.tolist() == seen
        index = path.with_suffix(".txnindex")
        aborted = list(parse_txn_index(index.read_bytes(), index.name)) if index.exists() else []
        segments.append(Segment(path, parsed[0], data, headers, aborted))
        opened, next_offset = summary.open_transactions, summary.next_offset
    return Log(segments, opened, next_offset)


def snapshot(folder: Path, next_offset: int) -> Path:
    """The producer snapshot at a segment's end."""
    return folder / f"{segment_name(next_offset)}.snapshot"


def consumed(cluster: KafkaCluster, topic: str, *, committed: bool) -> list[Row]:
    """What kafka-python's consumer reads from partition 0, from its start to its end."""
    return consumed_of(cluster, topic, 1, committed=committed)[0]


def consumed_of(cluster: KafkaCluster, topic: str, partitions: int, *, committed: bool) -> list[list[Row]]:
    """What kafka-python's consumer reads from each of the first ``partitions``, from its start to its end."""
    asked = [TopicPartition(topic, number) for number in range(partitions)]
    consumer = KafkaConsumer(
        bootstrap_servers=cluster.bootstrap,
        isolation_level="read_committed" if committed else "read_uncommitted",
        enable_auto_commit=False,
        group_id=None,
        max_partition_fetch_bytes=4 << 20,
    )
    rows: list[list[Row]] = [[] for _ in asked]
    try:
        consumer.assign(asked)
        consumer.seek_to_beginning(*asked)
        ends = consumer.end_offsets(asked)
        while any(consumer.position(one) < ends[one] for one in asked):
            for partition, records in consumer.poll(timeout_ms=2000, max_records=10_000).items():
                rows[partition.partition] += [_row(record) for record in records]
    finally:
        consumer.close()
    return rows


def _row(record: Any) -> Row:
    kind = "append" if record.timestamp_type == 1 else "create"
    timestamp = -1 if record.timestamp is None else record.timestamp
    headers = [(key, None if value is None else bytes(value)) for key, value in record.headers]
    return Row(record.offset, timestamp, kind, record.key, record.value, headers)


def random_records(rng: random.Random, count: int, *, librdkafka: bool = False) -> list[Record]:
    """Records with null, empty and repeated everything; all that is null only where the client sends it."""
    nulls: list[bytes | None] = [None] if librdkafka else []
    records = []
    for i in range(count):
        key = rng.choice([None, b"", b"key-%d" % rng.randint(0, 300), rng.randbytes(40)])
        value = rng.choice(
            [
                *(nulls if key is None else [None]),
                b"",
                b'{"n": %d, "text": "h\xc3\xa9llo"}' % i * rng.randint(1, 9),
                rng.randbytes(300),
            ]
        )
        headers = [
            (rng.choice(["trace", "", "clé", "trace"]), rng.choice([*nulls, b"", b"%d" % i]))
            for _ in range(rng.choice([0, 0, 0, 1, 4]))
        ]
        records.append(Record(i, T0 + 400 * i + rng.randint(-3000, 3000), key, value, headers))
    return records


def produce(cluster: KafkaCluster, topic: str, records: list[Record], codec: str, **options: object) -> None:
    """Send with kafka-python."""
    producer = KafkaProducer(
        bootstrap_servers=cluster.bootstrap,
        compression_type=None if codec == "none" else codec,
        acks="all",
        linger_ms=10,
        **options,
    )
    send(producer, topic, records)
    producer.close()


def send(producer: KafkaProducer, topic: str, records: list[Record]) -> None:
    """Send with a kafka-python producer and wait for the broker."""
    for record in records:
        producer.send(
            topic, record.value, record.key, headers=list(record.headers), timestamp_ms=record.timestamp, partition=0
        )
    producer.flush()


def produce_confluent(cluster: KafkaCluster, topic: str, records: list[Record], codec: str) -> None:
    """Send with librdkafka, in batches that fit into small segments; it leaves what does not shrink uncompressed."""
    config: dict[str, str | int] = {
        "bootstrap.servers": cluster.bootstrap,
        "compression.type": codec,
        "linger.ms": 10,
        "batch.size": 16_000,
    }
    producer = Producer(config)
    failures: list[str] = []

    def delivered(error: object, _: object) -> None:
        if error is not None:
            failures.append(str(error))

    for record in records:
        producer.produce(
            topic,
            record.value,
            record.key,
            partition=0,
            timestamp=record.timestamp,
            headers=[(key, value) for key, value in record.headers],
            on_delivery=delivered,
        )
        producer.poll(0)
    assert producer.flush(60) == 0
    assert not failures, failures[0]


def small_segments(cluster: KafkaCluster, size: int) -> dict[str, str]:
    """Topic settings for segments below the 1 MiB that 4.3.1 allows otherwise, indexed at almost every batch."""
    name = "segment.bytes" if cluster.version.startswith("3.") else "internal.segment.bytes"
    return {name: f"{size}", "index.interval.bytes": "512"}


def unique(topic: str) -> str:
    """A topic of this run's own: clusters are shared."""
    return f"{topic}-{os.urandom(4).hex()}"
