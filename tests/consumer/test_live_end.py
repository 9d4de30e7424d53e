"""Consumers at the live end: a real broker's log, of which a part is sealed and the rest packed, little by little."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from kafka import TopicPartition
from kafka.errors import LogTruncationError

from tests.consumer.kinds import transactions
from tests.consumer.world import Place, World, origins, partitions, produce, read_to, some
from tests.support.raw_builder import RawBuilder
from tests.support.waiting import HUNG
from tests.tidemark.kafka_log.build import reseal
from tests.tidemark.remote.live import Packing, Range
from tidemark import Mode
from tidemark.formats.raw.incarnations import TopicIncarnations
from tidemark.kafka_log import parse_txn_index, scan_batches
from tidemark.store import open_store


class Live:
    """A partition of a topic as its broker has it, and a store that gets it batch by batch."""

    def __init__(self, world: World, folder: Path, topic: str) -> None:
        """All is read from the broker's files; nothing is stored yet."""
        home = world.kafka.brokers[0].log_dirs[0] / f"{topic}-0"
        self.world = World(folder, world.kafka, Place(f"file://{folder}/live"))
        self.raw = RawBuilder(open_store(self.world.place.url), cluster=world.cluster, topic=topic)
        [topic_id] = [line[10:] for line in (home / "partition.metadata").read_text().split("\n") if "topic_id" in line]
        self.raw.lives = TopicIncarnations(topic=topic).with_topic_id(topic_id.strip(), self.raw.now)
        self.raw.partition().lineage = ((0, 0),)
        body = b"".join(path.read_bytes() for path in sorted(home.glob("*.log")))
        self.batches = [body[one.position : one.end] for one in scan_batches([body], topic, 0)]
        self.aborted = [
            (one.producer_id, one.first_offset, one.last_offset)
            for path in sorted(home.glob("*.txnindex"))
            for one in parse_txn_index(path.read_bytes(), path.name)
        ]
        self.stored = 0

    def seal(self, count: int) -> None:
        """The next ``count`` batches are sealed, and the rest is to be packed."""
        data, aborted = self._next(count)
        self.raw.segment(data, aborted=aborted, rotated=False)
        self.agent = Packing(self.raw)
        self.agent.lead()
        self.raw.publish()

    def pack(self, count: int) -> None:
        """The next ``count`` batches are packed."""
        data, aborted = self._next(count)
        if data:
            self.agent.pack(Range(data, aborted=aborted))

    @property
    def left(self) -> int:
        """How many batches are not stored."""
        return len(self.batches) - self.stored

    def _next(self, count: int) -> tuple[list[bytes], Iterable[tuple[int, int, int]]]:
        data = self.batches[self.stored : self.stored + count]
        self.stored += len(data)
        first, after = _base(data[0]) if data else 0, _base(self.batches[self.stored]) if self.left else 1 << 62
        return data, [one for one in self.aborted if first <= one[2] < after]


def _base(batch: bytes) -> int:
    return int.from_bytes(batch[:8])


def expected_of(world: World, topic: str, isolation: str = "read_uncommitted") -> list[Any]:
    """What kafka-python reads of the partition."""
    [tp] = tps = partitions(topic)
    with world.plain(isolation_level=isolation) as consumer:
        consumer.assign(tps)
        return read_to(consumer, consumer.end_offsets(tps))[tp]


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_a_remote_reader_follows_what_is_packed(
    local_world: World, rng: random.Random, tmp_path: Path, isolation: str
) -> None:
    """Without a broker's record, and each record once."""
    topic = f"live-{isolation}-{tmp_path.name}"
    transactions(local_world, topic, local_world.kafka.version)
    expected = expected_of(local_world, topic, isolation)
    live = Live(local_world, tmp_path, topic)
    live.seal(len(live.batches) // 2)
    [tp] = tps = partitions(topic)
    found: list[Any] = []
    with live.world.consumer(Mode.REMOTE_ONLY, isolation_level=isolation, remote_refresh_ms=50) as consumer:
        consumer.assign(tps)
        until = time.monotonic() + HUNG
        while live.left or len(found) < len(expected):
            live.pack(rng.randint(1, 40))
            end = consumer.end_offsets(tps)[tp]
            while consumer.position(tp) < end:
                found += consumer.poll(timeout_ms=500).get(tp, [])
            assert found == expected[: len(found)]
            assert time.monotonic() < until
        assert origins(consumer, tp) == {"remote": len(expected), "kafka": 0}
        late = consumer.offsets_for_times({tp: expected[-1].timestamp})[tp]
        assert late is not None
        assert late.offset <= expected[-1].offset
    assert found == expected


@pytest.mark.essential
def test_a_reader_goes_over_to_the_broker_at_the_live_end(local_world: World, tmp_path: Path) -> None:
    topic = f"over-{tmp_path.name}"
    [tp] = tps = partitions(topic)
    local_world.kafka.create_topic(topic, config=local_world.small)
    produce(local_world.kafka.bootstrap, topic, some(600))
    live = Live(local_world, tmp_path, topic)
    live.seal(5)
    live.pack(3)
    live.pack(live.left - 2)
    expected = expected_of(local_world, topic)
    with live.world.consumer(Mode.REMOTE_PREFERRED) as consumer:
        consumer.assign(tps)
        ends = consumer.end_offsets(tps)
        assert ends[tp] == 600, "Kafka's"
        assert read_to(consumer, ends)[tp] == expected
        told = origins(consumer, tp)
        packed = _base(live.batches[-2])
        assert told == {"remote": packed, "kafka": 600 - packed}


@pytest.mark.essential
def test_a_reader_finds_in_the_tail_what_the_broker_has_deleted(local_world: World, tmp_path: Path) -> None:
    """And goes back to the broker at the first offset that it has."""
    topic = f"back-{tmp_path.name}"
    [tp] = tps = partitions(topic)
    local_world.kafka.create_topic(topic, config=local_world.small)
    produce(local_world.kafka.bootstrap, topic, some(600))
    live = Live(local_world, tmp_path, topic)
    expected = expected_of(local_world, topic)
    live.seal(5)
    while live.left:
        live.pack(4)
    local_world.delete_before(topic, {0: 500})
    with live.world.consumer(Mode.KAFKA_PREFERRED) as consumer:
        consumer.assign(tps)
        consumer.seek(tp, _base(live.batches[6]))
        found = read_to(consumer, {tp: 600})[tp]
        assert found == [one for one in expected if one.offset >= _base(live.batches[6])]
        assert set(origins(consumer, tp)) == {"remote", "kafka"}


@pytest.mark.parametrize("reset", ["none", "earliest"])
def test_a_tail_that_was_cut_off_is_told(local_world: World, tmp_path: Path, reset: str) -> None:
    topic = f"cut-{reset}-{tmp_path.name}"
    [tp] = tps = partitions(topic)
    local_world.kafka.create_topic(topic)
    produce(local_world.kafka.bootstrap, topic, some(300))
    live = Live(local_world, tmp_path, topic)
    live.seal(3)
    live.pack(live.left)
    with live.world.consumer(Mode.REMOTE_ONLY, auto_offset_reset=reset, remote_refresh_ms=50) as consumer:
        consumer.assign(tps)
        consumer.seek(tp, 0)
        read_to(consumer, {tp: 300})
        cut = _base(live.batches[5])
        other = Packing(live.raw, 6)
        other.lead(lineage=((0, 0), (1, cut)))
        other.pack(Range([*live.batches[3:5], *(reseal(one, leader_epoch=1) for one in live.batches[5:])]))
        live.raw.publish()
        if reset == "none":
            with pytest.raises(LogTruncationError) as met:
                poll_until(consumer, tp, 0)
            assert met.value.divergent_offsets[tp].offset == cut
        else:
            found = poll_until(consumer, tp, 300 - cut)
            assert [(one.offset, one.leader_epoch) for one in found] == [(at, 1) for at in range(cut, 300)]


def poll_until(consumer: Any, tp: TopicPartition, count: int) -> list[Any]:
    """Poll until that many records have come; for ever if 0."""
    found: list[Any] = []
    while not count or len(found) < count:
        found += consumer.poll(timeout_ms=500).get(tp, [])
    return found
