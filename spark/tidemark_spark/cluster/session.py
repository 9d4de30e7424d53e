"""Spark: schedules tasks, repeats them when a worker dies, and returns their results.

It is imported and started with the first tasks: that takes seconds, and many runs of a job have no task.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from typing_extensions import override

from tidemark.errors import SparkUnavailable
from tidemark_spark.cluster.executor import Shipment, in_worker, worker_error
from tidemark_spark.cluster.target import ClusterTarget
from tidemark_spark.model import Common, Executor, Given, Made

if TYPE_CHECKING:
    from pyspark import SparkConf, SparkContext

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
    from pyspark import SparkConf, SparkContext

    if "PYSPARK_GATEWAY_PORT" in os.environ:
        SparkContext._ensure_initialized()  # a context would do so too, but would fix the master
    return SparkConf()


def trying(master: str) -> str:
    """``master`` with repeated tries of a task: a local master tries each task once by default."""
    local = _LOCAL.fullmatch(master)
    return f"local[{local[1] or 1},{_TRIES}]" if local else master


class Classic(Executor):
    """A driver in this process."""

    def __init__(self, name: str, master: str | None = None) -> None:
        """``name`` is shown on Spark's pages.

        ``master`` is for processes that spark-submit did not start; it defaults to all cores of this machine.
        """
        self._name, self._master = name, master
        self._context: SparkContext | None = None

    @override
    def on_each(self, work: Callable[[Common, Given], Made], common: Common, tasks: Sequence[Given]) -> list[Made]:
        """Results of ``work`` for each task; ``common`` is sent once to each worker.

        Raises:
            SparkUnavailable: there is no such master, or no Java.
            TaskFailed: a task failed for good with one of Tidemark's errors.
        """
        if not tasks:
            return []
        context = self._context = self._context or started(self._name, self._master)
        from py4j.protocol import Py4JJavaError

        driver, packed, pickled = Shipment.of(work, common, tasks)
        shared = context.broadcast(packed)
        try:
            return context.parallelize(pickled, len(pickled)).map(partial(in_worker, driver, shared)).collect()
        except Py4JJavaError as error:
            if failure := worker_error(str(error)):
                raise failure from error
            raise
        finally:
            shared.destroy()

    @override
    def finished(self) -> int:
        if self._context is None:
            return 0
        tracker = self._context.statusTracker()
        stages = (tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds())
        return sum(stage.numCompletedTasks for stage in stages if stage)


def started(name: str, master: str | None) -> SparkContext:
    """Spark's driver, which is started once in a process. Raises SparkUnavailable: no such master, or no Java."""
    from py4j.protocol import Py4JJavaError
    from pyspark import SparkContext
    from pyspark.errors import PySparkException

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
    return context


def spark(name: str, target: ClusterTarget) -> Executor:
    """Spark on ``target``, started with the first tasks; ``name`` is shown on its pages."""
    if target.remote is None:
        return Classic(name, target.master)
    from tidemark_spark.cluster.connect_client import Connected

    return Connected(target.remote, name)
