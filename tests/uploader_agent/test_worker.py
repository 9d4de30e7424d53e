"""A worker takes turns when they are due or it is woken, loses no wake, and ends as its work says."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.support.waiting import HUNG, wait_until
from tests.uploader_agent.simulation.clock import Scheduler
from tests.uploader_agent.simulation.threads import SimulatedRuntime
from uploader_agent.runtime import UNTIL_WOKEN, Worker


class Turns:
    """The turns of a worker; ``pauses`` follow them in order, then no turn is due."""

    def __init__(self, *pauses: float | Exception | None) -> None:
        self.count = 0
        self.times: list[float] = []
        self.clock: Callable[[], float] = time.monotonic
        self.within: Callable[[], object] = lambda: None
        self._pauses = iter(pauses)

    def __call__(self) -> float | None:
        self.count += 1
        self.times.append(self.clock())
        self.within()
        pause = next(self._pauses, UNTIL_WOKEN)
        if isinstance(pause, Exception):
            raise pause
        return pause


@contextmanager
def started(worker: Worker) -> Iterator[Worker]:
    worker.start()
    try:
        yield worker
    finally:
        worker.stop()
        worker.join(HUNG)
        assert not worker.is_alive()


def test_a_wake_begins_a_turn() -> None:
    turns = Turns()
    with started(Worker("work", turns)) as worker:
        wait_until(lambda: turns.count == 1, what="the first turn, which is due at once")
        worker.wake()
        wait_until(lambda: turns.count == 2, what="the second turn")
        assert worker.ident is not None


def test_a_wake_during_a_turn_makes_another_one_follow() -> None:
    turns = Turns(3600.0)
    worker = Worker("work", turns)
    turns.within = lambda: worker.wake() if turns.count == 1 else worker.stop()
    worker.run()
    assert turns.count == 2


def test_a_wake_before_the_start_is_no_turn_more() -> None:
    turns = Turns(0.0, None)
    worker = Worker("work", turns)
    worker.wake()
    worker.run()
    assert turns.count == 2


@pytest.mark.parametrize("pause", [0.0, 3600.0, UNTIL_WOKEN])
def test_a_stop_during_a_turn_lets_it_end_and_begins_no_other(pause: float) -> None:
    turns = Turns(pause)
    worker = Worker("work", turns)
    turns.within = worker.stop
    worker.run()
    assert (turns.count, worker.stopped) == (1, True)


def test_a_stop_ends_a_pause_and_a_worker_that_was_never_started() -> None:
    turns = Turns(3600.0)
    with started(Worker("work", turns)):
        wait_until(lambda: turns.count == 1, what="the turn before the pause")
    unborn = Worker("work", turns)
    unborn.stop()
    unborn.join()
    assert (unborn.is_alive(), unborn.ident) == (False, None)
    unborn.start()
    unborn.join(HUNG)
    assert turns.count == 1


def test_work_may_end_its_thread() -> None:
    ended: list[str] = []
    turns = Turns(0.0, None)
    worker = Worker("work", turns, ended=lambda: ended.append(threading.current_thread().name))
    worker.start()
    worker.join(HUNG)
    assert (turns.count, worker.is_alive(), ended) == (2, False, ["work"])


def test_an_error_ends_the_thread() -> None:
    ended: list[bool] = []
    with pytest.raises(RuntimeError, match="unexpected"):
        Worker("work", Turns(RuntimeError("unexpected")), ended=lambda: ended.append(True)).run()
    assert ended == [True]


def test_an_error_that_is_reported_ends_nothing() -> None:
    reported: list[Exception] = []
    error = RuntimeError("unexpected")

    def failed(error: Exception) -> float:
        reported.append(error)
        return 0.0

    turns = Turns(error, None)
    Worker("work", turns, failed=failed).run()
    assert (turns.count, reported) == (2, [error])


def test_turns_are_taken_when_they_are_due() -> None:
    scheduler = Scheduler()
    runtime = SimulatedRuntime(scheduler, lambda _name, error: scheduler.fail(error))
    turns = Turns(10.0, 0.0, 2.5)
    turns.clock = lambda: scheduler.now
    worker = Worker("work", turns, runtime)
    worker.start(after=5.0)
    scheduler.call_at(100.0, worker.wake)
    scheduler.call_at(101.0, worker.stop)
    scheduler.run(200.0)
    assert turns.times == [5.0, 15.0, 15.0, 17.5, 100.0]
    assert not worker.is_alive()
    assert math.isinf(UNTIL_WOKEN)
