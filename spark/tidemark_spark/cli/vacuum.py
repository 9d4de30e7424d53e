"""The command line of vacuuming. Spark is not started: nothing is converted."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from tidemark_spark.cli.common import add_topic, begun_table, exit_code, job_parser, show
from tidemark_spark.vacuum import vacuum


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job; returns the exit code."""
    options = _parser().parse_args(arguments)
    return exit_code(lambda: _vacuum(options))


def _vacuum(options: argparse.Namespace) -> int:
    table = begun_table(options)
    show(vacuum(table, dry_run=options.dry_run).to_bytes().decode())
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = job_parser(
        "vacuum.py",
        "Remove what no reader and no run can need: what dead runs left, and what was replaced long enough ago.",
        "--topic orders --dry-run",
    )
    add_topic(parser)
    parser.add_argument("--dry-run", action="store_true", help="print what would be removed, and do nothing")
    return parser
