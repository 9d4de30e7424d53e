"""Spark: it schedules tasks, runs them again where a worker dies, and brings back their outcomes."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Final, TypeVar

from pyspark import SparkConf, SparkContext

from tidemark.runs import Task
from tidemark_spark.differing import Compared, CompareTask, compare
from tidemark_spark.job import Job, Outcome
from tidemark_spark.tally import AuditTask, Tally, examine
from tidemark_spark.task import convert

Common = TypeVar("Common")
Given = TypeVar("Given")
Made = TypeVar("Made")

SETTINGS: Final = {
    # Over TCP each task waits some 20 ms for acknowledgements that the kernel delays.
    "spark.python.unix.domain.socket.enabled": "true",
}
"""What the job wants of Spark, unless the deployment says otherwise."""


def context(name: str, master: str | None = None) -> SparkContext:
    """The Spark context of this process.

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
    return found


def execute_on(spark: SparkContext, job: Job, tasks: Sequence[Task]) -> list[Outcome]:
    """One Spark task for each of ``tasks``."""
    return on_each(spark, convert, job, tasks)


def examine_on(spark: SparkContext, job: Job, tasks: Sequence[AuditTask]) -> list[Tally]:
    """One Spark task for each of ``tasks``."""
    return on_each(spark, examine, job, tasks)


def compare_on(spark: SparkContext, job: Job, tasks: Sequence[CompareTask]) -> list[Compared]:
    """One Spark task for each of ``tasks``."""
    return on_each(spark, compare, job, tasks)


def on_each(
    spark: SparkContext, work: Callable[[Common, Given], Made], common: Common, tasks: Sequence[Given]
) -> list[Made]:
    """``work`` of each task; what all of them share is sent once to each worker."""
    shared = spark.broadcast(common)
    try:
        return spark.parallelize(tasks, len(tasks)).map(lambda task: in_worker(work, shared.value, task)).collect()
    finally:
        shared.destroy()


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
