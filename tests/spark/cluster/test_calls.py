"""From a job's beginning to the first record there are few calls, as a reader of a traceback sees them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, NamedTuple

import pytest

from tests.spark.run.test_runs import spread
from tests.spark.world import World
from tidemark_spark.cli import run_plan
from tidemark_spark.cluster import executor, session
from tidemark_spark.convert import conversion, read_ahead


class Held(NamedTuple):
    """A broadcast variable that is here already."""

    value: bytes

    def destroy(self) -> None:
        """Nothing is elsewhere."""


class Here:
    """Spark's context, which carries out all in this process, so that a task's stack has its driver's below."""

    def __init__(self) -> None:
        self._tasks: Sequence[Any] = ()
        self._function: Callable[[Any], Any] = repr

    def broadcast(self, value: bytes) -> Held:
        """Brings nothing."""
        return Held(value)

    def parallelize(self, tasks: Sequence[Any], _partitions: int) -> Here:
        """The tasks."""
        self._tasks = tasks
        return self

    def map(self, function: Callable[[Any], Any]) -> Here:
        """What each becomes."""
        self._function = function
        return self

    def collect(self) -> list[Any]:
        """The results."""
        return [self._function(task) for task in self._tasks]


def own_calls(frame: FrameType | None) -> list[str]:
    """The functions of the jobs' code that lead to ``frame``, the first one first."""
    calls: list[str] = []
    while frame is not None:
        if "/tidemark_spark/" in frame.f_code.co_filename:
            calls.insert(0, frame.f_code.co_name)
        frame = frame.f_back
    return calls


def test_a_job_reads_its_first_record_within_few_calls(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    spread(world)
    world.raw.publish()
    plan = world.plan()
    stacks: list[list[str]] = []
    real = read_ahead.read_ahead

    def noted(*arguments: Any) -> Any:
        stacks.append(own_calls(sys._getframe(1)))
        return real(*arguments)

    monkeypatch.setattr(conversion, "read_ahead", noted)
    monkeypatch.setattr(session, "started", lambda *_: Here())
    monkeypatch.setattr(executor, "_spare_collector", lambda: None)  # this process has other tests to run
    key = world.table.keys.attempt(plan.attempt)
    words = ["--topics", str(world.topics_file), "--topic", "orders", "--plan", key, "--lineage", "off"]
    assert run_plan.main(words) == 0
    assert len(stacks) == len(plan.tasks)
    calls = stacks[0]
    assert calls[calls.index("carry_out") + 1 :] == ["run", "on_each", "in_worker", "converted", "run"]
