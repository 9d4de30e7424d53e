"""Shared parts of the jobs that carry out a plan: show it, compare it with the table, and run it."""

from __future__ import annotations

from tidemark.backfill.preview import Preview
from tidemark.backfill.report import write_part
from tidemark.backfill.report_tables import of_comparison, of_preview, text
from tidemark.formats.table.plan import RunPlan, RunResult
from tidemark.jobs.registry import PreviewOptions
from tidemark.openlineage.runs import of_run
from tidemark.planning import write_plan
from tidemark.planning.schema_following import accept
from tidemark.table.delta_table import TopicTable
from tidemark_spark.jobs.running import RunningJob, show
from tidemark_spark.model import Executor
from tidemark_spark.rebuild.diff import comparison
from tidemark_spark.run.driver import run


def show_preview(table: TopicTable, plan: RunPlan, preview: Preview, options: PreviewOptions) -> int:
    """Print ``preview``; with ``--report`` store it, and also ``plan`` unless this is a dry run."""
    if options.report:
        if not (plan.empty or options.dry_run):
            preview = preview.model_copy(update={"attempt": plan.attempt, "plan": write_plan(table, plan)})
        write_part(table, options.report, "preview", preview)
    show(f"{text(*of_preview(preview, preview.kind))}\n{preview.to_bytes().decode()}")
    return 0


def show_comparison(table: TopicTable, plan: RunPlan, executor: Executor, report: str | None) -> int:
    """Print the rows that ``plan`` would change. Returns 1 if there are any and no ``report`` is written."""
    compared = comparison(table, plan, executor)
    if report:
        write_part(table, report, "comparison", compared, plan.attempt)
    show(f"{text(of_comparison(compared))}\n{compared.to_bytes().decode()}")
    return 1 if compared.differences and not report else 0


def carry_out(table: TopicTable, plan: RunPlan, job: RunningJob, *, new: bool = False) -> RunResult:
    """Carry out ``plan``, and print and return the result; a ``new`` plan is stored before, unless it is empty."""
    if new and not plan.empty:
        write_plan(table, plan)
    result = run(table, plan, job.executor)
    job.lineage.note(lambda: of_run(table, plan, result))
    if plan.accepts is not None and result.status == "landed":
        accept(table, plan.accepts)
    show(result.to_bytes().decode())
    return result
