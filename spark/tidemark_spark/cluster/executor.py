"""The interface of executors of tasks, and the code around a task in a worker."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Final, Protocol, TypeVar

from tidemark.errors import TaskFailed
from tidemark_spark.convert.guard import guarded
from tidemark_spark.model import Job

_ERROR: Final = re.compile(r"^(?:\s*E?\s*)?tidemark\.errors\.(\w+): (.*)$", re.MULTILINE)
"""The last line of a traceback in a worker with one of Tidemark's errors."""

Common = TypeVar("Common")
Given = TypeVar("Given")
Made = TypeVar("Made")


class Executor(Protocol):
    """Runs tasks: Spark, or a test's own process."""

    def on_each(self, work: Callable[[Common, Given], Made], common: Common, tasks: Sequence[Given]) -> list[Made]:
        """Results of ``work`` for each task, in any order; a failed task is repeated as the deployment configures."""

    def finished(self) -> int:
        """Number of completed tasks of the running ones; called from another thread."""


def worker_error(report: str) -> TaskFailed | None:
    """Tidemark's error that ended a task for good, parsed from Spark's ``report``; None for another error."""
    errors = _ERROR.findall(report)
    return TaskFailed(f"{errors[-1][0]}: {errors[-1][1]}") if errors else None


def in_worker(work: Callable[[Common, Given], Made], common: Common, task: Given) -> Made:
    """Result of ``work`` for one task, in a process that Spark reuses."""
    with bounded(common) if isinstance(common, Job) else nullcontext():
        made = work(common, task)
    _spare_collector()
    return made


def bounded(job: Job) -> AbstractContextManager[None]:
    """The limits of ``job`` as a context, given how often Spark has tried this task before."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return guarded(job, context.attemptNumber() if context else 0)


@cache
def _spare_collector() -> None:
    """Exempt permanent objects, after the first task all modules, from garbage collection.

    Spark has a worker collect garbage after each task, which took 70 ms each time for the libraries alone.
    """
    gc.collect()
    gc.freeze()
