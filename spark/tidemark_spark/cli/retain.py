"""The command line of retention. Spark is not started: nothing is converted."""

from __future__ import annotations

import argparse
import getpass
import socket
from collections.abc import Sequence
from datetime import datetime
from functools import partial

from tidemark.inspection.agent_sightings import check_begun
from tidemark.openlineage.upkeep import of_retention
from tidemark.planning.maintenance.retention_report import RetentionReport, Subject, write_report
from tidemark.table.delta_table import TopicTable, committed_ledger
from tidemark_spark.cli.common import add_some_topics, job_parser, on_each_table, run_job, show
from tidemark_spark.openlineage.recorder import Recorder
from tidemark_spark.retention.raw import retain_raw
from tidemark_spark.retention.table import retain_table


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job; returns the exit code."""
    options = _parser().parse_args(arguments)
    return run_job("retain", options, lambda lineage: _retain_all(options, lineage))


def _retain_all(options: argparse.Namespace, lineage: Recorder) -> int:
    subjects: list[Subject] = [options.only] if options.only else ["table", "raw"]

    def retained(table: TopicTable) -> int:
        for subject in subjects:
            report = retain(table, subject, table.store.now(), options.by, dry_run=options.dry_run)
            lineage.note(partial(of_retention, table, report))
            show(report.to_bytes().decode() if options.json else report.text())
        return 0

    return on_each_table(options, retained)


def retain(table: TopicTable, subject: Subject, now: datetime, by: str, *, dry_run: bool = False) -> RetentionReport:
    """Run one topic's retention, and write its report; a dry run unless the topic has opted in.

    Raises:
        NeverSeen: there is no table, and no agent was ever seen that could upload data.
    """
    check_begun(table, committed_ledger(table).n)
    dry_run = dry_run or not table.topic.retention.apply
    report = (retain_table if subject == "table" else retain_raw)(table, now, by, dry_run=dry_run)
    write_report(table, report)
    return report


def _parser() -> argparse.ArgumentParser:
    parser = job_parser(
        "retain.py",
        "Take past dates from tables, and remove past raw segments. Only topics with retention.apply: true lose "
        "anything, and only what a report named a day before.",
        "--topic orders --only raw --dry-run",
    )
    add_some_topics(parser)
    parser.add_argument("--only", choices=["table", "raw"], help="one of both: each may have credentials of its own")
    parser.add_argument(
        "--dry-run", action="store_true", help="only report what would be removed, and why the rest stays"
    )
    parser.add_argument(
        "--by", default=f"{getpass.getuser()}@{socket.gethostname()}", help="the name in the report and the tombstones"
    )
    parser.add_argument("--json", action="store_true", help="print the reports as JSON, one a line")
    return parser
