"""A few threads: most of them carry out requests, the others make steps.

A thread that waits for a store's answer cannot decode, so other threads do that. They are few, because the allocator
gives each thread that allocates much its own memory, and the thread keeps it. The two kinds of threads wait separately,
so that no thread is woken without work.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Final, TypeVar

T = TypeVar("T")
Work = Callable[[], None]

_THREADS_PER_STEPPER: Final = 4


class ThreadPool:
    """``count`` threads. ``next_step``, called under ``lock``, returns work, or seconds until there may be some."""

    def __init__(
        self, count: int, lock: threading.RLock, next_step: Callable[[], tuple[Work | None, float | None]]
    ) -> None:
        if count < 1:
            raise ValueError(f"there must be at least one thread to read with, not {count}: nothing would ever come")
        self._lock = lock
        self._for_steps = threading.Condition(lock)
        self._for_requests = threading.Condition(lock) if count > 1 else self._for_steps
        self._next_step = next_step
        self._jobs: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._closed = False
        self._seconds: float | None = None
        self._threads = [
            threading.Thread(target=self._work, args=duty, name=f"tidemark-remote-{number}", daemon=True)
            for number, duty in enumerate(self._shared_out(count))
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, request: Callable[[], T]) -> Future[T]:
        """Have ``request`` carried out; cancelled at once if the pool is closed."""
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                future.cancel()
            else:
                self._jobs.append((future, request))
                self._for_requests.notify()
        return future

    def wake(self) -> None:
        """Wake the threads for steps: there may be one to make, or a new time for the next one."""
        with self._lock:
            self._for_steps.notify_all()

    def close(self, seconds: float) -> None:
        """Begin no more work, and wait for the threads at most ``seconds``. A request under way ends by itself."""
        with self._lock:
            self._closed = True
            jobs, self._jobs = self._jobs, deque()
            self._for_requests.notify_all()
            self._for_steps.notify_all()
        for future, _ in jobs:
            future.cancel()
        until = time.monotonic() + seconds
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, until - time.monotonic()))

    def _shared_out(self, count: int) -> list[tuple[Callable[[], Work | None], threading.Condition]]:
        """The duty of each thread, and the condition that it waits on without work."""
        if count == 1:
            return [(lambda: self._request() or self._step(), self._for_steps)]
        steppers = max(1, count // _THREADS_PER_STEPPER)
        requesters = count - steppers
        return [(self._step, self._for_steps)] * steppers + [(self._request, self._for_requests)] * requesters

    def _work(self, look: Callable[[], Work | None], news: threading.Condition) -> None:
        """Do the work that ``look`` returns, until closed."""
        while True:
            with self._lock:
                while (work := look()) is None and not self._closed:
                    news.wait(self._seconds)
                if self._closed:
                    return
            assert work is not None
            work()

    def _step(self) -> Work | None:
        step, self._seconds = self._next_step()
        return step

    def _request(self) -> Work | None:
        return partial(self._carry_out, *self._jobs.popleft()) if self._jobs else None

    def _carry_out(self, future: Future[Any], request: Callable[[], Any]) -> None:
        if future.set_running_or_notify_cancel():
            try:
                result = request()
            except Exception as error:  # noqa: BLE001  # every error is set on the future
                future.set_exception(error)
            else:
                future.set_result(result)
        self.wake()
