"""The job that proves tables equal to raw and to their evidence."""

from __future__ import annotations

import sys

from tidemark.errors import MirrorError
from tidemark.formats.table.audit_report import MAX_FINDINGS, AuditFinding, AuditReport
from tidemark.inspection.agent_reports import check_begun
from tidemark.jobs.registry import AuditOptions
from tidemark.openlineage.upkeep import of_audit
from tidemark.table.delta_table import TopicTable
from tidemark.timestamps import utc_now
from tidemark_spark.audit.run import audit, change_verdict, passed_since, write_report
from tidemark_spark.jobs.running import RunningJob, show
from tidemark_spark.mirror.catalog import open_catalog
from tidemark_spark.mirror.mirror import check_mirror
from tidemark_spark.mirror.mirrored_table import MirroredTable


def work(options: AuditOptions, job: RunningJob) -> int:
    """Audit the topics; returns 1 if any differs."""
    dates = options.dates

    def audited(table: TopicTable) -> int:
        if options.since is not None and passed_since(table, dates, options.since):
            return 0
        report = _audited(table, job, dates)
        key = write_report(table, report)
        job.lineage.note(lambda: of_audit(table, report))
        text = f"{report.text()}\nreport: {table.deployment.lake_store}/{key}"
        show(report.to_bytes().decode() if options.json_lines else text)
        return 0 if report.passed else 1

    return job.on_each_table(audited)


def _audited(table: TopicTable, job: RunningJob, dates: list[str]) -> AuditReport:
    started = utc_now()
    try:
        found = audit(table, job.executor, dates)
        check_begun(table, found.ledger_n)
        return _with_catalogs(table, found)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        change_verdict(table, lambda known: known.without(dates, reason[:1000], started))
        raise


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
