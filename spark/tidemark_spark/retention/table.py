"""Retention of a table: the dates that are past leave it in one commit, and every offset of theirs keeps a class."""

from __future__ import annotations

from datetime import datetime

from tidemark.errors import PublishError
from tidemark.planning import write_plan
from tidemark.planning.retention import plan_retain
from tidemark.planning.retention_report import RetentionReport, reviewed
from tidemark.table.delta_table import TopicTable
from tidemark_spark.run.driver import run


def retain_table(table: TopicTable, now: datetime, by: str, *, dry_run: bool) -> RetentionReport:
    """Take the dates from the table that are past at ``now`` and that a report named a day ago; tells of all past ones.

    The files stay for those who read an older version, until the vacuum takes them.

    Raises:
        PublishError: the table has moved on meanwhile; run it again.
        TableTampered: somebody changed the table behind Tidemark's back.
    """
    plan, past = plan_retain(table, now)
    before = None if dry_run else reviewed(table, "table", now)
    named = {one.dt for one in before[1].dates} if before else set()
    if named & {one.dt for one in past}:
        plan, _ = plan_retain(table, now, named)
        write_plan(table, plan)
        if run(table, plan, lambda _job, _tasks: []).status != "landed":
            raise PublishError(f"{table.url}: it moved on since attempt {plan.attempt} was planned; run it again")
        went = {*plan.dates, *plan.supersedes}
        past = [one.model_copy(update={"removed": one.dt in went}) for one in past]
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
