"""Where the tasks of a job are carried out: the interface of what schedules them, and what a worker does around one."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cache
from typing import Protocol, TypeVar

from tidemark_spark.cluster.target import ClusterTarget
from tidemark_spark.convert.guard import guarded
from tidemark_spark.model import Job

Common = TypeVar("Common")
Given = TypeVar("Given")
Made = TypeVar("Made")


class Executor(Protocol):
    """Carries out tasks: Spark, or a test in its own process."""

    def on_each(self, work: Callable[[Common, Given], Made], common: Common, tasks: Sequence[Given]) -> list[Made]:
        """``work`` of each task, in any order; a task that fails is tried again as the deployment has it."""

    def finished(self) -> int:
        """How many tasks are done of those that are under way; asked from another thread."""


class SparkOnDemand:
    """Spark, started by the first tasks that there are: it takes seconds, and many a run of a job has none."""

    def __init__(self, target: ClusterTarget, name: str) -> None:
        """``name`` is what Spark's pages show."""
        self._target, self._name = target, name
        self._spark: Executor | None = None

    def on_each(self, work: Callable[[Common, Given], Made], common: Common, tasks: Sequence[Given]) -> list[Made]:
        """See :class:`Executor`."""
        if self._spark is None:
            from tidemark_spark.cluster import session  # which imports pyspark

            self._spark = session.spark(self._name, self._target)
        return self._spark.on_each(work, common, tasks)

    def finished(self) -> int:
        """See :class:`Executor`."""
        return self._spark.finished() if self._spark is not None else 0


def in_worker(work: Callable[[Common, Given], Made], common: Common, task: Given) -> Made:
    """``work`` of one task, in a process that Spark uses for many."""
    with guarded(common, _attempt()) if isinstance(common, Job) else nullcontext():
        made = work(common, task)
    _spare_collector()
    return made


def _attempt() -> int:
    """How often Spark has tried this task before."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return context.attemptNumber() if context else 0


@cache
def _spare_collector() -> None:
    """Let the garbage collector look no more at what stays anyway: after the first task, that is all modules.

    Spark has a worker collect garbage after each task, which took 70 ms of each for the libraries alone.
    """
    gc.collect()
    gc.freeze()
