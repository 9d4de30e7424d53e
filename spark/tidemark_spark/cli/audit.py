"""The command line of the audit job."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import date, timedelta
from pathlib import Path

from tidemark.errors import ConfigError, TidemarkError
from tidemark.formats.audit_report import AuditReport
from tidemark.inspection.agent_sightings import check_begun
from tidemark.table.delta_table import Lake
from tidemark.timestamps import utc_now
from tidemark_spark.audit.run import audit, write_report
from tidemark_spark.audit.verdicts import change_verdict
from tidemark_spark.audit.worker import AuditTask, Examine, Tally
from tidemark_spark.cli.common import lakes_of
from tidemark_spark.cluster.target import ClusterTarget, add_options
from tidemark_spark.model import Job


def main(arguments: Sequence[str] | None = None, examine: Examine | None = None) -> int:
    """Run the job, on Spark unless ``examine`` does it; returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        dates = _dates(options)
        lakes = lakes_of(options.topics, options.topic, options.cluster)
        passed = [
            _audited(lake, examine or _on_spark(ClusterTarget.of(options)), dates, options.json) for lake in lakes
        ]
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except TidemarkError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 1
    return 0 if all(passed) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="audit.py", description="Prove tables equal to raw and to their evidence.")
    parser.add_argument("--topics", type=Path, required=True, metavar="FILE", help="the topics file")
    parser.add_argument("--topic", action="append", metavar="NAME", help="repeatable (default: all of the file)")
    parser.add_argument("--cluster", help="needed where two clusters have a topic's name")
    add_options(parser)
    parser.add_argument("--dt", action="append", default=[], metavar="DATE", help="a date to audit; repeatable")
    parser.add_argument("--from", dest="first", metavar="DATE", help="first date to audit")
    parser.add_argument("--to", dest="last", metavar="DATE", help="last date to audit")
    parser.add_argument("--json", action="store_true", help="print the reports as JSON, one a line")
    return parser


def _dates(options: argparse.Namespace) -> list[str]:
    try:
        days = [date.fromisoformat(one) for one in options.dt]
        if options.first or options.last:
            first, last = date.fromisoformat(options.first or ""), date.fromisoformat(options.last or "")
            days += [first + timedelta(days=day) for day in range((last - first).days + 1)]
    except ValueError as error:
        raise ConfigError("--dt, --from, --to", [("", "must be dates such as 2026-11-20")]) from error
    if not days and (options.first or options.last):
        raise ConfigError("--from, --to", [("", "--to lies before --from")])
    return sorted({one.isoformat() for one in days})


def _audited(lake: Lake, examine: Examine, dates: Sequence[str], as_json: bool) -> bool:
    started = utc_now()
    try:
        check_begun(lake)
        report: AuditReport = audit(lake, examine, dates)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        change_verdict(lake, lambda known: known.without(dates, reason[:1000], started))
        raise
    key = write_report(lake, report)
    shown = report.to_bytes().decode() if as_json else f"{report.text()}\nreport: {lake.deployment.lake_store}/{key}"
    sys.stdout.write(f"{shown}\n")
    sys.stdout.flush()
    return report.passed


def _on_spark(where: ClusterTarget) -> Examine:
    def examine(job: Job, tasks: Sequence[AuditTask]) -> list[Tally]:
        """Starts Spark, which takes seconds, and so only when there is something to read."""
        from tidemark_spark.cluster.session import examine_on, spark

        return examine_on(spark(f"tidemark audit {job.topic.topic}", where), job, tasks)

    return examine
