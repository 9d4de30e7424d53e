"""The CPU time of tests, by the kind of what has used it.

Machines differ by a factor of two, and one machine does over a day. So a fixed piece of work, the loop, is timed all
the while, and a cost is also told in loops.
"""

from __future__ import annotations

import os
import resource
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.support.tiers import KINDS, kind_of_program, kinds_of

PROPERTY = "cpu"
"""The name of a test's property with its cost: seconds by kind, and seconds of a loop at that time as ``loop``."""
TESTS, PROGRAMS, COLLECTION = "tests", "programs", "collection"
"""Kinds beside those of servers: pytest's own processes, programs that are no servers, and the search for tests."""

_LOOP_STEPS: Final = 800_000
_LOOP_EVERY: Final = 20.0
_LOOK_EVERY: Final = 1.0
_LOOK_AT_ONCE: Final = 0.02
"""Seconds of CPU time of ended children that are worth a look at the others."""
_TICKS: Final = os.sysconf("SC_CLK_TCK")


def loop_seconds() -> float:
    """The CPU time that the loop takes now."""
    total, begin = 0, time.process_time()
    for number in range(_LOOP_STEPS):
        total = (total * 31 + number) & 0xFFFFFFFF
    return time.process_time() - begin


class Process(NamedTuple):
    """A process as the kernel tells of it: an id that is given only once, its parent, and seconds of CPU time.

    ``reaped`` is the time of its own children that have ended.
    """

    key: tuple[int, str]
    parent: int
    own: float
    reaped: float


def processes() -> list[Process]:
    """All processes of the machine that run now."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                text = (folder / "stat").read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue  # it has ended
            fields = text.rpartition(")")[2].split()  # the name of a program may have blanks
            own, reaped = (sum(map(int, fields[at : at + 2])) / _TICKS for at in (11, 13))
            found.append(Process((int(folder.name), fields[19]), int(fields[1]), own, reaped))
    return found


def _program_kind(pid: int) -> str | None:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return None
    words = [word for word in words if word]
    if len(words) == 1:
        words = words[0].split()  # Airflow's processes give themselves titles
    scripts = (words, words[1:])  # the latter are those of an interpreter
    return next((kind for named in scripts if named and (kind := kind_of_program(named))), None)


@dataclass
class _Child:
    """A child of this process that lives: its kind, and the CPU time that was counted, with all below it."""

    kind: str | None
    counted: float = 0.0


class CpuMeter:
    """Gives each test its cost as a property. What a server does meanwhile counts for its kind.

    What has ended since the last look counts for the costliest kind of the test that ran.
    """

    def __init__(self) -> None:
        self._children: dict[tuple[int, str], _Child] = {}
        self._own = self._reaped = 0.0
        self._looked = self._looped = float("-inf")
        self._loop = 0.0
        self._next: defaultdict[str, float] = defaultdict(float)

    def pytest_collection_finish(self) -> None:
        """Count what was needed until here."""
        self._own = time.process_time()
        self._reaped = _of_ended_children()
        self._next[COLLECTION] += self._own

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> object:
        """Note the cost once the test, and whatever ends with it, has ended."""
        if call.when == "teardown":
            item.user_properties.append((PROPERTY, self.cost(item)))
        return (yield)

    def cost(self, item: pytest.Item) -> dict[str, float]:
        """What has been needed since this was called last, by kind, and seconds of a loop as ``loop``."""
        if time.monotonic() - self._looped > _LOOP_EVERY:
            self._looped = time.monotonic()
            own = time.process_time()
            self._loop = loop_seconds()
            self._own += time.process_time() - own
        cost, self._next = self._next, defaultdict(float)
        own = time.process_time()
        cost[TESTS] += own - self._own
        self._own = own
        ended = _of_ended_children() - self._reaped
        if ended > _LOOK_AT_ONCE or time.monotonic() - self._looked > _LOOK_EVERY:
            self._reaped += ended
            self._look(cost, ended, next((kind for kind in KINDS if kind in kinds_of(item)), PROGRAMS))
        return {**{kind: round(seconds, 4) for kind, seconds in cost.items()}, "loop": self._loop}

    def look(self) -> None:
        """Have the next call of :meth:`cost` look at each process, which is else done once a second."""
        self._looked = float("-inf")

    def _look(self, cost: defaultdict[str, float], ended: float, kind: str) -> None:
        self._looked = time.monotonic()
        below: dict[int, list[Process]] = {}
        for process in processes():
            below.setdefault(process.parent, []).append(process)
        living: dict[tuple[int, str], _Child] = {}
        for process in below.get(os.getpid(), []):
            child = living[process.key] = self._children.pop(process.key, _Child(None))
            family = _family(process, below)
            child.kind = child.kind or next(filter(None, (_program_kind(one.key[0]) for one in family)), None)
            spent = sum(one.own + one.reaped for one in family)
            cost[child.kind or PROGRAMS] += max(0.0, spent - child.counted)
            child.counted = max(spent, child.counted)
        cost[kind] += max(0.0, ended - sum(child.counted for child in self._children.values()))
        self._children = living


def _family(process: Process, below: dict[int, list[Process]]) -> list[Process]:
    found = [process]
    for one in found:
        found += below.get(one.key[0], [])
    return found


def _of_ended_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
