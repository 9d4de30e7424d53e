"""The job that carries out a stored plan of any kind."""

from __future__ import annotations

import sys
from functools import partial

from tidemark.errors import TidemarkError
from tidemark.jobs.registry import RunPlanOptions
from tidemark.planning import read_plan
from tidemark.planning.schema_following import proposed
from tidemark.table.state_table import StateTable
from tidemark_spark.jobs.plans import carry_out, show_comparison
from tidemark_spark.jobs.running import RunningJob, show
from tidemark_spark.rebuild.by_date import carry_out_by_date


def work(options: RunPlanOptions, job: RunningJob) -> int:
    """Carry out the plan, or show the rows that it would change; returns the exit code."""
    table = job.table()
    plan = read_plan(table, options.plan)
    if plan.accepts is not None:
        table = proposed(table, plan.accepts)
    if options.compare:
        return show_comparison(table, plan, job.executor, options.report)
    if options.exchange == "by-date":
        show(carry_out_by_date(table, plan, job.executor, partial(carry_out, job=job)).to_bytes().decode())
    else:
        carry_out(table, plan, job)
    if options.state and table.topic.state is not None:
        _bring_state(job)
    return 0


def _bring_state(job: RunningJob) -> None:
    """Bring the topic's state table to the newest commit.

    An error is only printed, since the rows have landed, and the state's own job will do it or end with the error.
    """
    from tidemark_spark.state.run import run_state  # which a landing has no use for

    try:
        show(run_state(StateTable.open(job.table()), job.executor).to_bytes().decode())
    except TidemarkError as error:
        sys.stderr.write(f"the state table: {type(error).__name__}: {error}\n")
