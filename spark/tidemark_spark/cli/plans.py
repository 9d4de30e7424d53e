"""What the jobs that carry out a plan share: how they show it, compare it with the table, and run it."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import TypeVar

from tidemark.backfill.preview import Preview
from tidemark.backfill.report import write_part
from tidemark.formats.plan import RunPlan
from tidemark.lineage.runs import of_run
from tidemark.planning import write_plan
from tidemark.planning.schema_following import accept
from tidemark.table.delta_table import TopicTable
from tidemark_spark.audit.worker import AuditTask, Examine, Tally, examine
from tidemark_spark.cli.common import report_name, show
from tidemark_spark.cluster.executor import Executor
from tidemark_spark.lineage.recorder import Recorder
from tidemark_spark.model import Execute, Job
from tidemark_spark.rebuild.diff import Compare, comparison
from tidemark_spark.rebuild.diff_worker import compare
from tidemark_spark.run.driver import run
from tidemark_spark.run.progress import watched
from tidemark_spark.worker import convert

Task = TypeVar("Task")
Result = TypeVar("Result")


def converting(executor: Executor) -> Execute:
    """Has ``executor`` convert, and tells how far it has come."""
    return _watched(convert, executor)


def examining(executor: Executor) -> Examine:
    """Has ``executor`` read raw and the table, and write nothing."""

    def execute(job: Job, tasks: Sequence[AuditTask]) -> list[Tally]:
        return executor.on_each(examine, job, tasks)

    return execute


def comparing(executor: Executor) -> Compare:
    """Has ``executor`` compare rows, and write nothing; tells how far it has come."""
    return _watched(compare, executor)


def _watched(work: Callable[[Job, Task], Result], executor: Executor) -> Callable[[Job, Sequence[Task]], list[Result]]:
    def execute(job: Job, tasks: Sequence[Task]) -> list[Result]:
        with watched(job, len(tasks), executor.finished):
            return executor.on_each(work, job, tasks)

    return execute


def add_preview(parser: argparse.ArgumentParser) -> None:
    """``--dry-run`` and ``--report``, which show what a plan would do."""
    parser.add_argument("--dry-run", action="store_true", help="print what would be done, and do nothing")
    parser.add_argument(
        "--report",
        type=report_name,
        metavar="NAME",
        help="write what would be done to the topic's reports, under this name, and the plan, for run_plan.py; convert "
        "nothing",
    )


def previews(options: argparse.Namespace) -> bool:
    """Whether the plan is to be shown, and not to be carried out."""
    return bool(options.dry_run or options.report)


def show_preview(table: TopicTable, plan: RunPlan, preview: Preview, options: argparse.Namespace) -> int:
    """Print ``preview``; with ``--report`` store it, and ``plan`` as well unless this is a dry run."""
    if options.report:
        if not (plan.empty or options.dry_run):
            preview = preview.model_copy(update={"attempt": plan.attempt, "plan": write_plan(table, plan)})
        write_part(table, options.report, "preview", preview)
    show(f"{preview.text()}\n{preview.to_bytes().decode()}")
    return 0


def show_comparison(table: TopicTable, plan: RunPlan, executor: Executor, report: str | None) -> int:
    """Print which rows ``plan`` would change. Returns 1 if there are any, unless they go into ``report`` as well."""
    found = comparison(table, plan, comparing(executor))
    if report:
        write_part(table, report, "comparison", found, plan.attempt)
    show(f"{found.text()}\n{found.to_bytes().decode()}")
    return 1 if found.differences and not report else 0


def write_and_carry_out(table: TopicTable, plan: RunPlan, executor: Executor, lineage: Recorder) -> int:
    """Store ``plan``, if it has anything to do, and carry it out."""
    if not plan.empty:
        write_plan(table, plan)
    return carry_out(table, plan, executor, lineage)


def carry_out(table: TopicTable, plan: RunPlan, executor: Executor, lineage: Recorder) -> int:
    """Carry out ``plan``, which is stored, and print the result."""
    result = run(table, plan, converting(executor))
    lineage.note(lambda: of_run(table, plan, result))
    if plan.accepts is not None and result.status == "landed":
        accept(table, plan.accepts)
    show(result.to_bytes().decode())
    return 0
