"""The job that parses quarantined records again."""

from __future__ import annotations

from tidemark.jobs.registry import ReplayOptions
from tidemark.planning import plan_replay
from tidemark_spark.jobs.plans import carry_out, show_preview
from tidemark_spark.jobs.running import RunningJob
from tidemark_spark.rebuild.preview import preview


def work(options: ReplayOptions, job: RunningJob) -> int:
    """Parse the records again, or show what would be done; returns the exit code."""
    dates = ["" if dt == "none" else dt.isoformat() for dt in options.dt]
    table = job.table()
    plan = plan_replay(table, dates or None)
    if options.only_shows:
        return show_preview(table, plan, preview(table, plan), options)
    carry_out(table, plan, job, new=True)
    return 0
