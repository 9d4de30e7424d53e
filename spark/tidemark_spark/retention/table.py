"""Retention of a table: past dates leave it in one commit, and each of their offsets keeps a class."""

from __future__ import annotations

from datetime import datetime

from tidemark.errors import PublishError
from tidemark.planning import write_plan
from tidemark.planning.maintenance.retention import plan_retain
from tidemark.planning.maintenance.retention_report import RetentionReport, reviewed
from tidemark.table.delta_table import TopicTable
from tidemark_spark.model import CarriedOut
from tidemark_spark.run.driver import run


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
