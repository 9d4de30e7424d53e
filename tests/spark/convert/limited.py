"""A job with the limits of tests: ``limited.py JOB MEMORY SECONDS RATE``, then the job's own arguments."""

from __future__ import annotations

import sys
from unittest.mock import patch

from tidemark_spark.jobs.running import run_job
from tidemark_spark.model import StepLimits


def main(job: str, memory: str, seconds: str, rate: str, *arguments: str) -> int:
    """Run the job, whose topic has the limit of a batch."""

    def limits(batch: int) -> StepLimits:
        return StepLimits(batch, int(memory), float(seconds), int(rate))

    with patch.object(StepLimits, "of", limits):
        return run_job(job, arguments)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
