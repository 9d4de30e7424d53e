"""The command line of vacuuming. Spark is not started: nothing is converted."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from tidemark.openlineage.upkeep import of_vacuum
from tidemark.table.delta_table import TopicTable
from tidemark_spark.cli.common import add_topics, begun, job_parser, on_each_table, run_job, show
from tidemark_spark.openlineage.recorder import Recorder
from tidemark_spark.run.vacuum import vacuum


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job; returns the exit code."""
    options = _parser().parse_args(arguments)
    return run_job("vacuum", options, lambda lineage: _vacuum(options, lineage))


def _vacuum(options: argparse.Namespace, lineage: Recorder) -> int:
    def vacuumed(table: TopicTable) -> int:
        report = vacuum(begun(table), dry_run=options.dry_run)
        removed = (0, 0) if options.dry_run else (len(report.removed), report.bytes)
        lineage.note(lambda: of_vacuum(table, report.ledger_n, *removed))
        show(report.to_bytes().decode())
        return 0

    return on_each_table(options, vacuumed)


def _parser() -> argparse.ArgumentParser:
    parser = job_parser(
        "vacuum.py",
        "Remove objects that no reader and no run can need: leftovers of dead runs, objects replaced long ago, and old "
        "reports.",
        "--topic orders --dry-run",
    )
    add_topics(parser)
    parser.add_argument("--dry-run", action="store_true", help="print what would be removed, and do nothing")
    return parser
