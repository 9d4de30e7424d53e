"""The command line of the audit job."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import date, timedelta

from tidemark.errors import ConfigError, MirrorError
from tidemark.formats.table.audit_report import MAX_FINDINGS, AuditFinding, AuditReport
from tidemark.inspection.agent_sightings import check_begun
from tidemark.openlineage.upkeep import of_audit
from tidemark.table.delta_table import TopicTable
from tidemark.timestamps import utc_now
from tidemark_spark.audit.run import audit, change_verdict, passed_since, write_report
from tidemark_spark.cli.common import (
    add_since,
    add_some_topics,
    executor_of,
    job_parser,
    on_each_table,
    run_job,
    show,
)
from tidemark_spark.cluster.target import add_options
from tidemark_spark.mirror.catalog import open_catalog
from tidemark_spark.mirror.check import check_mirror
from tidemark_spark.mirror.mirrored_table import MirroredTable
from tidemark_spark.model import Executor
from tidemark_spark.openlineage.recorder import Recorder


def main(arguments: Sequence[str] | None = None, executor: Executor | None = None) -> int:
    """Run the job, on Spark unless ``executor`` does it; returns the exit code."""
    options = _parser().parse_args(arguments)
    return run_job("audit", options, lambda lineage: _audit(options, executor, lineage))


def _audit(options: argparse.Namespace, executor: Executor | None, lineage: Recorder) -> int:
    dates = _dates(options)
    executor = executor_of(options, executor, f"audit {' '.join((options.topic or ())[:3])}".strip())

    def audited(table: TopicTable) -> int:
        if options.since is not None and passed_since(table, dates, options.since):
            return 0
        return 0 if _audited(table, executor, dates, lineage, as_json=options.json) else 1

    return on_each_table(options, audited)


def _parser() -> argparse.ArgumentParser:
    parser = job_parser(
        "audit.py", "Prove tables equal to raw and to their evidence.", "--topic orders --dt 2026-11-20"
    )
    add_some_topics(parser)
    add_options(parser)
    parser.add_argument("--dt", action="append", default=[], metavar="DATE", help="a date to audit; repeatable")
    parser.add_argument("--from", dest="first", metavar="DATE", help="first date to audit")
    parser.add_argument("--to", dest="last", metavar="DATE", help="last date to audit")
    add_since(parser, "these dates")
    parser.add_argument("--json", action="store_true", help="print the reports as JSON, one a line")
    return parser


def _dates(options: argparse.Namespace) -> list[str]:
    if (options.first is None) != (options.last is None):
        raise ConfigError("audit.py", [("--from, --to", "both are needed")])
    try:
        days = [date.fromisoformat(dt) for dt in options.dt]
        if options.first or options.last:
            first, last = date.fromisoformat(options.first), date.fromisoformat(options.last)
            days += [first + timedelta(days=day) for day in range((last - first).days + 1)]
    except ValueError as error:
        raise ConfigError("--dt, --from, --to", [("", "must be dates such as 2026-11-20")]) from error
    if not days and (options.first or options.last):
        raise ConfigError("--from, --to", [("", "--to lies before --from")])
    return sorted({day.isoformat() for day in days})


def _audited(table: TopicTable, executor: Executor, dates: Sequence[str], lineage: Recorder, *, as_json: bool) -> bool:
    started = utc_now()
    try:
        found = audit(table, executor, dates)
        check_begun(table, found.ledger_n)
        report: AuditReport = _with_catalogs(table, found)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        change_verdict(table, lambda known: known.without(dates, reason[:1000], started))
        raise
    key = write_report(table, report)
    lineage.note(lambda: of_audit(table, report))
    shown = report.to_bytes().decode() if as_json else f"{report.text()}\nreport: {table.deployment.lake_store}/{key}"
    show(shown)
    return report.passed


def _with_catalogs(table: TopicTable, report: AuditReport) -> AuditReport:
    """``report`` with the differences of catalogs. A catalog that does not answer is not compared."""
    findings: list[AuditFinding] = []
    for settings in table.deployment.catalogs_of(table.topic):
        try:
            mirrored = MirroredTable(table, settings, open_catalog(table.deployment, settings))
            findings += check_mirror(table, settings, mirrored)
        except MirrorError as error:
            sys.stderr.write(f"{table.topic.topic}: not compared with catalog {settings.name}: {error}\n")
    room = MAX_FINDINGS - len(report.findings)
    more = report.more + max(0, len(findings) - room)
    return report.model_copy(update={"findings": (*report.findings, *findings[:room]), "more": more})
