"""Virtual time: threads of which one runs at a time, chosen by the clock and the seed, and never by the machine.

A task keeps the baton until it waits; whoever gives it away runs what is due next. So a schedule is the same whenever
its seed is, and takes no longer than its steps do.
"""

from __future__ import annotations

import heapq
import random
import threading
from collections.abc import Callable
from itertools import count

START = 1_780_000_000.0
"""What virtual time 0 is in seconds since 1970: 2026-05-28."""

_MOST_STEPS = 20_000
"""Steps at one moment of virtual time after which a schedule is taken for one that never goes on."""


class KilledError(BaseException):
    """Ends a task whose process is killed; product code that catches errors must not catch this."""


class Task:
    """A thread that runs when it has the baton."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.baton = threading.Lock()
        self.baton.acquire()
        self.ticket = 0  # of what the task waits for; 0 while it runs
        self.killed = False


class Scheduler:
    """Runs tasks and actions by virtual time. ``stall`` gives the seconds from when a task is woken until it runs."""

    def __init__(self, stall: Callable[[], float] = lambda: 0.0) -> None:
        self.now = 0.0
        self.failure: BaseException | None = None
        self.stall = stall
        self._count = count(1)
        self._due: list[tuple[float, int, Task | None, int, Callable[[], None] | None]] = []
        self._main = Task("main")
        self._current: Task | None = self._main
        self._steps = 0

    def call_at(self, moment: float, action: Callable[[], None]) -> None:
        """Have ``action``, which must not wait, called at ``moment``."""
        heapq.heappush(self._due, (moment, next(self._count), None, 0, action))

    def call_later(self, seconds: float, action: Callable[[], None]) -> None:
        """Have ``action``, which must not wait, called in ``seconds``."""
        self.call_at(self.now + seconds, action)

    def run(self, until: float) -> None:
        """Let everything run until that moment, or until :meth:`stop`. Raises what :meth:`fail` was told."""
        self.park(until - self.now)
        if self.failure is not None:
            raise self.failure

    def clear(self) -> None:
        """Let the tasks that are killed end, and forget what failed."""
        self.failure = None
        self.run(self.now + 1e-9)
        self.failure = None

    def stop(self) -> None:
        """End :meth:`run`."""
        self.wake(self._main)

    def fail(self, error: BaseException) -> None:
        """End :meth:`run` with ``error``; for what is found out where nobody would let it through."""
        self.failure = self.failure or error
        self.stop()

    def spawn(self, name: str, target: Callable[[], object]) -> Task:
        """Make a task that begins soon."""
        task = Task(name)

        def body() -> None:
            task.baton.acquire()
            try:
                if not task.killed:
                    target()
            except KilledError:
                pass
            except BaseException as error:  # noqa: BLE001 - a thread that ends by an error is what a test looks for
                self.fail(error)
            self._turn(None)

        task.ticket = next(self._count)
        self.wake(task)
        threading.Thread(target=body, name=name, daemon=True).start()
        return task

    def park(self, seconds: float | None) -> None:
        """Wait until the current task is woken or ``seconds`` have passed. Raises KilledError in one that is killed."""
        me = self._current
        assert me is not None, "an action must not wait"
        if me.killed:
            raise KilledError
        me.ticket = next(self._count)
        if seconds is not None:
            heapq.heappush(self._due, (self.now + max(0.0, seconds), next(self._count), me, me.ticket, None))
        self._turn(me)
        if me.killed:
            raise KilledError

    def sleep(self, seconds: float) -> None:
        """Let ``seconds`` pass for the current task."""
        until = self.now + seconds
        while self.now < until:
            self.park(until - self.now)

    def wake(self, task: Task) -> None:
        """Have ``task`` go on soon, if it waits."""
        delay = 0.0 if task is self._main else self.stall()
        heapq.heappush(self._due, (self.now + delay, next(self._count), task, task.ticket, None))

    def kill(self, task: Task) -> None:
        """End ``task``, now, wherever it waits."""
        task.killed = True
        heapq.heappush(self._due, (self.now, next(self._count), task, task.ticket, None))

    @property
    def current(self) -> Task:
        """The task that runs."""
        assert self._current is not None, "an action is no task"
        return self._current

    def _turn(self, me: Task | None) -> None:
        """Run what is due, until it is the turn of ``me``; None ends the thread once another has the baton."""
        while True:
            moment, _, task, ticket, action = heapq.heappop(self._due)
            self._pass(moment)
            if task is None:
                assert action is not None
                self._current = None
                try:
                    action()
                except Exception as error:  # noqa: BLE001 - not for the task that happens to run this
                    self.fail(error)
                continue
            if not ticket or task.ticket != ticket:
                continue  # it has been woken otherwise
            task.ticket, self._current = 0, task
            if task is not me:
                task.baton.release()
                if me is not None:
                    me.baton.acquire()
            return

    def _pass(self, moment: float) -> None:
        if moment > self.now:
            self.now, self._steps = moment, 0
            return
        self._steps += 1
        if self._steps == _MOST_STEPS:
            self.fail(AssertionError(f"{_MOST_STEPS} steps, and it is {self.now:.3f} s still: something never waits"))


def chance(rng: random.Random, probability: float) -> bool:
    """True in that share of cases; asks ``rng`` only where there is a choice."""
    return probability > 0 and rng.random() < probability
