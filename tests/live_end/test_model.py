"""Schedules of the model by seed; see ``docs/agent-design.md``."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.live_end.model import RULES
from tests.live_end.schedule import run

ROOT = Path(__file__).parents[2]
SHARE = 2000
"""Schedules that one test runs where all are run."""


def model(*options: str | int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.live_end", *map(str, options)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def check(*options: str | int) -> None:
    ran = model(*options)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_rules_hold(seed: int, tried: Callable[[str, int], None]) -> None:
    check("--first", seed * SHARE, "--count", 300)
    check("--first", seed * SHARE, "--count", 100, "--compacted")
    tried("schedules of the live end", 400)


@pytest.mark.full
@pytest.mark.parametrize("share", range(5))
def test_the_rules_hold_in_ten_thousand_schedules_of_compacted_topics(
    share: int, seed: int, tried: Callable[[str, int], None]
) -> None:
    check("--first", (seed + 1 + share) * SHARE, "--count", SHARE, "--compacted")
    tried("schedules of the live end", SHARE)


@pytest.mark.full
@pytest.mark.parametrize("share", range(10))
def test_the_rules_hold_in_twenty_thousand_schedules(share: int, seed: int, tried: Callable[[str, int], None]) -> None:
    check("--first", (seed + 1 + share) * SHARE, "--count", SHARE)
    tried("schedules of the live end", SHARE)


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_that_is_off_is_missed(rule: str) -> None:
    """After a change of the model, ``python -m tests.live_end --count 30000 --each-off`` finds the seeds again."""
    seed, compacted = RULES[rule].seed, RULES[rule].compacted
    assert run(seed, rule, compacted=compacted).wrong
    assert not run(seed, compacted=compacted).wrong


def test_a_schedule_is_the_same_each_time(seed: int) -> None:
    first, second = run(seed), run(seed)
    assert len(first.actions) > 20
    assert first.actions == second.actions
