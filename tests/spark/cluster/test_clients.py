"""What brokers wrote for every kind of client lands as a consumer reads it from them, record for record."""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import cast

import pytest

from tests.spark.cluster.client_matrix import COMBINATIONS, Topic, create_topics, sample, write_all
from tests.spark.world import World
from tests.support.java_client import JavaClient
from tests.support.kafka import KafkaCluster
from tests.support.waiting import wait_until
from tests.tidemark.decode.real_logs import Log, consumed_of, directory, read_log, snappy_for_kafka_python
from tests.tidemark.decode.reference import Row
from tests.tidemark.kafka_log.build import Record
from tidemark.errors import SegmentError
from tidemark.kafka_log import parse_leader_epoch_checkpoint, parse_offset_checkpoint
from tidemark.timestamps import utc_now

__all__ = ["snappy_for_kafka_python"]

Content = tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]


@pytest.fixture(params=["kafka", pytest.param("kafka39", marks=pytest.mark.full)])
def cluster(starts_kafka: None, request: pytest.FixtureRequest) -> KafkaCluster:
    """A cluster of either generation."""
    return cast("KafkaCluster", request.getfixturevalue(request.param))


@pytest.mark.timeout(1800)
def test_every_client_codec_time_and_policy_lands_as_it_is_read(
    starts_other: None, cluster: KafkaCluster, tmp_path: Path, rng: random.Random, full: bool
) -> None:
    """Every client, and every codec; each client with each codec where the long variant is asked for."""
    combinations = COMBINATIONS if full else sample(rng)
    topics = create_topics(cluster, len(combinations))
    with JavaClient(cluster.version) as java:
        written = write_all(cluster, java, topics, combinations, rng, rounds=10 if full else 1)
        for topic in topics:
            logs = settled(cluster, topic, len(combinations))
            if topic.compacted:
                logs, expected = unchanged(cluster, topic, len(combinations))
            else:
                expected = consumed_of(cluster, topic.name, len(combinations), committed=True)
            world = World(tmp_path / topic.name)
            assert landed(world, cluster, topic, logs) == expected
            check_classes(world, topic, logs, [codec for _, codec in combinations])
            for partition, one in enumerate(written):
                rows, sent = contents(expected[partition]), contents(one.readable[topic.name])
                assert rows <= sent if topic.compacted else rows == sent
            count = sum(map(len, expected))
            sys.stdout.write(f"{cluster.version} {topic.name}: {count} records of {len(expected)} partitions equal\n")
        for one in written:
            one.hanging.abort()
            one.hanging.close()


def settled(cluster: KafkaCluster, topic: Topic, partitions: int) -> list[Log]:
    """The partitions' logs, once only the hanging transaction is open: markers follow after the client has returned."""
    folders = [directory(cluster, topic.name, partition) for partition in range(partitions)]

    def decided() -> bool:
        try:
            return all(len(read_log(folder).opened) == 1 for folder in folders)
        except (FileNotFoundError, SegmentError):
            return False  # the broker appends or the cleaner renames meanwhile

    wait_until(decided, what=f"all transactions of {topic.name} but the hanging ones to be decided")
    return [read_log(folder) for folder in folders]


def unchanged(cluster: KafkaCluster, topic: Topic, partitions: int) -> tuple[list[Log], list[list[Row]]]:
    """Logs that the cleaner has been through, and what a consumer reads while they stay the same."""
    folders = [directory(cluster, topic.name, partition) for partition in range(partitions)]
    checkpoint = folders[0].parent / "cleaner-offset-checkpoint"

    def cleaned() -> bool:
        try:
            upto = parse_offset_checkpoint(checkpoint.read_text(), checkpoint.name)
        except FileNotFoundError:
            return False
        return all(upto.get((topic.name, partition), 0) > 0 for partition in range(len(folders)))

    wait_until(cleaned, what=f"the cleaner to go through {topic.name}")
    found: list[tuple[list[Log], list[list[Row]]]] = []

    def same() -> bool:
        before = files_of(folders)
        try:
            logs = [read_log(folder) for folder in folders]
        except FileNotFoundError:
            return False
        rows = consumed_of(cluster, topic.name, len(folders), committed=True)
        found.append((logs, rows))
        return files_of(folders) == before

    wait_until(same, what=f"the cleaner to leave {topic.name} alone")
    return found[-1]


def files_of(folders: Iterable[Path]) -> list[tuple[str, int, int]]:
    """The segments in folders: path, inode and size."""
    found = [(path, path.stat()) for folder in folders for path in sorted(folder.glob("*.log"))]
    return [(str(path), stat.st_ino, stat.st_size) for path, stat in found]


def landed(world: World, cluster: KafkaCluster, topic: Topic, logs: list[Log]) -> list[list[Row]]:
    """Upload all segments as an agent does, land them, and read the table."""
    world.raw.now = utc_now()
    for partition, log in enumerate(logs):
        checkpoint = directory(cluster, topic.name, partition) / "leader-epoch-checkpoint"
        lineage = parse_leader_epoch_checkpoint(checkpoint.read_text(), checkpoint.name).to_json()
        world.raw.partition(partition).lineage = tuple((epoch, start) for epoch, start in lineage)
        ends = [segment.base_offset for segment in log.segments[1:]] + [log.next_offset]
        for segment, end in zip(log.segments, ends, strict=True):
            world.raw.segment(
                segment.data,
                partition,
                base=segment.base_offset,
                next_offset=end,
                compacted=topic.compacted,
                aborted=[(one.producer_id, one.first_offset, one.last_offset) for one in segment.aborted],
            )
    assert world.land().status == "landed"
    rows: list[list[Row]] = [[] for _ in logs]
    for row in world.rows():
        rows[row["kafka_partition"]].append(
            Row(
                row["kafka_offset"],
                round(row["kafka_timestamp"].timestamp() * 1000),
                row["kafka_timestamp_type"],
                row["kafka_key"],
                row["kafka_value"],
                [(one["key"], one["value"]) for one in row["kafka_headers"]],
            )
        )
    return rows


def check_classes(world: World, topic: Topic, logs: list[Log], codecs_sent: list[str]) -> None:
    """The logs had what they were written for: segments, aborts, compaction, codecs, and an open end."""
    assert sum(len(log.segments) > 1 for log in logs) > len(logs) // 2
    for partition, (log, codec) in enumerate(zip(logs, codecs_sent, strict=True)):
        classes = world.classes(partition)
        assert classes["transaction_marker"] > 0
        assert world.next_offset(partition) == log.opened[0].first_offset < log.next_offset
        if topic.compacted:
            assert classes["compacted"] > 0
        else:
            assert classes["aborted"] > 0
        codecs = {int(header["attributes"]) & 7 for segment in log.segments for header in segment.headers}
        # What a codec does not make smaller, some clients send as it is; compaction may leave nothing else.
        used = (0,) if codec == "none" else (0, 1) if topic.compacted else (1,)
        assert len(codecs - {0}) in used, (partition, codec, codecs)


def contents(rows: Iterable[Row | Record]) -> Counter[Content]:
    """How often each key, value and headers occur."""
    return Counter((row.key, row.value, tuple((key, value) for key, value in row.headers)) for row in rows)
