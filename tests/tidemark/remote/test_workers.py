"""The threads of the tier: who is woken by what."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Queue

import pytest

from tidemark.remote.reader.tier import ThreadPool, Work

SECONDS = 30.0
"""How long a thread may take that was woken."""


class Asked:
    """Says that there is no step, and tells each time that it is asked; ``work`` is given out once."""

    def __init__(self) -> None:
        self.times: Queue[str] = Queue()
        self.work: Work | None = None

    def __call__(self) -> tuple[Work | None, float | None]:
        self.times.put(threading.current_thread().name)
        work, self.work = self.work, None
        return work, None

    def again(self) -> str:
        """Wait until it is asked once more; returns the thread that did."""
        return self.times.get(timeout=SECONDS)


@contextmanager
def waiting(count: int) -> Iterator[tuple[ThreadPool, Asked]]:
    """Workers of which those that step have found nothing to do."""
    asked = Asked()
    workers = ThreadPool(count, threading.RLock(), asked)
    try:
        for _ in range(max(1, count // 4)):
            asked.again()
        yield workers, asked
    finally:
        workers.close(SECONDS)


@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_a_request_is_carried_out_and_then_steps_are_looked_for(count: int) -> None:
    with waiting(count) as (workers, asked):
        future = workers.submit(lambda: threading.current_thread().name)
        thread = future.result(SECONDS)
        assert (asked.again() == thread) == (count == 1)


@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_a_step_is_made_when_there_is_news(count: int) -> None:
    made = threading.Event()
    with waiting(count) as (workers, asked):
        asked.work = made.set
        workers.wake()
        assert made.wait(SECONDS)


def test_requests_are_carried_out_at_the_same_time() -> None:
    together = threading.Barrier(3)
    with waiting(4) as (workers, _):
        futures = [workers.submit(lambda: together.wait(SECONDS)) for _ in range(3)]
        assert sorted(future.result(SECONDS) for future in futures) == [0, 1, 2]


@pytest.mark.parametrize("count", [1, 4])
def test_closing_ends_all_threads(count: int) -> None:
    before = set(threading.enumerate())
    with waiting(count) as (workers, _):
        begun = set(threading.enumerate()) - before
        assert len(begun) == count
        workers.close(SECONDS)
        assert not any(thread.is_alive() for thread in begun)
        assert workers.submit(lambda: None).cancelled()
