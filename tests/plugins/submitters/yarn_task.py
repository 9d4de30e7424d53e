"""One try of a task whose job runs on YARN, as a process that can be killed: TRY, then the job's arguments.

What Airflow would keep of an interrupted try is lost: nobody saw the application's id.
"""

from __future__ import annotations

import logging
import signal
import sys
from unittest.mock import patch

from tests.plugins.submitters.platform_server import TASK, Kept, to_its_end
from tidemark_airflow.submitters import waiting
from tidemark_airflow.submitters.base import SparkJob
from tidemark_airflow.submitters.choice import submitter


def main(number: str, *arguments: str) -> None:
    """Run it to its end."""
    logging.basicConfig(level=logging.INFO)
    with patch.object(waiting, "POLL_SECONDS", 0.2), submitter("run_plan.py", {}) as made:

        def killed(*_: object) -> None:
            """As Airflow does it."""
            made.end()
            sys.exit(143)

        signal.signal(signal.SIGTERM, killed)
        job = SparkJob("run_plan.py", arguments, "tidemark-orders", f"token-{number}", TASK)
        sys.stdout.write(f"page {to_its_end(made, job, Kept())}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
