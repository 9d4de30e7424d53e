"""Timers: each key once, at its earliest moment, also among many that were moved."""

from __future__ import annotations

import random

from uploader_agent.scheduling.workers import Timers


def test_as_a_dictionary_of_moments_has_them(rng: random.Random) -> None:
    timers: Timers[int] = Timers()
    expected: dict[int, float] = {}
    now = 0.0
    for _ in range(20_000):
        key, moment = rng.randrange(50), now + rng.choice([0.25, 2.0, 600.0]) * rng.random()
        timers.add(key, moment)
        expected[key] = min(moment, expected.get(key, moment))
        if rng.random() < 0.2:
            now += rng.random() / 10
            due = {key for key, moment in expected.items() if moment <= now}
            assert timers.take(now) == due
            expected = {key: moment for key, moment in expected.items() if key not in due}
            assert timers.next_time() <= min(expected.values(), default=float("inf"))


def test_a_far_moment_that_does_not_count_does_not_stay() -> None:
    """A partition that gets a record a second has its quiet tail in ten minutes, again and again."""
    timers: Timers[int] = Timers()
    for second in range(1000):
        for key in range(100):
            timers.add(key, second + 600.0)
            timers.add(key, second + 0.5)
        assert timers.take(second + 0.5) == set(range(100))
    assert len(timers._heap) < 1500
