"""The job of a live landing, its tasks in this process, which kills itself where the test says."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

from tests.spark.inline import Inline
from tests.spark.killed_driver import die, die_after
from tidemark_spark.cluster import session
from tidemark_spark.jobs import land_live
from tidemark_spark.jobs.running import run_job
from tidemark_spark.live import landing

POINTS = ("plans", "query", "first commit", "commits", "result")


def main(point: str, arguments: Sequence[str]) -> None:
    """Run the job until ``point``."""
    patch.object(session, "spark", lambda *_: Inline()).start()
    # One topic after the other, so that there is a first one.
    patch.object(landing, "in_parallel", lambda function, items: [function(one) for one in items]).start()
    if point == "plans":
        patch.object(landing, "convert_all", lambda *_: die()).start()
    elif point == "query":
        die_after(landing, "convert_all")
    elif point == "first commit":
        die_after(landing, "run")
    elif point == "commits":
        patch.object(land_live, "write_landing", lambda *_: die()).start()
    elif point == "result":
        die_after(land_live, "write_landing")
    else:
        raise ValueError(point)
    sys.exit(run_job("land_live", arguments))


def dies_of(error: type[Exception]) -> Any:
    """A function that raises ``error``, whatever it is given."""

    def raises(*_: object, **__: object) -> None:
        raise error("as the test says")

    return raises
