"""Segments as brokers wrote them, record for record what a consumer reads from the same brokers."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from typing import cast

import pytest
from kafka import KafkaProducer

from tests.support.java_client import JavaClient
from tests.support.kafka import KafkaCluster
from tests.support.waiting import wait_until
from tests.tidemark.decode.clients import Client, JavaProducer, PythonClient, RdkafkaClient
from tests.tidemark.decode.real_logs import (
    consumed,
    consumed_of,
    directory,
    produce,
    produce_confluent,
    random_records,
    read_log,
    send,
    small_segments,
    snappy_for_kafka_python,
    snapshot,
    unique,
)
from tests.tidemark.decode.reference import rows_of
from tests.tidemark.kafka_log.build import CODEC_IDS, T0, Record
from tidemark.decode import decode_batches, scan_headers
from tidemark.errors import SegmentError
from tidemark.kafka_log import (
    confirms_cut,
    cut_points,
    open_transactions,
    parse_leader_epoch_checkpoint,
    parse_meta_properties,
    parse_offset_checkpoint,
    parse_offset_index,
    parse_partition_metadata,
    parse_producer_snapshot,
    parse_time_index,
)

__all__ = ["snappy_for_kafka_python"]


@pytest.fixture(params=[pytest.param("kafka", marks=pytest.mark.essential), "kafka39"], scope="module")
def cluster(starts_kafka: None, request: pytest.FixtureRequest) -> KafkaCluster:
    return cast("KafkaCluster", request.getfixturevalue(request.param))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("codec", CODEC_IDS)
def test_every_codec_of_two_clients(cluster: KafkaCluster, codec: str, rng: random.Random) -> None:
    topic = unique(f"codec-{codec}")
    cluster.create_topic(topic, config=small_segments(cluster, 60_000))
    produce(cluster, topic, random_records(rng, 700), codec)
    produce_confluent(cluster, topic, random_records(rng, 700, librdkafka=True), codec)
    log = read_log(directory(cluster, topic))
    assert len(log.segments) > 1
    codecs = {int(header["attributes"]) & 7 for segment in log.segments for header in segment.headers}
    assert CODEC_IDS[codec] in codecs
    assert codecs <= {0, CODEC_IDS[codec]}
    rows = log.rows(committed=False)
    assert len(rows) == 1400
    assert rows == consumed(cluster, topic, committed=False)


def test_append_time_and_recompression_by_the_broker(cluster: KafkaCluster, rng: random.Random) -> None:
    topic = unique("append")
    cluster.create_topic(topic, config={"message.timestamp.type": "LogAppendTime", "compression.type": "zstd"})
    produce(cluster, topic, random_records(rng, 300), "gzip")
    rows = read_log(directory(cluster, topic)).rows(committed=False)
    assert {row.timestamp_type for row in rows} == {"append"}
    assert rows == consumed(cluster, topic, committed=False)


@pytest.fixture
def producers(cluster: KafkaCluster) -> Iterator[list[KafkaProducer]]:
    """Two transactional producers, which end their transactions, and one that leaves its open."""
    made = [
        KafkaProducer(
            bootstrap_servers=cluster.bootstrap, transactional_id=unique("t"), compression_type=codec, linger_ms=5
        )
        for codec in ("zstd", None, "lz4")
    ]
    for producer in made:
        producer.init_transactions()
    yield made
    made[2].abort_transaction()
    for producer in made:
        producer.close()


def test_transactions(cluster: KafkaCluster, producers: list[KafkaProducer], rng: random.Random) -> None:
    topic = unique("transactions")
    cluster.create_topic(topic, config=small_segments(cluster, 30_000))
    plain = KafkaProducer(bootstrap_servers=cluster.bootstrap, linger_ms=5)
    first, second, hanging = producers
    for turn in range(6):
        first.begin_transaction()
        second.begin_transaction()
        send(first, topic, random_records(rng, 60))
        send(second, topic, random_records(rng, 60))
        send(plain, topic, random_records(rng, 20))
        if turn == 4:
            hanging.begin_transaction()
            send(hanging, topic, random_records(rng, 20))
        send(first, topic, random_records(rng, 60))
        first.commit_transaction()
        if turn % 2:  # or else it goes on through the next segments
            second.abort_transaction()
        else:
            send(plain, topic, random_records(rng, 90))
            second.commit_transaction() if turn == 2 else second.abort_transaction()
    plain.close()

    folder = directory(cluster, topic)
    # The client returns when the coordinator knows the outcome; the markers follow.
    wait_until(lambda: open_now(folder) == 1, what="all markers but one transaction's")
    log = read_log(folder)
    assert len(log.segments) > 2
    assert len(log.aborted) == 5
    assert len(log.opened) == 1
    committed = log.rows(committed=True)
    assert committed == consumed(cluster, topic, committed=True)
    everything = log.rows(committed=False)
    assert everything == consumed(cluster, topic, committed=False)
    assert 0 < len(committed) < len(everything)

    for after in log.segments[1:]:
        path = snapshot(folder, after.base_offset)
        entries = parse_producer_snapshot(path.read_bytes(), path.name)
        assert open_transactions(entries) == log.open_at(after.base_offset), path
    assert log.open_at(log.next_offset) == log.opened


def open_now(folder: Path) -> int:
    """Number of open transactions, or -1 while the broker is in the middle of an append."""
    try:
        return len(read_log(folder).opened)
    except SegmentError:
        return -1


def test_compaction_leaves_holes_and_empty_batches(cluster: KafkaCluster, rng: random.Random) -> None:
    topic = unique("compacted")
    config = {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0.001",
        "delete.retention.ms": "86400000",
        **small_segments(cluster, 20_000),
    }
    cluster.create_topic(topic, config=config)
    folder = directory(cluster, topic)

    def overwrite(count: int) -> None:
        records = [
            Record(i, T0 + i, b"key-%d" % (i % 40), rng.choice([None, rng.randbytes(100)]), [("n", b"%d" % i)])
            for i in range(count)
        ]
        produce(cluster, topic, records, "lz4", enable_idempotence=True)

    overwrite(40)  # by a producer of its own: its last batch will be emptied and stay
    overwrite(600)
    overwrite(300)

    def emptied() -> bool:
        try:
            log = read_log(folder)
        except FileNotFoundError:
            return False  # the cleaner renamed one meanwhile
        return any(not header["record_count"] for segment in log.segments for header in segment.headers)

    wait_until(emptied, what="the cleaner to empty a batch")

    def same() -> bool:
        """The cleaner may go on between the two readings."""
        try:
            rows = read_log(folder).rows(committed=False)
        except FileNotFoundError:
            return False
        offsets = [row.offset for row in rows]
        assert offsets == sorted(set(offsets))
        return rows == consumed(cluster, topic, committed=False)

    wait_until(same, what="the log on disk to be what the broker serves")


def test_indexes_cut_a_segment_at_batches(cluster: KafkaCluster, rng: random.Random) -> None:
    topic = unique("indexed")
    cluster.create_topic(topic, config=small_segments(cluster, 400_000))
    for _ in range(4):
        produce(cluster, topic, random_records(rng, 900), "none", batch_size=2000)
    log = read_log(directory(cluster, topic))
    closed, active = log.segments[0], log.segments[-1]
    for segment, after in ((closed, log.segments[1].base_offset), (active, log.next_offset)):
        raw = segment.path.with_suffix(".index").read_bytes()
        entries = parse_offset_index(raw, segment.base_offset, len(segment.data), "x.index")
        assert len(entries) > 20
        assert segment is active or 8 * len(entries) == len(raw)
        by_position = {int(header["position"]): header for header in segment.headers}
        for entry in entries:
            header = by_position[entry.position]
            assert header["base_offset"] + header["last_offset_delta"] == entry.last_offset
            assert confirms_cut(segment.data[entry.position :][:61], entry, segment.base_offset, len(segment.data))
        times = parse_time_index(segment.path.with_suffix(".timeindex").read_bytes(), segment.base_offset, after, "x")
        assert times
        stamps = {int(header["max_timestamp"]) for header in segment.headers}
        assert {timestamp for timestamp, _ in times} <= stamps

        bounds = cut_points(entries, len(segment.data), 30_000)
        assert len(bounds) > 4
        rows = []
        for start, end in pairwise(bounds):
            part = segment.data[start:end]
            headers = scan_headers(part, "x", segment.base_offset, position=start)
            rows += rows_of(decode_batches(part, headers, name="x", partition=0, incarnation=0, position=start))
        whole = decode_batches(segment.data, segment.headers, name="x", partition=0, incarnation=0)
        assert rows == rows_of(whole)


def test_the_files_beside_the_logs(cluster: KafkaCluster) -> None:
    topic = unique("files")
    cluster.create_topic(topic)
    produce(cluster, topic, [Record(0), Record(1)], "none")
    folder = directory(cluster, topic)
    epochs = (folder / "leader-epoch-checkpoint").read_text()
    assert parse_leader_epoch_checkpoint(epochs, "x").to_json() == [[0, 0]]
    assert len(parse_partition_metadata((folder / "partition.metadata").read_text(), "x")) == 22
    properties = parse_meta_properties((folder.parent / "meta.properties").read_text(), "x")
    assert properties["cluster.id"] == cluster.cluster_id
    checkpoint = folder.parent / "replication-offset-checkpoint"
    wait_until(
        lambda: parse_offset_checkpoint(checkpoint.read_text(), "x").get((topic, 0)) == 2,
        what="the high watermark to be checkpointed",
    )
    for path in folder.parent.glob("*-checkpoint"):
        parse_offset_checkpoint(path.read_text(), path.name)


def test_messages_of_old_formats(
    starts_kafka: None, starts_other: None, tmp_path: Path, rng: random.Random, full: bool
) -> None:
    """3.9.2 still writes them if it is told to speak an old protocol to its peers: a setting of the whole broker."""
    common = {"inter.broker.protocol.version": "2.8"}
    with KafkaCluster(tmp_path, version="3.9.2", common=common) as cluster, JavaClient("3.9.2") as java:
        makers: list[Callable[..., Client]] = [PythonClient, RdkafkaClient, partial(JavaProducer, java)]
        codecs = ("none", "gzip", "snappy", "lz4")
        for message_format, codec in product(("0.9.0", "0.10.2"), codecs if full else rng.sample(codecs, 2)):
            topic = unique(f"old-{codec}")
            config = small_segments(cluster, 60_000) | {"message.format.version": message_format}
            cluster.create_topic(topic, partitions=len(makers), config=config)
            sent = [[one._replace(headers=()) for one in random_records(rng, 200)] for _ in makers]
            for partition, (maker, records) in enumerate(zip(makers, sent, strict=True)):
                client = maker(cluster.bootstrap, codec, None, idempotent=False)
                client.send(partition, [(topic, record) for record in records])
                client.close()
            magic = 0 if message_format == "0.9.0" else 1
            logs = [read_log(directory(cluster, topic, partition)) for partition in range(len(makers))]
            headers = [header for log in logs for segment in log.segments for header in segment.headers]
            assert {int(header["magic"]) for header in headers} == {magic}
            rows = [log.rows(committed=False) for log in logs]
            assert [[(row.key, row.value) for row in found] for found in rows] == [
                [(record.key, record.value) for record in records] for records in sent
            ]
            if (magic, codec) != (0, "lz4"):  # whose framing needs a library that is not installed
                assert rows == consumed_of(cluster, topic, len(makers), committed=False)
