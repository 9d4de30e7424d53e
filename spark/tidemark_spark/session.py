"""Spark: it schedules tasks, runs them again where a worker dies, and brings back their outcomes."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Final, Protocol, TypeVar

from pyspark import SparkConf, SparkContext

from tidemark.runs import Task
from tidemark_spark.differing import Compared, CompareTask, compare
from tidemark_spark.job import Job, Outcome
from tidemark_spark.tally import AuditTask, Tally, examine
from tidemark_spark.task import convert
from tidemark_spark.where import Where

Common = TypeVar("Common")
Given = TypeVar("Given")
Made = TypeVar("Made")

SETTINGS: Final = {
    # Over TCP each task waits some 20 ms for acknowledgements that the kernel delays.
    "spark.python.unix.domain.socket.enabled": "true",
}
"""What the job wants of Spark, unless the deployment says otherwise."""


class Spark(Protocol):
    """Where tasks run."""

    def on_each(self, work: Callable[[Common, Given], Made], common: Common, tasks: Sequence[Given]) -> list[Made]:
        """``work`` of each task, in any order; a task that fails is tried again as the deployment has it."""

    def finished(self) -> int:
        """How many tasks are done of those that are under way; asked from another thread."""


class Classic:
    """A driver in this process."""

    def __init__(self, context: SparkContext) -> None:
        self.context = context

    @classmethod
    def start(cls, name: str, master: str | None = None) -> Classic:
        """Spark's driver, once in a process.

        ``master`` is for processes that spark-submit did not start; it defaults to all cores of this machine.
        """
        conf = SparkConf().setAppName(name)
        for key, value in SETTINGS.items():
            conf.setIfMissing(key, value)
        if master or "PYSPARK_GATEWAY_PORT" not in os.environ:
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
            conf.setMaster(master or "local[*]")
        found = SparkContext.getOrCreate(conf)
        found.setLogLevel("WARN")
        return cls(found)

    def on_each(self, work: Callable[[Common, Given], Made], common: Common, tasks: Sequence[Given]) -> list[Made]:
        """``work`` of each task; what all of them share is sent once to each worker."""
        shared = self.context.broadcast(common)
        try:
            partitioned = self.context.parallelize(tasks, len(tasks))
            return partitioned.map(lambda task: in_worker(work, shared.value, task)).collect()
        finally:
            shared.destroy()

    def finished(self) -> int:
        """How many tasks are done of those that are under way."""
        tracker = self.context.statusTracker()
        stages = (tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds())
        return sum(stage.numCompletedTasks for stage in stages if stage)


def spark(name: str, where: Where) -> Spark:
    """Spark as ``where`` says; ``name`` is what its pages show."""
    if where.remote is None:
        return Classic.start(name, where.master)
    from tidemark_spark.connect import Connected

    return Connected.to(where.remote, name)


def execute_on(spark: Spark, job: Job, tasks: Sequence[Task]) -> list[Outcome]:
    """One Spark task for each of ``tasks``."""
    return spark.on_each(convert, job, tasks)


def examine_on(spark: Spark, job: Job, tasks: Sequence[AuditTask]) -> list[Tally]:
    """One Spark task for each of ``tasks``."""
    return spark.on_each(examine, job, tasks)


def compare_on(spark: Spark, job: Job, tasks: Sequence[CompareTask]) -> list[Compared]:
    """One Spark task for each of ``tasks``."""
    return spark.on_each(compare, job, tasks)


def in_worker(work: Callable[[Common, Given], Made], common: Common, task: Given) -> Made:
    """``work`` of one task, in a process that Spark uses for many."""
    made = work(common, task)
    _spare_collector()
    return made


@cache
def _spare_collector() -> None:
    """Let the garbage collector look no more at what stays anyway: after the first task, that is all modules.

    Spark has a worker collect garbage after each task, which took 70 ms of each for the libraries alone.
    """
    gc.collect()
    gc.freeze()
