"""The job that merges small files of tables."""

from __future__ import annotations

from collections.abc import Iterator

from tidemark.formats.table.plan import RunPlan
from tidemark.jobs.registry import CompactOptions
from tidemark.openlineage.runs import of_run
from tidemark.planning import find_plan, plan_compaction, write_plan
from tidemark.table.delta_table import TopicTable
from tidemark_spark.jobs.running import RunningJob, begun, show
from tidemark_spark.run.driver import run


def work(options: CompactOptions, job: RunningJob) -> int:
    """Merge the files of each topic, or show what would be merged; returns the exit code."""

    def compacted(table: TopicTable) -> int:
        plan = _plan(begun(table), options)
        if not options.json_lines:
            show("\n".join(told(plan)))
        if options.dry_run:
            if options.json_lines or not plan.empty:
                show(plan.to_bytes().decode())
            return 0
        result = run(table, plan, job.executor)
        job.lineage.note(lambda: of_run(table, plan, result))
        show(result.to_bytes().decode())
        return 0

    return job.on_each_table(compacted)


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


def _plan(table: TopicTable, options: CompactOptions) -> RunPlan:
    """The attempt's plan, or a new plan, which is written unless it is empty or this is a dry run."""
    if options.attempt is not None and (found := find_plan(table, options.attempt)):
        return found
    dates = sorted({dt.isoformat() for dt in options.dt}) or None
    plan = plan_compaction(table, dates, attempt=options.attempt)
    if not (plan.empty or options.dry_run):
        write_plan(table, plan)
    return plan
