"""Random schedules of records, elections, replays, rebuilds, erasures, compactions and runs that die at any write.

The state equals an independent replay of the topic's table after every run that commits.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.spark.erasing.masked import killed
from tests.spark.erasing.test_schedules import Schedule
from tests.spark.run.test_truncation import FUNCTION
from tests.spark.state.replay import advance, check
from tests.spark.test_vacuum import Died
from tidemark.planning import plan_compaction, plan_rebuild, plan_replay

STATE: Final = "state: {leaf: 1KiB}"
SETTINGS: Final = ((STATE,), (STATE, FUNCTION), (STATE, FUNCTION, "compaction: {files: 3}"))


class StateSchedule(Schedule):
    """A topic of two partitions, its table, and its state table."""

    settings_of = SETTINGS
    values = (b"fine!", b"bad", b"", b"longer than others", None, None)

    def advance(self) -> None:
        """A run of the state, after which it equals the replay of the table."""
        result = advance(self.world, rebuild=self.rng.random() < 0.1)
        assert result.status in {"committed", "empty"}
        check(self.world)

    def die(self) -> None:
        """A run that dies at any write, or ends."""
        try:
            with killed(self.rng.randrange(8), lambda: self.rng.random() < 0.5):
                advance(self.world)
        except Died:
            pass
        self.advance()

    def race(self) -> None:
        """A run that another overtakes, or whose rows are taken away before it commits."""
        self.land()
        change = self.rng.choice((self.carry_out, lambda: advance(self.world), self.land))
        assert advance(self.world, meanwhile=change).status in {"committed", "stale", "empty"}
        self.advance()

    def step(self) -> None:
        """Anything."""
        table = self.world.table
        steps: list[Callable[[], None]] = [
            self.produce,
            self.land,
            self.land,
            self.elect,
            self.ask,
            self.carry_out,
            self.advance,
            self.advance,
            self.die,
            self.race,
            lambda: self.again(lambda: plan_rebuild(table, None)),
            lambda: self.again(lambda: plan_compaction(table)),
            lambda: self.again(lambda: plan_replay(table)),
        ]
        self.rng.choice(steps)()


@pytest.mark.parametrize("number", range(4))
def test_every_schedule_leaves_what_a_replay_leaves(
    tmp_path: Path, rng: random.Random, full: bool, number: int
) -> None:
    for turn in range(250 if full else 1):
        schedule = StateSchedule(tmp_path / str(turn), rng)
        schedule.produce()
        for _ in range(rng.randint(6, 16)):
            schedule.step()
        schedule.produce()
        schedule.land()
        schedule.advance()
