"""Print for NUMBER tasks how many ran, and in how many partitions of Spark, on the server of ``SPARK_REMOTE``."""

from __future__ import annotations

import os
import sys

from pyspark import TaskContext

from tidemark_spark.cluster.session import spark
from tidemark_spark.cluster.target import ClusterTarget


def work(common: int, task: bytes) -> tuple[int, int]:
    """The task's number, and that of its partition."""
    context = TaskContext.get()
    assert context is not None
    return int.from_bytes(task[:common], "big"), context.partitionId()


def main(number: str) -> None:
    """Each task has 16 KiB that cannot be compressed, so that all together are uploaded."""
    from tests.spark.many_tasks import work as importable

    there = spark("many tasks", ClusterTarget(None, os.environ["SPARK_REMOTE"]))
    tasks = [task.to_bytes(4, "big") + os.urandom(16 << 10) for task in range(int(number))]
    made = there.on_each(importable, 4, tasks)
    assert sorted(task for task, _ in made) == list(range(len(tasks)))
    sys.stdout.write(f"{len(made)} {len({partition for _, partition in made})}\n")


if __name__ == "__main__":
    main(sys.argv[1])
