"""When the agent says that it is healthy, by a clock that the test moves."""

from __future__ import annotations

from datetime import timedelta

import pytest

from uploader_agent.observability.health import Health


class Clock:
    """Stands still until it is moved."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def health(clock: Clock) -> Health:
    return Health(100, timedelta(minutes=10), clock)


def pass_time(health: Health, clock: Clock, seconds: int, jobs: int) -> None:
    """The loop turns every ten seconds and sees so many unfinished jobs."""
    for _ in range(0, seconds, 10):
        clock.now += 10
        health.turned()
        health.unfinished(jobs)


def test_idle_for_long_is_healthy(health: Health, clock: Clock) -> None:
    pass_time(health, clock, 86_400, 0)
    assert health.trouble() is None


def test_work_that_waits_and_nothing_finished(health: Health, clock: Clock) -> None:
    pass_time(health, clock, 86_400, 0)
    pass_time(health, clock, 600, 3)
    assert health.trouble() is None
    health.failed("orders-0: UnknownOutcome: none", segment=True)
    pass_time(health, clock, 10, 3)
    assert health.trouble() == (
        "nothing was finished for 610 s, though 3 jobs are waiting; the last failure: orders-0: UnknownOutcome: none"
    )
    health.finished(segment=True)
    assert health.trouble() is None


def test_one_that_fails_forever_beside_others_that_do_not_is_healthy(health: Health, clock: Clock) -> None:
    for _ in range(1000):
        pass_time(health, clock, 60, 5)
        health.failed("payments-0: FormatError: bad", segment=True)
        health.finished(segment=True)
    assert health.trouble() is None


def test_surveys_are_no_progress_while_segments_fail(health: Health, clock: Clock) -> None:
    """As under a policy that lets us read and not write."""
    for _ in range(70):
        pass_time(health, clock, 10, 2)
        health.finished(segment=False)
    assert health.trouble() is None, "surveys alone are work, too"
    for _ in range(70):
        pass_time(health, clock, 10, 2)
        health.failed("orders-0: AccessDenied: no", segment=True)
        health.finished(segment=False)
    assert "AccessDenied" in str(health.trouble())
    health.unfinished(0)
    assert health.trouble() is None, "the partition was moved away: there is nothing to do"


def test_a_loop_that_does_not_turn(health: Health, clock: Clock) -> None:
    clock.now += 101
    assert health.trouble() == "the loop has not turned for 101 s"


def test_ready_waits_for_something_and_stays(health: Health) -> None:
    assert not health.ready
    health.waits_for = None
    assert health.ready


def test_only_what_a_restart_helps_has_stopped(clock: Clock) -> None:
    health = Health(100, timedelta(minutes=10), clock, question_open_for=lambda: 3600.0)
    pass_time(health, clock, 86_400, 3)
    assert health.trouble() is not None
    assert health.stopped() is None
    clock.now += 101
    assert health.stopped() == "the loop has not turned for 101 s"
