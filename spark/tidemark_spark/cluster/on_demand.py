"""Spark, started when a job has tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from typing_extensions import override

from tidemark_spark.cluster.executor import Common, Executor, Given, Made
from tidemark_spark.cluster.target import ClusterTarget


class SparkOnDemand(Executor):
    """Spark, started with the first tasks: the start takes seconds, and many runs of a job have no task."""

    def __init__(self, target: ClusterTarget, name: str) -> None:
        """``name`` is shown on Spark's pages."""
        self._target, self._name = target, name
        self._spark: Executor | None = None

    @override
    def on_each(self, work: Callable[[Common, Given], Made], common: Common, tasks: Sequence[Given]) -> list[Made]:
        if self._spark is None:
            from tidemark_spark.cluster import session  # which imports pyspark

            self._spark = session.spark(self._name, self._target)
        return self._spark.on_each(work, common, tasks)

    @override
    def finished(self) -> int:
        return self._spark.finished() if self._spark is not None else 0
