"""Restores that are killed with SIGKILL at random points and started again: each record is there once, in order."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest

from tests.consumer.history import kept
from tests.consumer.killed_restore import POINTS
from tests.consumer.raw_history import RawHistory, raw_history, target_name
from tests.support.kafka import KafkaCluster

MODES = {"plain": (), "transactional": ("--transactional",)}
KILLS, KILLS_FULL = 2, 30


@pytest.mark.parametrize("mode", MODES)
def test_killed_at_random_points(
    mode: str, kafka: KafkaCluster, tmp_path: Path, rng: random.Random, full: bool
) -> None:
    made = raw_history(tmp_path, rng, rounds=12 if full else 8)
    kill_and_resume(made, kafka, mode, rng, KILLS_FULL if full else KILLS)


@pytest.mark.full
@pytest.mark.parametrize("mode", MODES)
def test_killed_at_random_points_with_zookeeper(
    mode: str, kafka39: KafkaCluster, tmp_path: Path, rng: random.Random
) -> None:
    kill_and_resume(raw_history(tmp_path, rng, rounds=12), kafka39, mode, rng, KILLS_FULL)


def kill_and_resume(made: RawHistory, cluster: KafkaCluster, mode: str, rng: random.Random, kills: int) -> None:
    """Kill it so often, then let it finish; more restores than a kill moves on are begun anew into another target."""
    target, killed, ended = target_name(), 0, 0
    while killed < kills:
        point = rng.choice([one for one in POINTS if mode == "transactional" or one != "offsets in the transaction"])
        nth = rng.randint(1, 90) if point == "sending" else rng.randint(1, 2)
        code, told = made.run(cluster, target, *MODES[mode], point=point, nth=nth)
        if code == -signal.SIGKILL:
            killed += 1
            continue
        assert code == 0, f"after a kill, at {point} {nth}: {told}"
        check(made, cluster, target)
        target, ended = target_name(), ended + 1
    code, told = made.run(cluster, target, *MODES[mode], "--verify")
    assert code == 0, told
    assert [one["records"] for one in told["partitions"]] == [len(one) for one in made.expected]
    check(made, cluster, target)


def check(made: RawHistory, cluster: KafkaCluster, target: str) -> None:
    """The target holds what it must, for readers of committed records."""
    assert kept(cluster, target, len(made.expected)) == made.expected


@pytest.mark.full
@pytest.mark.parametrize("point", ["sending", "acknowledged"])
def test_without_transactions_what_no_progress_tells_of_is_found(
    point: str, kafka: KafkaCluster, tmp_path: Path, rng: random.Random
) -> None:
    made, target = raw_history(tmp_path, rng, partitions=1), target_name()
    assert made.run(kafka, target, point=point, nth=35 if point == "sending" else 1)[0] == -signal.SIGKILL
    there = len(kept(kafka, target, 1)[0])
    code, report = made.run(kafka, target)
    assert code == 0, report
    assert report["sent"] == len(made.expected[0]) - there
    assert report["partitions"][0]["resumed"]
    check(made, kafka, target)
    if point == "acknowledged":
        assert there > 0


@pytest.mark.full
def test_what_a_killed_transaction_left_is_never_read(kafka: KafkaCluster, tmp_path: Path, rng: random.Random) -> None:
    made, target = raw_history(tmp_path, rng, partitions=1), target_name()
    assert made.run(kafka, target, "--transactional", point="acknowledged", nth=2)[0] == -signal.SIGKILL
    code, report = made.run(kafka, target, "--transactional", "--verify")
    assert code == 0, report
    check(made, kafka, target)
    [everything] = kept(kafka, target, 1, committed=False)
    assert len(everything) > len(made.expected[0])
