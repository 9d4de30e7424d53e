"""The job of retention, of tables and of raw: past dates leave a table in one commit, and each offset keeps a class."""

from __future__ import annotations

from datetime import datetime
from functools import partial

from tidemark.errors import PublishError
from tidemark.jobs.registry import RetainOptions
from tidemark.openlineage.upkeep import of_retention
from tidemark.planning import write_plan
from tidemark.planning.maintenance.retention import RetentionReport, Subject, plan_retain, reviewed, write_report
from tidemark.table.delta_table import TopicTable
from tidemark_spark.jobs.running import RunningJob, begun, show
from tidemark_spark.model import CarriedOut
from tidemark_spark.retention.raw import retain_raw
from tidemark_spark.run.driver import run


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


def retain_table(table: TopicTable, now: datetime, by: str, *, dry_run: bool) -> RetentionReport:
    """Remove dates that are past at ``now`` and that a report named a day ago; returns a report of all past dates.

    The files stay for readers of older versions, until the vacuum removes them.

    Raises:
        PublishError: the table has moved on meanwhile; run it again.
        TableTampered: another program changed the table.
    """
    plan, past = plan_retain(table, now)
    before = None if dry_run else reviewed(table, "table", now)
    named = {date.dt for date in before[1].dates} if before else set()
    if named & {date.dt for date in past}:
        plan, _ = plan_retain(table, now, named)
        write_plan(table, plan)
        if run(table, plan, CarriedOut()).status != "landed":
            raise PublishError(f"{table.url}: it moved on since attempt {plan.attempt} was planned; run it again")
        removed = {*plan.dates, *plan.supersedes}
        past = [date.model_copy(update={"removed": date.dt in removed}) for date in past]
    return RetentionReport(
        cluster=table.topic.cluster,
        topic=table.topic.topic,
        table=table.topic.table,
        subject="table",
        at=now,
        by=by,
        window=table.topic.retention.table,
        dry_run=dry_run,
        ledger_n=plan.ledger_n,
        reviewed=before[0] if before else "",
        dates=tuple(past),
    )
