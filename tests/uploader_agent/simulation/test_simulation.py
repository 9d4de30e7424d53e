"""Schedules by seed, each in virtual time; see :mod:`tests.uploader_agent.simulation`."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.uploader_agent.simulation.mutants import FAULTS, LOSSES, planted

ROOT = Path(__file__).parents[3]
SHARE = 250
"""Schedules that one test runs where all are run: they share out among processes, and none takes a minute."""


def simulate(*options: str | int) -> subprocess.CompletedProcess[str]:
    """In a process of its own, which goes through sets in the same order whatever the seed of Python's hashes is."""
    command = [sys.executable, "-m", "tests.uploader_agent.simulation", *map(str, options)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def check(*options: str | int) -> None:
    ran = simulate(*options)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_everything_is_stored_and_told(tried: Callable[[str, int], None]) -> None:
    """In the same schedules each time: the long tests run random ones."""
    check("--count", 40)
    tried("schedules of the simulation", 40)


def test_everything_is_fetched_stored_and_told(tried: Callable[[str, int], None]) -> None:
    """Without brokers' disks."""
    check("--count", 6, "--fetching")
    tried("schedules of the simulation", 6)


def test_a_head_keeps_a_leadership_that_ends_in_a_gap() -> None:
    """Retention has taken what lies behind the packed offsets; while that is a gap, ``offset.wm`` lists it."""
    check("--first", 700492, "--fetching")


def test_what_restored_brokers_have_is_stored_or_told(tried: Callable[[str, int], None]) -> None:
    check("--count", 30, "--restored")
    tried("schedules of the simulation", 30)


@pytest.mark.full
@pytest.mark.parametrize("share", range(40))
def test_what_restored_brokers_have_is_stored_or_told_in_ten_thousand_schedules(
    share: int, seed: int, tried: Callable[[str, int], None]
) -> None:
    check("--first", (seed + 101 + share) * SHARE, "--count", SHARE, "--restored")
    tried("schedules of the simulation", SHARE)


@pytest.mark.full
@pytest.mark.parametrize("share", range(20))
def test_everything_is_fetched_stored_and_told_in_two_thousand_schedules(
    share: int, seed: int, tried: Callable[[str, int], None]
) -> None:
    first = (seed + 81) * SHARE + share * 100
    check("--first", first, "--count", 100, "--fetching", *(["--compacted"] if share % 4 == 0 else []))
    tried("schedules of the simulation", 100)


@pytest.mark.full
@pytest.mark.parametrize("share", range(40))
def test_everything_is_stored_and_told_in_ten_thousand_schedules(
    share: int, seed: int, tried: Callable[[str, int], None]
) -> None:
    check("--first", (seed + 1 + share) * SHARE, "--count", SHARE)
    tried("schedules of the simulation", SHARE)


@pytest.mark.full
@pytest.mark.parametrize("share", range(40))
def test_what_is_packed_is_sealed_in_ten_thousand_schedules_of_compacted_topics(
    share: int, seed: int, tried: Callable[[str, int], None]
) -> None:
    check("--first", (seed + 41 + share) * SHARE, "--count", SHARE, "--compacted")
    tried("schedules of the simulation", SHARE)


@pytest.mark.parametrize("name", [*FAULTS, *LOSSES])
def test_a_fault_can_be_planted(name: str) -> None:
    with planted(name) as mutant:
        assert mutant is not None


def test_planted_faults_are_seen_and_losses_do_no_harm(rng: random.Random, full: bool) -> None:
    """In schedules of the same seeds each time: whether a fault is seen must not be a matter of luck."""
    faults, losses = sorted(FAULTS), sorted(LOSSES)
    check("--count", 400, "--plant-each", *(faults if full else rng.sample(faults, 1)))
    check("--count", 120 if full else 40, "--plant-each", *(losses if full else rng.sample(losses, 1)))


def test_a_schedule_is_the_same_each_time(seed: int) -> None:
    first, second = (simulate("--first", seed, "--events") for _ in range(2))
    assert first.stdout.count("\n") > 20
    assert first.stdout == second.stdout
