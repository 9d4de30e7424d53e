"""Wait until Spark says that one of two tasks is done, while the other waits for that. FOLDER is where they meet.

Spark is where ``SPARK_REMOTE`` says, or here.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from threading import Thread

from tests.support.waiting import wait_until
from tidemark_spark.cluster.session import spark
from tidemark_spark.cluster.target import ClusterTarget


def work(folder: str, number: int) -> int:
    """The second task ends when it may."""
    if number:
        wait_until((Path(folder) / "told").exists, what="the other task to be told of")
    return number


def main(folder: str) -> None:
    """Print what both tasks made."""
    from tests.spark.half_done import work as importable

    remote = os.environ.get("SPARK_REMOTE")
    there = spark("half done", ClusterTarget(None if remote else "local[2]", remote))

    def tell() -> None:
        wait_until(lambda: there.finished() == 1, what="a task to be done")
        (Path(folder) / "told").touch()

    asks = Thread(target=tell, daemon=True)
    asks.start()
    sys.stdout.write(f"{sorted(there.on_each(importable, folder, [0, 1]))}\n")
    asks.join()


if __name__ == "__main__":
    main(sys.argv[1])
