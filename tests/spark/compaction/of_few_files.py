"""The job of compaction, which merges two files of an open date."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from unittest.mock import patch

from tidemark.planning import plan_compaction
from tidemark_spark.cli import compact
from tidemark_spark.model import Executor


def main(arguments: Sequence[str] | None = None, executor: Executor | None = None) -> int:
    """Run the job, on Spark unless ``executor`` does it; returns the exit code."""
    with patch.object(compact, "plan_compaction", partial(plan_compaction, files=2)):
        return compact.main(arguments, executor)


if __name__ == "__main__":
    sys.exit(main())
