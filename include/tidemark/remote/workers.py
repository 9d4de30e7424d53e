"""A few threads that carry out requests and steps, requests first, and never all of them requests.

A thread that waits for a store's answer cannot decode: so one is always left that can.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")
Work = Callable[[], None]


class Workers:
    """``count`` threads. ``next_step`` is asked under ``lock``: work, or seconds until there may be some."""

    def __init__(
        self, count: int, lock: threading.Condition, next_step: Callable[[], tuple[Work | None, float | None]]
    ) -> None:
        self._lock = lock
        self._next_step = next_step
        self._most_requests = max(1, count - 1)
        self._requesting = 0
        self._jobs: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._work, name=f"tidemark-remote-{number}", daemon=True)
            for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, request: Callable[[], T]) -> Future[T]:
        """Have ``request`` carried out; cancelled at once if the workers are closed."""
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                future.cancel()
            else:
                self._jobs.append((future, request))
                self._lock.notify()
        return future

    def close(self, seconds: float) -> None:
        """Begin nothing any more, and wait for the threads at most ``seconds``. A request under way ends by itself."""
        with self._lock:
            self._closed = True
            jobs, self._jobs = self._jobs, deque()
            self._lock.notify_all()
        for future, _ in jobs:
            future.cancel()
        until = time.monotonic() + seconds
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, until - time.monotonic()))

    def _work(self) -> None:
        while (work := self._await()) is not None:
            work()

    def _await(self) -> Work | None:
        """The next thing to do; None once closed."""
        with self._lock:
            while not self._closed:
                if self._jobs and self._requesting < self._most_requests:
                    self._requesting += 1
                    future, request = self._jobs.popleft()
                    return lambda: self._carry_out(future, request)
                step, seconds = self._next_step()
                if step is not None:
                    return step
                self._lock.wait(seconds)
            return None

    def _carry_out(self, future: Future[Any], request: Callable[[], Any]) -> None:
        if future.set_running_or_notify_cancel():
            try:
                result = request()
            except Exception as error:  # noqa: BLE001  # whatever it is, it is told to who waits for the result
                future.set_exception(error)
            else:
                future.set_result(result)
        with self._lock:
            self._requesting -= 1
            self._lock.notify_all()
