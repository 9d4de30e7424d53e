"""Runs a few requests of the packer at the same time, in threads of its own, so that they wait for no seal."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection

from uploader_agent.runtime import Runtime

SLOTS = 8


def run_all(tasks: Collection[Callable[[], object]], runtime: Runtime) -> None:
    """Run ``tasks``, up to :data:`SLOTS` at a time, and return when all have ended. They must not raise."""
    left = deque(tasks)

    def work() -> None:
        while True:
            try:
                task = left.popleft()
            except IndexError:
                return
            task()

    others = [runtime.thread(f"pack-{number}", work) for number in range(1, min(SLOTS, len(left)))]
    for thread in others:
        thread.start()
    work()
    for thread in others:
        thread.join()
