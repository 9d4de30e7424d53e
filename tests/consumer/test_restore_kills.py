"""Restores that are killed with SIGKILL at random points and started again: each record is there once, in order."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest

from tests.consumer.history import kept
from tests.consumer.killed_restore import POINTS
from tests.consumer.raw_history import RawHistory, raw_history, target_name
from tests.support.erased import erase
from tests.support.kafka import KafkaCluster
from tests.tidemark.kafka_log.build import Record

MODES = {"plain": (), "transactional": ("--transactional",)}
KILLS, KILLS_FULL = 1, 30


@pytest.mark.essential
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


@pytest.mark.parametrize(("point", "ends_well"), [("committed", True), ("acknowledged", False)])
def test_what_is_erased_between_two_runs(point: str, ends_well: bool, kafka: KafkaCluster, tmp_path: Path) -> None:
    """If progress covers it, it stays in the target and in the sum; else the target has what history lacks."""
    made, target = raw_history(tmp_path, random.Random(0), partitions=1, rounds=0), target_name()
    for number in range(20):
        made.add(0, [Record(at, key=b"k", value=b"%d" % (5 * number + at)) for at in range(5)])
    made.raw.publish()
    assert made.run(kafka, target, point=point, nth=1)[0] == -signal.SIGKILL
    erase(made.raw, [5, 90, 99])
    del made.expected[0][99], made.expected[0][90]
    code, told = made.run(kafka, target, "--verify")
    assert (code == 0) == ends_well, told
    if ends_well:
        check(made, kafka, target)
        [partition] = told["partitions"]
        assert (partition["records"], partition["offsets_without_record"], partition["verified"]) == (98, 2, True)
    else:
        assert "not the source's at 6" in told
        assert "erased meanwhile" in told


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
