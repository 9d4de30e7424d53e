"""The command line of the compaction job."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterator, Sequence
from datetime import date

from tidemark.errors import ConfigError
from tidemark.formats.table.plan import RunPlan
from tidemark.openlineage.runs import of_run
from tidemark.planning import find_plan, plan_compaction, write_plan
from tidemark.table.delta_table import TopicTable
from tidemark_spark.cli.common import (
    add_attempt,
    add_topics,
    begun,
    executor_of,
    job_parser,
    on_each_table,
    run_job,
    show,
)
from tidemark_spark.cluster.target import add_options
from tidemark_spark.model import Executor
from tidemark_spark.openlineage.recorder import Recorder
from tidemark_spark.run.driver import run


def main(arguments: Sequence[str] | None = None, executor: Executor | None = None) -> int:
    """Run the job, on Spark unless ``executor`` does it; returns the exit code."""
    options = _parser().parse_args(arguments)
    return run_job("compact", options, lambda lineage: _compact(options, executor, lineage))


def _compact(options: argparse.Namespace, executor: Executor | None, lineage: Recorder) -> int:
    if options.attempt is not None and len(options.topic) > 1:
        raise ConfigError("compact.py", [("--attempt", "is of one topic: name one --topic")])
    executor = executor_of(options, executor, f"compact {' '.join(options.topic[:3])}")
    dates = _dates(options.dt)

    def compacted(table: TopicTable) -> int:
        plan = _plan(begun(table), dates, options)
        if not options.json:
            show("\n".join(told(plan)))
        if options.dry_run:
            if options.json or not plan.empty:
                show(plan.to_bytes().decode())
            return 0
        result = run(table, plan, executor)
        lineage.note(lambda: of_run(table, plan, result))
        show(result.to_bytes().decode())
        return 0

    return on_each_table(options, compacted)


def told(plan: RunPlan) -> Iterator[str]:
    """Lines about the merges of ``plan``: one for each date, and the sum."""
    if plan.empty:
        yield "nothing to do: no files of these dates are worth merging"
        return
    for dt in plan.dates:
        tasks = [task for task in plan.tasks if f"/dt={dt}/" in task.ranges[0].key]
        files, size = sum(len(task.ranges) for task in tasks), sum(task.size for task in tasks)
        partitions = len({(task.incarnation, task.partition) for task in tasks})
        yield f"{dt}: {files} files of {partitions} partitions, {size / (1 << 20):.1f} MiB, become {len(tasks)}"
    size = sum(task.size for task in plan.tasks)
    yield f"in all: {len(plan.removes)} files, {size / (1 << 20):.1f} MiB, become {len(plan.tasks)}"


def _parser() -> argparse.ArgumentParser:
    parser = job_parser(
        "compact.py",
        "Merge small files of the tables of topics; no row changes.",
        "--topic orders --dt 2026-11-20 --dry-run",
    )
    add_topics(parser)
    add_options(parser)
    parser.add_argument("--dt", action="append", metavar="DATE", help="a date to merge files of; repeatable")
    add_attempt(parser)
    parser.add_argument("--dry-run", action="store_true", help="print what would be merged, and do nothing")
    parser.add_argument(
        "--json", action="store_true", help="print only the last line of each topic: the result, or the plan"
    )
    return parser


def _dates(given: Sequence[str] | None) -> list[str] | None:
    try:
        return None if given is None else sorted({date.fromisoformat(dt).isoformat() for dt in given})
    except ValueError as error:
        raise ConfigError("compact.py", [("--dt", "must be dates such as 2026-11-20")]) from error


def _plan(table: TopicTable, dates: Collection[str] | None, options: argparse.Namespace) -> RunPlan:
    """The attempt's plan, or a new plan, which is written unless it is empty or this is a dry run."""
    if options.attempt is not None and (found := find_plan(table, options.attempt)):
        return found
    plan = plan_compaction(table, dates, attempt=options.attempt)
    if not (plan.empty or options.dry_run):
        write_plan(table, plan)
    return plan
