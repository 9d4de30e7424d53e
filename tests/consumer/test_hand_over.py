"""Hand-overs between the tiers while everything moves: each offset once, in order, whatever the caller does."""

from __future__ import annotations

import random
import threading
from functools import partial
from typing import Any

import pytest
from kafka import TopicPartition

from tests.consumer.world import World, origins, partitions, produce, read_until
from tests.support.waiting import wait_until
from tidemark import Mode
from tidemark.remote import RemoteTopics

PARTS = 2

SMALL_FETCH = 8 << 10
"""Bytes of a consumer's fetch, which is a batch of at most 100 records then."""

MOST_AHEAD = 300
"""Records that such a consumer may have fetched beyond what it has given: these it needs no other tier for."""


class Writer(threading.Thread):
    """Writes numbered records round robin until it is told to stop; ``sent`` is how many each partition has."""

    def __init__(self, world: World, topic: str, most: int) -> None:
        super().__init__(name="writer")
        self.world, self.topic, self.most = world, topic, most
        self.sent = 0
        self.stopped = threading.Event()

    def run(self) -> None:
        while self.sent < self.most and not self.stopped.wait(0.05):
            numbers = range(self.sent, self.sent + 100)
            records = [(part, None, b"%d" % number + bytes(150)) for number in numbers for part in range(PARTS)]
            produce(self.world.kafka.bootstrap, self.topic, records)
            self.sent += 100


class Retention(threading.Thread):
    """Moves the brokers' log start up to somewhere below what is stored, over and over."""

    def __init__(self, world: World, topic: str, chance: random.Random) -> None:
        super().__init__(name="retention")
        self.world, self.topic, self.chance = world, topic, chance
        self.starts = dict.fromkeys(range(PARTS), 0)
        self.stopped = threading.Event()

    def run(self) -> None:
        topics = RemoteTopics(self.world.storage())
        while not self.stopped.wait(0.3):
            for part in self.starts:
                remote = topics.partition(self.topic, part)
                end = remote.end(committed=False) if remote is not None else 0
                if end > self.starts[part]:
                    self.starts[part] = self.chance.randrange(self.starts[part], end + 1)
            self.world.delete_before(self.topic, {part: at for part, at in self.starts.items() if at})


PREFERRED = (Mode.REMOTE_PREFERRED, Mode.KAFKA_PREFERRED)


def over(*kinds: tuple[str, Mode], modes: tuple[Mode, ...] = PREFERRED) -> pytest.MarkDecorator:
    """Each store and broker version with each mode, of which ``kinds`` are not for `make test-full` alone."""
    params = [
        pytest.param(
            store,
            mode,
            marks=[
                *([] if (store, mode) in kinds else [pytest.mark.full]),
                *([pytest.mark.s3] if store == "s3" else []),
            ],
        )
        for store in ("local", "s3", "local-3.9.2")
        for mode in modes
    ]
    return pytest.mark.parametrize(("world", "mode"), params, indirect=["world"])


@pytest.mark.essential
@pytest.mark.sampled(1)
@over(("local", Mode.KAFKA_PREFERRED), ("s3", Mode.REMOTE_PREFERRED))
def test_under_load_with_records_deleted(world: World, mode: Mode, rng: random.Random, full: bool) -> None:
    """A writer, the agent and DeleteRecords work while a consumer follows, then another reads it all again."""
    topic = f"load-{mode.lower()}-{world.folder.name}"
    most = 20_000 if full else 1_500
    world.kafka.create_topic(topic, partitions=PARTS, config=world.small)
    retention = Retention(world, topic, rng)
    retention.start()
    try:
        follow_twice(world, mode, topic, most)
    finally:
        retention.stopped.set()
        retention.join()


RETENTION = {"by size": {"retention.bytes": "49152"}, "by time": {"retention.ms": "3000", "segment.ms": "1000"}}
"""A topic's settings, with which brokers delete most of what the tests write while they run."""


@pytest.mark.parametrize("by", ["by size", pytest.param("by time", marks=pytest.mark.full)])
@over(("local", Mode.KAFKA_PREFERRED))
def test_under_load_with_the_brokers_own_retention(world: World, mode: Mode, by: str, full: bool) -> None:
    """Likewise, but brokers delete whole segments by their own rules, whether or not they are stored."""
    topic = f"kept-{mode.lower()}-{world.folder.name}"
    world.kafka.create_topic(topic, partitions=PARTS, config={**world.small, **RETENTION[by]})
    follow_twice(world, mode, topic, 20_000 if full else 1_500)


def follow_twice(world: World, mode: Mode, topic: str, most: int) -> None:
    """A consumer, which the brokers' log start overtakes, reads what is written; then another one reads all of it.

    Each partition gets ``most`` records. What each consumer gets is exact.
    """
    tps = partitions(topic, PARTS)
    writer = Writer(world, topic, most)
    with world.agent(topic), world.plain() as brokers:

        def watched() -> bool:
            return RemoteTopics(world.storage()).partitions_for_topic(topic) == set(range(PARTS))

        wait_until(watched, what="the agent to tell of the partitions: from then on it holds segments")
        writer.start()

        def overtaken(following: Following) -> set[TopicPartition]:
            """The partitions of which the brokers have no longer what the consumer has to fetch next."""
            starts = brokers.beginning_offsets(tps)
            return {tp for tp in tps if starts[tp] > following.at.get(tp, 0) + MOST_AHEAD}

        try:
            for stops in ((most // 5, most // 2), ()):
                fetching = {"max_poll_records": 150, "max_partition_fetch_bytes": SMALL_FETCH}
                with world.consumer(mode, remote_refresh_ms=300, **fetching) as consumer:
                    consumer.assign(tps)
                    for tp in tps:  # a reset might pass by what is being uploaded, and is in neither tier
                        consumer.seek(tp, 0)
                    following = Following()
                    behind = overtaken(following)
                    for stop in (*stops, most):
                        read_until(consumer, partial(following.reaches, tps, stop), seconds=250)
                        if stop < most:
                            wait_until(lambda: bool(overtaken(following)), what="the log start to overtake")  # noqa: B023 - called here
                            behind |= overtaken(following)
                    assert behind
                    assert all(sum(origins(consumer, tp).values()) == most for tp in tps)
                    assert all(origins(consumer, tp)["remote"] > 0 for tp in behind)
        finally:
            writer.stopped.set()
            writer.join()


class Following:
    """Knows what comes next of each partition."""

    def __init__(self) -> None:
        self.at: dict[TopicPartition, int] = {}

    def reaches(self, tps: list[TopicPartition], stop: int, found: dict[TopicPartition, list[Any]]) -> bool:
        """Check what was found; whether each partition was read up to ``stop``."""
        self.check(found)
        return all(self.at.get(tp, 0) >= stop for tp in tps)

    def check(self, found: dict[TopicPartition, list[Any]]) -> None:
        """The records of ``found`` are the next ones; they are taken out."""
        for tp, records in found.items():
            for record in records:
                assert record.offset == self.at.get(tp, 0), f"{tp}: {record.offset} instead of {self.at.get(tp, 0)}"
                assert record.value.rstrip(b"\0") == b"%d" % record.offset
                self.at[tp] = record.offset + 1
        found.clear()


@over(
    ("s3", Mode.REMOTE_ONLY),
    ("local", Mode.REMOTE_PREFERRED),
    ("local", Mode.KAFKA_PREFERRED),
    modes=(Mode.REMOTE_ONLY, *PREFERRED),
)
def test_random_seeks_and_pauses(world: World, mode: Mode, rng: random.Random, full: bool) -> None:
    """Against a model: where each partition stands, and whether it is paused."""
    topic = f"seeks-{mode.lower()}-{world.folder.name}"
    count = 1500
    world.kafka.create_topic(topic, partitions=PARTS, config=world.small)
    produce(
        world.kafka.bootstrap,
        topic,
        [(part, None, b"%d" % number + bytes(150)) for number in range(count) for part in range(PARTS)],
    )
    world.upload(topic)
    tps = partitions(topic, PARTS)
    with world.consumer(Mode.REMOTE_ONLY) as consumer:
        ends = dict.fromkeys(tps, count) if mode.reads_kafka else consumer.end_offsets(tps)
        stored = consumer.end_offsets(tps)
    world.delete_before(topic, {tp.partition: end // 2 for tp, end in stored.items()})
    with world.consumer(mode, max_poll_records=40) as consumer:
        model = Model(consumer, tps, ends)
        for _ in range(10_000 if full else 300):
            model.step(rng)
        model.drain()
        assert all(sum(origins(consumer, tp).values()) > 0 for tp in tps)


class Model:
    """What a consumer must do: the offsets of a partition follow one another from where it was put last."""

    def __init__(self, consumer: Any, tps: list[TopicPartition], ends: dict[TopicPartition, int]) -> None:
        self.consumer, self.tps, self.ends = consumer, tps, ends
        consumer.assign(tps)
        self.at = dict.fromkeys(tps, 0)
        self.paused: set[TopicPartition] = set()

    def step(self, rng: random.Random) -> None:
        """One random thing that a caller may do."""
        tp = rng.choice(self.tps)
        what = rng.random()
        if what < 0.25:
            near = rng.random() < 0.5
            low, high = (max(0, self.at[tp] - 30), min(self.ends[tp], self.at[tp] + 30)) if near else (0, self.ends[tp])
            self.at[tp] = rng.randint(low, high)
            self.consumer.seek(tp, self.at[tp])
        elif what < 0.28:
            self.consumer.seek_to_beginning(tp)
            self.at[tp] = 0
        elif what < 0.31:
            self.consumer.seek_to_end(tp)
            self.at[tp] = self.ends[tp]
        elif what < 0.38:
            self.consumer.pause(tp)
            self.paused.add(tp)
        elif what < 0.5:
            self.consumer.resume(tp)
            self.paused.discard(tp)
        elif what < 0.55:
            self.iterate(rng.randrange(1, 30))
        else:
            self.take(self.consumer.poll(timeout_ms=rng.choice([0, 0, 1, 5, 50]), max_records=rng.choice([1, 7, 40])))
        if rng.random() < 0.2:
            assert self.consumer.position(tp) == self.at[tp]

    def take(self, found: dict[TopicPartition, list[Any]]) -> None:
        """Records that came."""
        for tp, records in found.items():
            assert tp not in self.paused
            for record in records:
                self.take_one(tp, record)

    def take_one(self, tp: TopicPartition, record: Any) -> None:
        """A record that came."""
        assert record.offset == self.at[tp], f"{tp}: {record.offset} instead of {self.at[tp]}"
        assert record.value.rstrip(b"\0") == b"%d" % record.offset
        self.at[tp] += 1

    def iterate(self, most: int) -> None:
        """A few records by the iterator, which gives up after 20 ms."""
        self.consumer.config["consumer_timeout_ms"] = 20
        for _, record in zip(range(most), self.consumer, strict=False):
            tp = TopicPartition(record.topic, record.partition)
            assert tp not in self.paused
            self.take_one(tp, record)

    def drain(self) -> None:
        """All the rest comes."""
        self.consumer.resume(*self.tps)
        self.paused.clear()

        def done(found: dict[TopicPartition, list[Any]]) -> bool:
            self.take(found)
            found.clear()
            return all(self.at[tp] == end for tp, end in self.ends.items())

        read_until(self.consumer, done)
