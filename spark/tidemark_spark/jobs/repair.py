"""The job that repairs a table that another program changed."""

from __future__ import annotations

from tidemark.jobs.registry import RepairOptions
from tidemark.planning import plan_repair
from tidemark_spark.jobs.plans import carry_out, show_preview
from tidemark_spark.jobs.running import RunningJob
from tidemark_spark.rebuild.preview import preview


def work(options: RepairOptions, job: RunningJob) -> int:
    """Repair, or show what would be done; returns the exit code."""
    table = job.table()
    plan = plan_repair(table)
    if options.only_shows:
        return show_preview(table, plan, preview(table, plan), options)
    carry_out(table, plan, job, new=True)
    return 0
