"""The ingest job, which kills itself with SIGKILL at the point that KILL_AT names."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

from tests.spark.inline import Inline
from tests.support.waiting import wait_until
from tidemark_spark.cluster import session
from tidemark_spark.jobs import plans
from tidemark_spark.jobs.running import run_job
from tidemark_spark.run import commit, driver


def die() -> None:
    """As a crash of the machine would."""
    os.kill(os.getpid(), signal.SIGKILL)


def die_after(module: ModuleType, name: str) -> None:
    """Let nothing follow the function ``name`` of ``module``."""
    function = getattr(module, name)

    def called(*arguments: Any, **options: Any) -> None:
        function(*arguments, **options)
        die()

    patch.object(module, name, called).start()


def die_with_a_file(lake: Path) -> None:
    """Wait for the first data file of a worker, then die while others are at work."""
    wait_until(lambda: any(lake.glob("orders/dt=*/*.parquet")), what="a data file", interval=0.005)
    die()


def main() -> int:
    """Run the job, whose tasks are Spark's."""
    arm(os.environ["KILL_AT"])
    return run_job("ingest")


def without_spark(point: str, arguments: Sequence[str]) -> None:
    """Run the job with its tasks in this process, in which nothing else may run thereafter."""
    arm(point)
    patch.object(session, "spark", lambda *_: Inline()).start()
    sys.exit(run_job("ingest", arguments))


def arm(point: str) -> None:
    """Let this process die there."""
    if point == "plan":
        die_after(plans, "write_plan")
    elif point == "file":
        threading.Thread(target=die_with_a_file, args=(Path(os.environ["LAKE"]),), daemon=True).start()
    elif point == "evidence":
        die_after(driver, "_write_evidence")
    elif point == "ledger":
        die_after(commit, "_written")
    elif point == "commit":
        die_after(commit, "commit")
    elif point == "marks":
        die_after(driver, "update_markers")
    elif point == "result":
        die_after(driver, "_report")


if __name__ == "__main__":
    sys.exit(main())
