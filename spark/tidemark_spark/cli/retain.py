"""The command line of retention. Spark is not started: nothing is converted."""

from __future__ import annotations

import argparse
import getpass
import socket
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from tidemark.errors import ConfigError, TidemarkError
from tidemark.inspection.agent_sightings import check_begun
from tidemark.planning.retention_report import RetentionReport, Subject, write_report
from tidemark.table.delta_table import Lake
from tidemark_spark.cli.common import lakes_of
from tidemark_spark.retention.raw import retain_raw
from tidemark_spark.retention.table import retain_table


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job; returns the exit code."""
    options = _parser().parse_args(arguments)
    subjects: list[Subject] = [options.only] if options.only else ["table", "raw"]
    try:
        for lake in lakes_of(options.topics, options.topic, options.cluster):
            for subject in subjects:
                report = retain(lake, subject, lake.store.now(), options.by, dry_run=options.dry_run)
                sys.stdout.write(f"{report.to_bytes().decode() if options.json else report.text()}\n")
                sys.stdout.flush()
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except TidemarkError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 1
    return 0


def retain(lake: Lake, subject: Subject, now: datetime, by: str, *, dry_run: bool = False) -> RetentionReport:
    """One topic's retention, with its report written; a dry run unless the topic has opted in.

    Raises:
        NeverSeen: there is no table, and no agent was ever seen that could upload anything.
    """
    check_begun(lake)
    dry_run = dry_run or not lake.topic.retention.apply
    report = (retain_table if subject == "table" else retain_raw)(lake, now, by, dry_run=dry_run)
    write_report(lake, report)
    return report


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="retain.py",
        description="Take past dates from tables, and remove past raw segments. Only topics with retention.apply: true "
        "lose anything, and only what a report named a day before.",
        epilog="Example: spark-submit retain.py --topics include/topics.yaml --topic orders --only raw --dry-run",
    )
    parser.add_argument("--topics", type=Path, required=True, metavar="FILE", help="the topics file")
    parser.add_argument("--topic", action="append", metavar="NAME", help="repeatable (default: all of the file)")
    parser.add_argument("--cluster", help="needed where two clusters have a topic's name")
    parser.add_argument("--only", choices=["table", "raw"], help="one of both: each may have credentials of its own")
    parser.add_argument("--dry-run", action="store_true", help="only tell what would go, and why the rest stays")
    parser.add_argument("--by", default=f"{getpass.getuser()}@{socket.gethostname()}", help="whose word it is")
    parser.add_argument("--json", action="store_true", help="print the reports as JSON, one a line")
    return parser
