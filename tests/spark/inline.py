"""Tidemark's Spark jobs without Spark: the same programs, their tasks carried out one after the other in this process.

``python -m tests.spark.inline [spark-submit's options] JOB.py [the job's]`` takes spark-submit's command line, so that
an executable that runs it can stand in for spark-submit where tests are of what starts jobs.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tidemark_spark.cluster import session


class Inline:
    """What :class:`tidemark_spark.cluster.session.Spark` promises."""

    def on_each(self, work: Callable[[Any, Any], Any], common: Any, tasks: Sequence[Any]) -> list[Any]:
        """One after the other."""
        return [work(common, task) for task in tasks]

    def finished(self) -> int:
        """Nobody asks within so short a time."""
        return 0


def main(argv: Sequence[str]) -> None:
    """Run the job that ``argv`` names."""
    at = next(n for n, word in enumerate(argv) if word.endswith(".py") and "/jobs/" in word)
    session.spark = lambda *_: Inline()
    sys.argv = [str(word) for word in argv[at:]]
    sys.path.insert(0, str(Path(argv[at]).parent))
    runpy.run_path(argv[at], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
