"""The job that makes dates of a table again from raw."""

from __future__ import annotations

from functools import partial

from tidemark.jobs.registry import RebuildOptions
from tidemark.planning import lost_files
from tidemark.planning.schema_following import proposed
from tidemark_spark.jobs.plans import carry_out, show_comparison, show_preview
from tidemark_spark.jobs.running import RunningJob
from tidemark_spark.rebuild.affected_dates import planned
from tidemark_spark.rebuild.by_date import rebuild_by_date
from tidemark_spark.rebuild.preview import preview


def work(options: RebuildOptions, job: RunningJob) -> int:
    """Rebuild, preview or compare the dates; returns the exit code."""
    dates = options.dates
    table = job.table()
    if options.version is not None:
        table = proposed(table, options.version)
    lost = lost_files(table, dates) if options.missing and dates else {}
    if options.missing:
        dates = list(lost)
    if options.exchange == "by-date" and dates is not None and not options.only_shows:
        for _ in rebuild_by_date(table, dates, job.executor, partial(carry_out, job=job), extend=options.extend):
            pass
        return 0
    rebuild = planned(table, dates, job.executor, extend=options.extend)
    if not options.only_shows:
        carry_out(table, rebuild.plan, job, new=True)
        return 0
    if options.report or not options.compare:
        found = preview(table, rebuild.plan, rebuild.moves, lost)
        show_preview(table, rebuild.plan, found, options)
        if not options.compare or found.empty or (options.at_most is not None and found.bytes > options.at_most):
            return 0
    return show_comparison(table, rebuild.plan, job.executor, options.report)
