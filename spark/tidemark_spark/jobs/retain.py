"""The job of retention, of tables and of raw."""

from __future__ import annotations

from datetime import datetime
from functools import partial

from tidemark.jobs.registry import RetainOptions
from tidemark.openlineage.upkeep import of_retention
from tidemark.planning.maintenance.retention_report import RetentionReport, Subject, write_report
from tidemark.table.delta_table import TopicTable
from tidemark_spark.jobs.running import RunningJob, begun, show
from tidemark_spark.retention.raw import retain_raw
from tidemark_spark.retention.table import retain_table


def work(options: RetainOptions, job: RunningJob) -> int:
    """Run each topic's retention, and show its reports; returns the exit code."""
    subjects: list[Subject] = [options.only] if options.only else ["table", "raw"]

    def retained(table: TopicTable) -> int:
        for subject in subjects:
            report = retain(table, subject, table.store.now(), options.by, dry_run=options.dry_run)
            job.lineage.note(partial(of_retention, table, report))
            show(report.to_bytes().decode() if options.json_lines else report.text())
        return 0

    return job.on_each_table(retained)


def retain(table: TopicTable, subject: Subject, now: datetime, by: str, *, dry_run: bool = False) -> RetentionReport:
    """Run one topic's retention, and write its report; a dry run unless the topic has opted in.

    Raises:
        NeverSeen: there is no table, and no agent was ever seen that could upload data.
    """
    begun(table)
    dry_run = dry_run or not table.topic.retention.apply
    report = (retain_table if subject == "table" else retain_raw)(table, now, by, dry_run=dry_run)
    write_report(table, report)
    return report
