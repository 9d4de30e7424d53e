"""A state table equals an independent replay of its topic's table after every run."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.spark.state.replay import advance, check, state_rows
from tests.spark.world import World
from tests.tidemark.kafka_log.build import T0, Record, batch

KEYS = tuple(b"key-%d" % number for number in range(12))


def produce(world: World, rng: random.Random, count: int = 8, partitions: int = 1) -> None:
    """A segment of upserts and deletions of random keys, with times that do not ascend."""
    partition = rng.randrange(partitions)
    at = world.raw.partition(partition).end
    records = [
        Record(delta, T0 + rng.randrange(1000), rng.choice((*KEYS, None)), rng.choice((b"a", b"b", b"c", None)))
        for delta in range(count)
    ]
    world.raw.segment([batch(at, records)], partition)


@pytest.mark.parametrize("partitions", [1, 3])
def test_each_run_leaves_what_a_replay_leaves(tmp_path: Path, rng: random.Random, partitions: int) -> None:
    world = World(tmp_path, "state: {leaf: 1KiB}")
    assert advance(world).status == "empty"
    for _ in range(6):
        for _ in range(rng.randint(1, 3)):
            produce(world, rng, partitions=partitions)
        world.land()
        result = advance(world)
        assert result.status == "committed"
        check(world)
        assert advance(world).status == "empty", "nothing has changed since"
    before = state_rows(world)
    assert advance(world, rebuild=True).kind == "rebuild"
    by_key = sorted(before, key=lambda row: row["kafka_key"])
    assert sorted(state_rows(world), key=lambda row: row["kafka_key"]) == by_key
