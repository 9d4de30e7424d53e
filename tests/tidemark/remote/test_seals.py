"""Many small sealed segments, with any boundaries, are read exactly as one large segment of the same batches."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tests.tidemark.kafka_log.build import T0, reseal
from tests.tidemark.remote.model import Log, compact
from tests.tidemark.remote.reader import Reader
from tests.tidemark.remote.test_catalog_random import grow
from tests.tidemark.remote.world import RemoteStore
from tidemark.formats.keys import TopicPartition
from tidemark.formats.raw.manifest import LineagePairs
from tidemark.remote import RemotePartition, RemoteTopics
from tidemark.remote.reader.read_range import IsolationLevel, read_range

TOPICS = ("large", "small", "single")
"""The same log: in one segment, in seals with random boundaries, and in a seal for each batch."""


def store_thrice(store: RemoteStore, rng: random.Random, *, compacted: bool) -> Log:
    """A random log with transactions and several leaders, stored under each of the topics."""
    log = Log("a", [])
    epoch = grow(rng, log, 1)
    log.grow(rng, 60)
    taken = compact(log, rng) if compacted else set()
    if compacted:
        log = replace(log, batches=[one for one in log.batches if one.base not in taken])
    batches = [one.raw if one.commits is None else timed(one.raw, rng) for one in log.batches]
    aborted = [(one.producer, one.first, one.last) for one in log.aborts()]
    numbers = range(1, len(batches))
    cuts = {"large": (), "small": sorted(rng.sample(numbers, rng.randint(2, 20))), "single": numbers}
    for topic in TOPICS:
        raw = store.raw(topic)
        raw.times, raw.index_every = True, 200
        known = raw.partition()
        known.lineage, known.leader_epoch = lineage_of(log), epoch
        raw.seals(batches, cuts[topic], aborted=aborted, compacted=compacted, end=log.end)
        raw.publish()
    return log


def timed(marker: bytes, rng: random.Random) -> bytes:
    """A marker has the broker's time, which need not be near those of the data before or after it."""
    at = T0 + rng.randrange(20_000)
    return reseal(marker, base_timestamp=at, max_timestamp=at)


def lineage_of(log: Log) -> LineagePairs:
    """Without leaders of whom nothing is in the log."""
    return tuple(one for one in log.lineage if one[1] < log.end)


def opened(store: RemoteStore, topic: str) -> RemotePartition:
    part = RemoteTopics(store.storage()).partition(topic, 0)
    assert part is not None
    return part


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("number", [*range(2), *(pytest.param(one, marks=pytest.mark.full) for one in range(2, 8))])
def test_the_catalogue_answers_alike(
    local_store: RemoteStore, rng: random.Random, number: int, compacted: bool
) -> None:
    log = store_thrice(local_store, rng, compacted=compacted)
    parts = [opened(local_store, topic) for topic in TOPICS]
    for committed in (False, True):
        assert len({(part.start, part.end(committed=committed)) for part in parts}) == 1
    times = sorted({row.timestamp + near for one in log.batches for row in one.rows for near in (-1, 0, 1)})
    for time in [0, *rng.sample(times, min(40, len(times))), 1 << 60]:
        for committed, markers in ((False, True), (True, True), (True, False)):
            answers = {part.offset_for_time(time, committed=committed, markers=markers) for part in parts}
            assert len(answers) == 1, (time, committed, markers, answers)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("committed", [False, True])
def test_the_records_are_the_same(
    remote_store: RemoteStore, rng: random.Random, committed: bool, compacted: bool
) -> None:
    log = store_thrice(remote_store, rng, compacted=compacted)
    starts = [0, *sorted(rng.sample(range(1, log.end), 4))]
    found = []
    for topic in TOPICS:
        isolation: IsolationLevel = "read_committed" if committed else "read_uncommitted"
        with Reader(remote_store.storage(), committed=committed) as reader:
            tp = TopicPartition(topic, 0)
            found.append([[record._replace(topic="") for record in reader.read(start, tp)] for start in starts])
            end = opened(remote_store, topic).end(committed=committed)
        first, after = sorted(rng.sample(range(end + 1), 2)) if end else (0, 0)
        rows = read_range(topic, 0, first, after, storage=remote_store.storage(), isolation_level=isolation)
        expected = [one.value for one in found[-1][0] if first <= one.offset < after]
        assert rows["kafka_value"].to_pylist() == expected
    assert found[0][0], "nothing to read"
    assert found[0] == found[1] == found[2]
