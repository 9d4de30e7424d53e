"""Shared parts of the jobs that carry out a plan: show it, compare it with the table, and run it."""

from __future__ import annotations

import argparse

from tidemark.backfill.preview import Preview
from tidemark.backfill.report import write_part
from tidemark.formats.table.plan import RunPlan, RunResult
from tidemark.openlineage.runs import of_run
from tidemark.planning import write_plan
from tidemark.planning.schema_following import accept
from tidemark.table.delta_table import TopicTable
from tidemark_spark.cli.common import report_name, show
from tidemark_spark.model import Executor
from tidemark_spark.openlineage.recorder import Recorder
from tidemark_spark.rebuild.diff import comparison
from tidemark_spark.run.driver import run


def add_preview(parser: argparse.ArgumentParser) -> None:
    """Add ``--dry-run`` and ``--report``, which show the effect of a plan."""
    parser.add_argument("--dry-run", action="store_true", help="print what would be done, and do nothing")
    parser.add_argument(
        "--report",
        type=report_name,
        metavar="NAME",
        help="write what would be done to the topic's reports, under this name, and the plan, for run_plan.py; convert "
        "nothing",
    )


def previews(options: argparse.Namespace) -> bool:
    """True if the plan is only to be shown."""
    return bool(options.dry_run or options.report)


def show_preview(table: TopicTable, plan: RunPlan, preview: Preview, options: argparse.Namespace) -> int:
    """Print ``preview``; with ``--report`` store it, and also ``plan`` unless this is a dry run."""
    if options.report:
        if not (plan.empty or options.dry_run):
            preview = preview.model_copy(update={"attempt": plan.attempt, "plan": write_plan(table, plan)})
        write_part(table, options.report, "preview", preview)
    show(f"{preview.text()}\n{preview.to_bytes().decode()}")
    return 0


def show_comparison(table: TopicTable, plan: RunPlan, executor: Executor, report: str | None) -> int:
    """Print the rows that ``plan`` would change. Returns 1 if there are any and no ``report`` is written."""
    compared = comparison(table, plan, executor)
    if report:
        write_part(table, report, "comparison", compared, plan.attempt)
    show(f"{compared.text()}\n{compared.to_bytes().decode()}")
    return 1 if compared.differences and not report else 0


def write_and_carry_out(table: TopicTable, plan: RunPlan, executor: Executor, lineage: Recorder) -> int:
    """Store ``plan`` unless it is empty, and carry it out."""
    if not plan.empty:
        write_plan(table, plan)
    return carry_out(table, plan, executor, lineage)


def carry_out(table: TopicTable, plan: RunPlan, executor: Executor, lineage: Recorder) -> int:
    """Carry out the stored ``plan``, and print the result."""
    shown_result(table, plan, executor, lineage)
    return 0


def shown_result(table: TopicTable, plan: RunPlan, executor: Executor, lineage: Recorder) -> RunResult:
    """The result of the stored ``plan``, which is also printed."""
    result = run(table, plan, executor)
    lineage.note(lambda: of_run(table, plan, result))
    if plan.accepts is not None and result.status == "landed":
        accept(table, plan.accepts)
    show(result.to_bytes().decode())
    return result
