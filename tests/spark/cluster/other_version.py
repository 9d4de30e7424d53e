"""Sends a task as a driver of VERSION would: to a server of Spark Connect, or to this process's own Spark."""

from __future__ import annotations

import sys
from operator import truediv
from unittest.mock import patch

from tidemark.errors import TaskFailed
from tidemark_spark.cluster import executor, session
from tidemark_spark.cluster.target import ClusterTarget


def main(version: str, remote: str | None = None) -> None:
    """Say the task's result, or why it failed."""
    target = ClusterTarget(None, remote) if remote else ClusterTarget("local[2]")
    with patch.object(executor, "VERSION", version):
        try:
            sys.stdout.write(f"{session.spark('tests', target).on_each(truediv, 3, [2])}")
        except TaskFailed as error:
            sys.stdout.write(str(error))


if __name__ == "__main__":
    main(*sys.argv[1:])
