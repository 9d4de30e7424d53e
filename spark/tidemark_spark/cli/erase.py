"""The command line of erasure."""

from __future__ import annotations

import argparse
import getpass
import socket
from collections.abc import Sequence

from tidemark.erasure.secret import secrets
from tidemark.table.delta_table import TopicTable
from tidemark_spark.cli.common import add_some_topics, begun, executor_of, job_parser, on_each_table, run_job, show
from tidemark_spark.cluster.target import add_options
from tidemark_spark.erasure_pass import Pass, erase
from tidemark_spark.model import Executor


def main(arguments: Sequence[str] | None = None, executor: Executor | None = None) -> int:
    """Run the job, on Spark unless ``executor`` does it; returns the exit code."""
    options = _parser().parse_args(arguments)
    return run_job("erase", options, lambda _lineage: _erase(options, executor))


def _erase(options: argparse.Namespace, executor: Executor | None) -> int:
    executor = executor_of(options, executor, "erase")

    def erased(table: TopicTable) -> int:
        work = Pass(begun(table), options.by, secrets, executor)
        report = erase(work, dry_run=options.dry_run)
        show(report.to_bytes().decode() if options.json else report.text())
        return int(any(request.status == "refused" for request in report.requests))

    return on_each_table(options, erased)


def _parser() -> argparse.ArgumentParser:
    parser = job_parser(
        "erase.py",
        "Carry out the approved requests for erasure: mask what they name, and take it out of table and raw.",
        "--topic orders --dry-run",
    )
    add_some_topics(parser)
    add_options(parser)
    parser.add_argument(
        "--dry-run", action="store_true", help="count what the requests find, also those that nobody has approved"
    )
    parser.add_argument("--by", default=f"{getpass.getuser()}@{socket.gethostname()}", help="the name in the reports")
    parser.add_argument("--json", action="store_true", help="print the reports as JSON, one a line")
    return parser
