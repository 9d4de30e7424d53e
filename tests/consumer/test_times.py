"""Offsets by time: the remote tier's answers beside those of the broker whose segments the agent uploaded.

Times out of order, set by producers or by the broker, markers of transactions, and what compaction leaves.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import pytest
from confluent_kafka import Producer
from kafka import TopicPartition

from tests.consumer.world import SMALL, World, partitions, read_to
from tests.support.waiting import wait_until
from tidemark import Mode
from tidemark.remote import RemotePartition, RemoteTopics

Answers = dict[TopicPartition, dict[int, Any]]
"""By partition and time asked for: (offset, timestamp, leader epoch), or None."""

HALF_AN_HOUR = 30 * 60 * 1000
"""Brokers take no time that is an hour ahead; markers have the time of day."""

QUESTIONS = 60


def times(chance: random.Random, count: int) -> list[int]:
    """Times around now: at random, in runs, repeated, or nearly in order."""
    now = int(time.time() * 1000)
    kind = chance.choice(["random", "runs", "few", "ordered"])
    few = [now + chance.randrange(-HALF_AN_HOUR, HALF_AN_HOUR) for _ in range(5)]
    found: list[int] = []
    for number in range(count):
        if kind == "random" or not found:
            found.append(now + chance.randrange(-HALF_AN_HOUR, HALF_AN_HOUR))
        elif kind == "runs":
            found.append(chance.choice(few) if chance.random() < 0.05 else found[-1] + chance.randrange(3))
        elif kind == "few":
            found.append(chance.choice(few))
        else:
            found.append(now - HALF_AN_HOUR + 1000 * number - chance.randrange(5000))
    return found


def plain(world: World, topic: str, chance: random.Random, keys: int = 0) -> None:
    producer = Producer({"bootstrap.servers": world.kafka.bootstrap, "linger.ms": 1, "batch.num.messages": 15})
    for number, at in enumerate(times(chance, 900)):
        key = b"%d" % chance.randrange(keys) if keys else None
        producer.produce(topic, b"%d:" % number + bytes(chance.randrange(200)), key, partition=0, timestamp=at)
        if chance.random() < 0.05:
            producer.flush(30)
    assert producer.flush(30) == 0


def transactions(world: World, topic: str, chance: random.Random) -> None:
    producers = [
        Producer({"bootstrap.servers": world.kafka.bootstrap, "linger.ms": 1, "transactional.id": f"{topic}-{number}"})
        for number in range(2)
    ]
    for producer in producers:
        producer.init_transactions(30)
    for _ in range(40):
        producer = chance.choice(producers)
        producer.begin_transaction()
        for at in times(chance, chance.randrange(1, 25)):
            producer.produce(topic, bytes(200), partition=0, timestamp=at - HALF_AN_HOUR)  # markers are later
        assert producer.flush(30) == 0  # an abort drops unsent records, and may then find no transaction
        if chance.random() < 0.4:
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)


def compacted(world: World, topic: str, chance: random.Random) -> None:
    plain(world, topic, chance, keys=20)

    counts = [0]

    def cleaned() -> bool:
        [tp] = partitions(topic)
        with world.plain() as consumer:
            consumer.assign([tp])
            counts.append(len(read_to(consumer, consumer.end_offsets([tp]))[tp]))
        return counts[-1] == counts[-2] < 600

    wait_until(cleaned, interval=1, what="the cleaner")


COMPACT = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
KINDS: Mapping[str, tuple[Mapping[str, str], Callable[[World, str, random.Random], None]]] = {
    "create": ({}, plain),
    "gzip": ({"compression.type": "gzip"}, plain),
    "append": ({"message.timestamp.type": "LogAppendTime"}, plain),
    "transactions": ({}, transactions),
    "compacted": (COMPACT, compacted),
}


def kept(world: World, tps: Collection[TopicPartition]) -> dict[TopicPartition, list[Any]]:
    """The records that the broker has."""
    with world.plain() as consumer:
        consumer.assign(list(tps))
        return read_to(consumer, consumer.end_offsets(list(tps)))


def asked(records: Iterable[Any], chance: random.Random, since: int) -> list[int]:
    """Times to ask for: those of records, one off, and beyond all; and those of markers, which came after ``since``."""
    known = sorted({record.timestamp for record in records})
    some = chance.sample(known, min(QUESTIONS, len(known)))
    now = int(time.time() * 1000)
    edges = [0, known[0] - 1, known[0], known[-1], known[-1] + 1, now]
    edges += [chance.randrange(since, now) for _ in range(30)]
    return edges + [at + chance.choice([-1, 0, 0, 1]) for at in some]


def told(consumer: Any, questions: Mapping[TopicPartition, list[int]]) -> Answers:
    """What a consumer says."""
    found: Answers = {tp: {} for tp in questions}
    for number in range(max(map(len, questions.values()))):
        once = {tp: at[number] for tp, at in questions.items() if number < len(at)}
        for tp, answer in consumer.offsets_for_times(once).items():
            found[tp][once[tp]] = tuple(answer) if answer is not None else None
    return found


def remote_partition(world: World, tp: TopicPartition) -> RemotePartition:
    found = RemoteTopics(world.storage()).partition(*tp)
    assert found is not None
    return found


@pytest.mark.essential
def test_times_are_answered_as_the_broker_does(local_world: World, rng: random.Random) -> None:
    """Where the cleaner left a segment empty a broker finds nothing at all for times that it takes to be there.

    It gives an empty segment its file's time as the largest, looks into no other, and has no answer; ours is KIP-79's.
    """
    since = int(time.time() * 1000)
    tps = {name: TopicPartition(f"time-{name}-{local_world.folder.name}", 0) for name in KINDS}
    for name, (config, fill) in KINDS.items():
        local_world.kafka.create_topic(tps[name].topic, config={**SMALL["4.3.1"], **config})
        fill(local_world, tps[name].topic, rng)
    local_world.upload(*(tp.topic for tp in tps.values()))
    records = kept(local_world, tps.values())
    questions = {tp: asked(records[tp], rng, since) for tp in tps.values()}
    answers: dict[bool, Answers] = {}
    for committed, isolation in ((False, "read_uncommitted"), (True, "read_committed")):
        with local_world.plain(isolation_level=isolation) as consumer:
            answers[committed] = told(consumer, questions)
        for at, answer in answers[committed][tps["compacted"]].items():
            left = (one for one in records[tps["compacted"]] if one.timestamp >= at)
            first = next(((one.offset, one.timestamp, one.leader_epoch) for one in left), None)
            assert answer in {first, None}
            answers[committed][tps["compacted"]][at] = first
    for tp in tps.values():
        remote = remote_partition(local_world, tp)
        for committed, by_partition in answers.items():
            end = remote.end(committed=committed)
            assert end > 0, "nothing was uploaded"
            for at, answer in by_partition[tp].items():
                expected = answer if answer is not None and answer[0] < end else None
                assert remote.offset_for_time(at, committed=committed) == expected, (tp, at, committed)
    del tps["compacted"]  # the broker would have no answer where there is one
    for tp in tps.values():
        local_world.delete_before(tp.topic, {0: remote_partition(local_world, tp).end(committed=True) // 2})
    few = {tp: questions[tp][:50:3] for tp in tps.values()}
    with local_world.consumer(Mode.KAFKA_PREFERRED) as consumer:
        found = told(consumer, few)
    assert found == {tp: {at: answers[False][tp][at] for at in asked_for} for tp, asked_for in few.items()}
