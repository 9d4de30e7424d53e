"""What executors send to workers, and the code around a task in a worker.

What a driver sends is pickled, so a worker of another version would read it wrongly, or not at all. Each task names the
driver's version, and a worker compares it with its own before it unpickles anything.
"""

from __future__ import annotations

import gc
import pickle
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tidemark.errors import TaskFailed
from tidemark.installation import VERSION
from tidemark_spark.convert.guard import guarded
from tidemark_spark.model import Common, Given, Job, Made, check_driver

if TYPE_CHECKING:
    from pyspark import Broadcast

_ERROR: Final = re.compile(r"^(?:\s*E?\s*)?tidemark\.errors\.(\w+): (.*)$", re.MULTILINE)
"""The last line of a traceback in a worker with one of Tidemark's errors."""


def worker_error(report: str) -> TaskFailed | None:
    """Tidemark's error that ended a task for good, parsed from Spark's ``report``; None for another error."""
    errors = _ERROR.findall(report)
    return TaskFailed(f"{errors[-1][0]}: {errors[-1][1]}") if errors else None


class Shipment(NamedTuple):
    """Work and tasks on their way to workers, pickled each for itself; ``driver`` is the driver's version."""

    driver: str
    shared: bytes
    tasks: list[bytes]

    @classmethod
    def of(cls, work: Callable[[Common, Given], Made], common: Common, tasks: Sequence[Given]) -> Shipment:
        """The shipment of ``tasks``, which share ``work`` and ``common``."""
        return cls(VERSION, pickle.dumps((work, common)), [pickle.dumps(task) for task in tasks])


def in_worker(driver: str, shared: bytes | Broadcast[bytes], task: bytes) -> Any:
    """Result of a :class:`Shipment`'s work for one task, in a process that Spark reuses.

    Its parameters stay as they are in all versions, so that workers of other versions can refuse.

    Raises:
        ConfigError: this worker has another version than the driver.
    """
    check_driver(driver)
    work, common = _unpickled(shared)
    with bounded(common) if isinstance(common, Job) else nullcontext():
        made = work(common, pickle.loads(task))  # noqa: S301 # the driver's, of this version
    _spare_collector()
    return made


@lru_cache(maxsize=1)
def _unpickled(shared: bytes | Broadcast[bytes]) -> tuple[Callable[[Any, Any], Any], Any]:
    """Work and common part of a shipment, unpickled once in a worker process."""
    work, common = pickle.loads(shared if isinstance(shared, bytes) else shared.value)  # noqa: S301 # likewise
    return work, common


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
