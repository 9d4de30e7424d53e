"""The threads of a simulated process, and what they wait by: tasks of the :class:`Scheduler`."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from tests.uploader_agent.simulation.clock import START, Scheduler, Task
from uploader_agent.runtime import ConditionLike, EventLike, Lock, Result, Runtime, Thread


class SimulatedRuntime(Runtime):
    """The threads of one process."""

    def __init__(self, scheduler: Scheduler, died: Callable[[str, BaseException], None]) -> None:
        """``died`` is told of each thread that ends by an error."""
        self.scheduler = scheduler
        self.died = died
        self.tasks: list[Task] = []

    def monotonic(self) -> float:
        return 1000.0 + self.scheduler.now

    def time(self) -> float:
        return START + self.scheduler.now

    def lock(self) -> Lock:
        return _Lock(self.scheduler)

    def event(self) -> EventLike:
        return _Event(self.scheduler)

    def condition(self) -> ConditionLike:
        return _Condition(self.scheduler)

    def thread(self, name: str, target: Callable[[], object]) -> Thread:
        return _Thread(self, name, target)

    def kill(self) -> None:
        """End the process."""
        for task in self.tasks:
            self.scheduler.kill(task)


class _Lock:
    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._held = False
        self._waiting: list[Task] = []

    def acquire(self, blocking: bool = True) -> bool:
        while self._held:
            if not blocking:
                return False
            self._waiting.append(self._scheduler.current)
            self._scheduler.park(None)
        self._held = True
        return True

    def release(self) -> None:
        self._held = False
        waiting, self._waiting = self._waiting, []
        for task in waiting:
            self._scheduler.wake(task)

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class _Condition(_Lock):
    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(scheduler)
        self._parked: list[list[Task]] = []

    def wait(self, timeout: float | None = None) -> bool:
        mine = [self._scheduler.current]
        self._parked.append(mine)
        self.release()
        try:
            self._scheduler.park(timeout)
        finally:
            notified = mine not in self._parked
            if not notified:
                self._parked.remove(mine)
            self._held = True  # whoever else runs has let it go: nobody waits for anything else while holding it
        return notified

    def wait_for(self, predicate: Callable[[], Result], timeout: float | None = None) -> Result:
        until = None if timeout is None else self._scheduler.now + timeout
        while not (holds := predicate()):
            if until is None:
                self.wait()
            elif until > self._scheduler.now:
                self.wait(until - self._scheduler.now)
            else:
                break
        return holds

    def notify_all(self) -> None:
        parked, self._parked = self._parked, []
        for [task] in parked:
            self._scheduler.wake(task)


class _Event:
    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._set = False
        self._waiting: list[Task] = []

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        waiting, self._waiting = self._waiting, []
        for task in waiting:
            self._scheduler.wake(task)

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        if self._set or (timeout is not None and timeout <= 0):
            return self._set
        me = self._scheduler.current
        self._waiting.append(me)
        self._scheduler.park(timeout)
        if me in self._waiting:
            self._waiting.remove(me)
        return self._set


class _Thread:
    def __init__(self, runtime: SimulatedRuntime, name: str, target: Callable[[], object]) -> None:
        self._runtime = runtime
        self._name = name
        self._target = target
        self._task: Task | None = None
        self._ended = _Event(runtime.scheduler)

    @property
    def ident(self) -> int | None:
        return id(self._task) if self._task else None

    def start(self) -> None:
        assert self._task is None, "a thread starts once"
        self._task = self._runtime.scheduler.spawn(self._name, self._run)
        self._runtime.tasks.append(self._task)

    def join(self, timeout: float | None = None) -> None:
        self._ended.wait(timeout)

    def is_alive(self) -> bool:
        return self._task is not None and not self._ended.is_set()

    def _run(self) -> None:
        try:
            self._target()
        except Exception as error:  # noqa: BLE001 - as threading.excepthook is told
            self._runtime.died(self._name, error)
        finally:
            self._ended.set()
