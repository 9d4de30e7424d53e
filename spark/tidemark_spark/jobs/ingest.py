"""The job that lands a topic's new records."""

from __future__ import annotations

from contextlib import nullcontext

from tidemark.jobs.registry import IngestOptions
from tidemark.planning import find_plan, plan_ingest
from tidemark.planning.unread_status import recording_failure
from tidemark_spark.jobs.plans import carry_out
from tidemark_spark.jobs.running import RunningJob, show
from tidemark_spark.run.followed_schema import followed


def work(options: IngestOptions, job: RunningJob) -> int:
    """Land what is new, and close the dates that are complete; returns the exit code."""
    table = job.table()
    known = find_plan(table, options.attempt) if options.attempt is not None else None
    with nullcontext() if options.dry_run else recording_failure(table):
        if not (known or options.dry_run):
            table = followed(table)
        plan = known or plan_ingest(table, attempt=options.attempt)
    if options.dry_run:
        show(plan.to_bytes().decode())
        return 0
    carry_out(table, plan, job, new=known is None)
    return 0
