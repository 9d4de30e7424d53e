"""Spark: schedules tasks, repeats them when a worker dies, and returns their results."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import Final

from py4j.protocol import Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException

from tidemark.errors import SparkUnavailable
from tidemark_spark.cluster.executor import Shipment, in_worker, worker_error
from tidemark_spark.cluster.target import ClusterTarget
from tidemark_spark.model import Common, Executor, Given, Made

_SOCKETS: Final = "spark.python.unix.domain.socket.enabled"
SETTINGS: Final = {
    # Over TCP each task waits some 20 ms for acknowledgements that the kernel delays.
    _SOCKETS: "true",
    # Memory that Arrow's allocator reserves and does not use must not count as a worker's memory.
    "spark.executorEnv.MIMALLOC_ARENA_EAGER_COMMIT": "0",
    # JVMs only schedule: their second compiler costs more than it saves. A deployment's extraJavaOptions come after
    # these, and win. Under spark-submit the driver's JVM runs already: its submitter gives it the option.
    "spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.executor.defaultJavaOptions": "-XX:TieredStopAtLevel=1",
}
"""Spark settings of the jobs, unless the deployment sets others."""

_LOCAL: Final = re.compile(r"local(?:\[([^,\]]+)\])?")
_TRIES: Final = 4
"""Tries of a task, as on a cluster by default; the last two have less memory."""


def submitted() -> SparkConf:
    """Settings of spark-submit, which only its JVM knows; empty if it did not start this process."""
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        SparkContext._ensure_initialized()  # a context would do so too, but would fix the master
    return SparkConf()


def trying(master: str) -> str:
    """``master`` with repeated tries of a task: a local master tries each task once by default."""
    local = _LOCAL.fullmatch(master)
    return f"local[{local[1] or 1},{_TRIES}]" if local else master


class Classic:
    """A driver in this process."""

    def __init__(self, context: SparkContext) -> None:
        self.context = context

    @classmethod
    def start(cls, name: str, master: str | None = None) -> Classic:
        """Start Spark's driver, once in a process.

        ``master`` is for processes that spark-submit did not start; it defaults to all cores of this machine.

        Raises:
            SparkUnavailable: there is no such master, or no Java.
        """
        conf = submitted().setAppName(name)
        for key, value in SETTINGS.items():
            # On YARN a socket would be in the container's folder: longer than the 107 bytes that its path may have.
            if key != _SOCKETS or (master or conf.get("spark.master")) != "yarn":
                conf.setIfMissing(key, value)
        if master or not conf.contains("spark.master"):
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
            conf.setMaster(master or "local[*]")
        conf.setMaster(trying(conf.get("spark.master") or "local[*]"))
        try:
            context = SparkContext.getOrCreate(conf)
        except (PySparkException, Py4JJavaError) as error:
            reason = str(error.java_exception.toString() if isinstance(error, Py4JJavaError) else error).splitlines()[0]
            rule = "does Java run here, and is Spark's master right (--master, or spark-submit's)?"
            raise SparkUnavailable(f"Spark did not start: {reason}; {rule}") from error
        context.setLogLevel("WARN")
        return cls(context)

    def on_each(self, work: Callable[[Common, Given], Made], common: Common, tasks: Sequence[Given]) -> list[Made]:
        """Results of ``work`` for each task; ``common`` is sent once to each worker.

        Raises:
            TaskFailed: a task failed for good with one of Tidemark's errors.
        """
        driver, packed, pickled = Shipment.of(work, common, tasks)
        shared = self.context.broadcast(packed)
        try:
            partitioned = self.context.parallelize(pickled, len(pickled))
            return partitioned.map(lambda task: in_worker(driver, shared.value, task)).collect()
        except Py4JJavaError as error:
            if failure := worker_error(str(error)):
                raise failure from error
            raise
        finally:
            shared.destroy()

    def finished(self) -> int:
        """Number of completed tasks of the running stages."""
        tracker = self.context.statusTracker()
        stages = (tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds())
        return sum(stage.numCompletedTasks for stage in stages if stage)


def spark(name: str, target: ClusterTarget) -> Executor:
    """Spark on ``target``; ``name`` is shown on its pages."""
    if target.remote is None:
        return Classic.start(name, target.master)
    from tidemark_spark.cluster.connect_client import Connected

    return Connected.to(target.remote, name)
