"""Wall time, CPU and peak memory of a whole process tree, and tables with medians and spreads."""

from __future__ import annotations

import os
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psutil

MB = 1e6


@dataclass(frozen=True)
class Usage:
    """``wall`` and ``cpu`` in seconds, ``peak`` in bytes (proportional set sizes over the tree)."""

    wall: float
    cpu: float
    peak: int


@dataclass(frozen=True)
class Row:
    """A line of the table: the ``values`` of all repetitions, in ``unit``; ``note`` states the conditions."""

    part: str
    name: str
    unit: str
    values: tuple[float, ...]
    note: str = ""

    @property
    def median(self) -> float:
        """The middle value."""
        return statistics.median(self.values)

    def cells(self) -> tuple[str, ...]:
        """Texts of the line: part, name, median, spread, unit, note."""
        spread = f"{min(self.values):.3g} to {max(self.values):.3g}" if len(self.values) > 1 else "one run"
        return self.part, self.name, f"{self.median:.3g}", spread, self.unit, self.note


class TreeMeter:
    """Samples a process and its descendants until stopped: the last CPU seconds of each process, and peak memory.

    Summing up memory costs as much as a small program, so ``interval``, in seconds, should be no shorter than needed.
    """

    def __init__(self, pid: int, *, interval: float) -> None:
        self._root = psutil.Process(pid)
        self._interval = interval
        self._cpu: dict[int, float] = {}
        self._peak = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Self:
        self._look()
        self._before = self.cpu
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._look()

    @property
    def cpu(self) -> float:
        """CPU seconds of all sampled processes, over their whole lives."""
        return sum(self._cpu.values())

    @property
    def used(self) -> float:
        """CPU seconds since the meter was entered."""
        return self.cpu - self._before

    @property
    def peak(self) -> int:
        """Largest memory seen, in bytes."""
        return self._peak

    def _sample(self) -> None:
        while not self._stop.wait(self._interval):
            self._look()

    def _look(self) -> None:
        total = 0
        with suppress(psutil.NoSuchProcess):
            for process in [self._root, *self._root.children(recursive=True)]:
                with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                    times = process.cpu_times()
                    self._cpu[process.pid] = times.user + times.system
                    total += process.memory_full_info().pss
        self._peak = max(self._peak, total)


def metered(action: Callable[[], object]) -> Usage:
    """Run ``action``, and measure this process with its descendants."""
    with TreeMeter(os.getpid(), interval=0.5) as meter:
        started = time.perf_counter()
        action()
        wall = time.perf_counter() - started
    return Usage(wall, meter.used, meter.peak)


def run(command: Sequence[str | Path], *, env: Mapping[str, str], log: Path) -> Usage:
    """Run a command to its end, with CPU according to the kernel or samples, and memory from samples.

    Raises:
        RuntimeError: the command failed; the message names its log.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        started = time.perf_counter()
        child = subprocess.Popen(
            [str(part) for part in command], env=dict(env), stdout=output, stderr=subprocess.STDOUT
        )
        with TreeMeter(child.pid, interval=0.02) as meter:
            _, status, usage = os.wait4(child.pid, 0)
            wall = time.perf_counter() - started
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        raise RuntimeError(f"{command[0]} ended with {child.returncode}; see {log}")
    # The kernel counts descendants that were waited for, which Spark's Python workers never are. Its own peak
    # (ru_maxrss) would be this process's: a child begins as its copy.
    return Usage(wall, max(usage.ru_utime + usage.ru_stime, meter.cpu), meter.peak)


def table(rows: Sequence[Row]) -> str:
    """Markdown table of the rows."""
    head = ("part", "measured", "median", "spread", "unit", "note")
    lines = [head, tuple("---" for _ in head), *(row.cells() for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"
