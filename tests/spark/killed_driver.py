"""The convert job, which kills itself with SIGKILL at the point that KILL_AT names."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tidemark_spark import convert, driver, publish


def die() -> None:
    """As a crash of the machine would."""
    os.kill(os.getpid(), signal.SIGKILL)


def dying_after(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, after which nothing follows."""

    def called(*arguments: Any, **options: Any) -> None:
        function(*arguments, **options)
        die()

    return called


def die_with_a_file(lake: Path) -> None:
    """Wait for the first data file of a worker, then die while others are at work."""
    while not any(lake.glob("orders/dt=*/*.parquet")):
        time.sleep(0.005)
    die()


def main() -> int:
    """Arm the point, and run the job."""
    point = os.environ["KILL_AT"]
    if point == "plan":
        convert.write_plan = dying_after(convert.write_plan)
    elif point == "file":
        threading.Thread(target=die_with_a_file, args=(Path(os.environ["LAKE"]),), daemon=True).start()
    elif point == "evidence":
        driver._write_evidence = dying_after(driver._write_evidence)
    elif point == "ledger":
        publish._written = dying_after(publish._written)
    elif point == "commit":
        publish.commit = dying_after(publish.commit)
    return convert.main()


if __name__ == "__main__":
    sys.exit(main())
