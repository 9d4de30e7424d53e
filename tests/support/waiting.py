"""The one place that polls: servers say by answering, not by an event, that they are ready."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

HUNG = 240.0
"""Seconds after which what is waited for has hung, however busy the machine; no passing test depends on it."""


def wait_until(
    probe: Callable[[], bool],
    *,
    what: str,
    timeout: float = HUNG,
    interval: float = 0.1,
    check: Callable[[], None] | None = None,
) -> float:
    """Call ``probe`` until it is true and return the seconds that took.

    The pauses between probes double from 10 ms up to ``interval``. ``check`` runs before every probe and raises if
    waiting has become pointless. TimeoutError names ``what``.
    """
    start, pause = time.monotonic(), min(0.01, interval)
    while True:
        if check is not None:
            check()
        if probe():
            return time.monotonic() - start
        if time.monotonic() - start > timeout:
            raise TimeoutError(f"{what}: not within {timeout:g} s")
        time.sleep(pause)
        pause = min(2 * pause, interval)


@contextmanager
def working_beside(work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Have ``work`` go on in a thread while the block runs; it ends at the event. Raises what it raised."""
    ended = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        working = pool.submit(work, ended)
        try:
            yield
        finally:
            ended.set()
    working.result()
