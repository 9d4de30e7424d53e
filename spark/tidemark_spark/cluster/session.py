"""Spark: it schedules tasks, runs them again where a worker dies, and brings back their outcomes."""

from __future__ import annotations

import gc
import os
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cache
from typing import Final, Protocol, TypeVar

from pyspark import SparkConf, SparkContext, TaskContext

from tidemark.formats.plan import ConversionTask
from tidemark_spark.audit.worker import AuditTask, Tally, examine
from tidemark_spark.cluster.target import ClusterTarget
from tidemark_spark.convert.guard import guarded
from tidemark_spark.model import Job, Outcome
from tidemark_spark.rebuild.diff_worker import Compared, CompareTask, compare
from tidemark_spark.worker import convert

Common = TypeVar("Common")
Given = TypeVar("Given")
Made = TypeVar("Made")

SETTINGS: Final = {
    # Over TCP each task waits some 20 ms for acknowledgements that the kernel delays.
    "spark.python.unix.domain.socket.enabled": "true",
    # What Arrow's allocator sets aside and does not use is not to count as memory that a worker takes.
    "spark.executorEnv.MIMALLOC_ARENA_EAGER_COMMIT": "0",
}
"""What the job wants of Spark, unless the deployment says otherwise."""

_LOCAL: Final = re.compile(r"local(?:\[([^,\]]+)\])?")
_TRIES: Final = 4
"""How often a task is tried, as on a cluster by default; the last two of them with less memory."""


def submitted() -> SparkConf:
    """What spark-submit was told, which only its JVM knows; empty if it did not start this process."""
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        SparkContext._ensure_initialized()  # a context would do so as well, but then its master is settled
    return SparkConf()


def trying(master: str) -> str:
    """``master``, so that a task is tried again there: on one machine Spark would try it once unless told."""
    local = _LOCAL.fullmatch(master)
    return f"local[{local[1] or 1},{_TRIES}]" if local else master


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
        conf = submitted().setAppName(name)
        for key, value in SETTINGS.items():
            conf.setIfMissing(key, value)
        if master or not conf.contains("spark.master"):
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
            conf.setMaster(master or "local[*]")
        conf.setMaster(trying(conf.get("spark.master") or "local[*]"))
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


def spark(name: str, where: ClusterTarget) -> Spark:
    """Spark as ``where`` says; ``name`` is what its pages show."""
    if where.remote is None:
        return Classic.start(name, where.master)
    from tidemark_spark.cluster.connect_client import Connected

    return Connected.to(where.remote, name)


def execute_on(spark: Spark, job: Job, tasks: Sequence[ConversionTask]) -> list[Outcome]:
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
    with guarded(common, _attempt()) if isinstance(common, Job) else nullcontext():
        made = work(common, task)
    _spare_collector()
    return made


def _attempt() -> int:
    """How often Spark has tried this task before."""
    context = TaskContext.get()
    return context.attemptNumber() if context else 0


@cache
def _spare_collector() -> None:
    """Let the garbage collector look no more at what stays anyway: after the first task, that is all modules.

    Spark has a worker collect garbage after each task, which took 70 ms of each for the libraries alone.
    """
    gc.collect()
    gc.freeze()
