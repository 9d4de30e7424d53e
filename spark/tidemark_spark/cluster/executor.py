"""Where the tasks of a job are carried out: the interface of what schedules them, and what a worker does around one."""

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
"""The last line of a traceback in a worker, where the error is one of ours."""

Common = TypeVar("Common")
Given = TypeVar("Given")
Made = TypeVar("Made")


class Executor(Protocol):
    """Carries out tasks: Spark, or a test in its own process."""

    def on_each(self, work: Callable[[Common, Given], Made], common: Common, tasks: Sequence[Given]) -> list[Made]:
        """``work`` of each task, in any order; a task that fails is tried again as the deployment has it."""

    def finished(self) -> int:
        """How many tasks are done of those that are under way; asked from another thread."""


def worker_error(report: str) -> TaskFailed | None:
    """The error of Tidemark's that ended a task for good, from Spark's ``report`` of it; None if it was another one."""
    found = _ERROR.findall(report)
    return TaskFailed(f"{found[-1][0]}: {found[-1][1]}") if found else None


def in_worker(work: Callable[[Common, Given], Made], common: Common, task: Given) -> Made:
    """``work`` of one task, in a process that Spark uses for many."""
    with bounded(common) if isinstance(common, Job) else nullcontext():
        made = work(common, task)
    _spare_collector()
    return made


def bounded(job: Job) -> AbstractContextManager[None]:
    """Within the limits of ``job``, by how often Spark has tried this task before."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return guarded(job, context.attemptNumber() if context else 0)


@cache
def _spare_collector() -> None:
    """Let the garbage collector look no more at what stays anyway: after the first task, that is all modules.

    Spark has a worker collect garbage after each task, which took 70 ms of each for the libraries alone.
    """
    gc.collect()
    gc.freeze()
