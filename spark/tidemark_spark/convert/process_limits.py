"""Limits of memory and time that the kernel enforces on this process during a step. Linux only."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Final

from tidemark_spark.model import StepLimits

IDLE: Final = 6
"""Real time that a step may take, as a multiple of its processor time, on a busy machine or while it waits."""

TIMERS: Final = {signal.ITIMER_PROF: signal.SIGPROF, signal.ITIMER_REAL: signal.SIGALRM}
"""The timers of a process, and the signals with which the kernel ends it, even in native code."""


def seconds_for(limits: StepLimits, size: int) -> float:
    """Processor time that parsing rows of ``size`` bytes may take."""
    return limits.seconds + size / limits.rate


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """End this process by a signal if the block takes more processor time, or :data:`IDLE` times as much real time."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, IDLE * seconds)
    try:
        yield
    finally:
        for timer in TIMERS:
            signal.setitimer(timer, 0)


@contextmanager
def bounded_memory(more: int) -> Iterator[None]:
    """Limit this process's private memory to ``more`` bytes beyond its current use.

    Python and Arrow then raise MemoryError; other native code may abort. Memory that Arrow's allocator reserves and
    does not use counts as used: about 1 GiB, unless ``MIMALLOC_ARENA_EAGER_COMMIT`` is 0.
    """
    before, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = _pages(5) + more
    resource.setrlimit(resource.RLIMIT_DATA, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (before, hard))


def resident() -> int:
    """Resident memory of this process, in bytes."""
    return _pages(1)


def _pages(field: int) -> int:
    """A field of ``/proc/self/statm``, in bytes: 1 is resident memory, 5 is private memory, used or not."""
    return int(Path("/proc/self/statm").read_text().split()[field]) * resource.getpagesize()


@cache
def goes_first(score: int) -> None:
    """Let the kernel end this process before others if memory runs out; a higher ``score`` ends it sooner."""
    with suppress(OSError):  # the score may be higher already, and lowering it needs privileges
        Path("/proc/self/oom_score_adj").write_text(f"{score}")
