"""The job that carries out a stored plan of any kind."""

from __future__ import annotations

from tidemark.jobs.registry import RunPlan
from tidemark.planning import read_plan
from tidemark.planning.schema_following import proposed
from tidemark_spark.jobs.plans import carry_out, show_comparison
from tidemark_spark.jobs.running import RunningJob


def work(options: RunPlan, job: RunningJob) -> int:
    """Carry out the plan, or show the rows that it would change; returns the exit code."""
    table = job.table()
    plan = read_plan(table, options.plan)
    if plan.accepts is not None:
        table = proposed(table, plan.accepts)
    if options.compare:
        return show_comparison(table, plan, job.executor, options.report)
    return carry_out(table, plan, job)
