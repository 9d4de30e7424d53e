"""The command line of the compaction job."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection, Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Final

from tidemark.errors import ConfigError, TidemarkError
from tidemark.formats.plan import ConversionTask, RunPlan
from tidemark.inspection.agent_sightings import check_begun
from tidemark.planning import find_plan, plan_compaction, write_plan
from tidemark.table.delta_table import Lake
from tidemark_spark.cli.common import lake_of
from tidemark_spark.cluster.target import ClusterTarget, add_options
from tidemark_spark.model import Execute, Job, Outcome
from tidemark_spark.run.driver import run

_EXAMPLE: Final = "example: compact.py --topics topics.yaml --topic orders --dt 2026-11-20 --dry-run"


def main(arguments: Sequence[str] | None = None, execute: Execute | None = None) -> int:
    """Run the job, on Spark unless ``execute`` does it; returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        lake, dates = lake_of(options.topics, options.topic, options.cluster), _dates(options.dt)
        check_begun(lake)
        plan = _plan(lake, dates, options)
        if not options.json:
            sys.stdout.writelines(f"{line}\n" for line in told(plan))
            sys.stdout.flush()
        last = plan if options.dry_run else run(lake, plan, execute or _on_spark(ClusterTarget.of(options)))
        sys.stdout.write(f"{last.to_bytes().decode()}\n")
        sys.stdout.flush()
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except TidemarkError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 1
    return 0


def told(plan: RunPlan) -> Iterator[str]:
    """What ``plan`` merges, in lines: by date, and in all."""
    for dt in plan.dates:
        tasks = [one for one in plan.tasks if f"/dt={dt}/" in one.ranges[0].key]
        files, size = sum(len(one.ranges) for one in tasks), sum(one.size for one in tasks)
        partitions = len({(one.incarnation, one.partition) for one in tasks})
        yield f"{dt}: {files} files of {partitions} partitions, {size / (1 << 20):.1f} MiB, become {len(tasks)}"
    size = sum(one.size for one in plan.tasks)
    yield f"in all: {len(plan.removes)} files, {size / (1 << 20):.1f} MiB, become {len(plan.tasks)}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="compact.py", description="Merge small files of one topic's table; no row changes.", epilog=_EXAMPLE
    )
    parser.add_argument("--topics", type=Path, required=True, metavar="FILE", help="the topics file")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--cluster", help="needed where two clusters have the topic's name")
    add_options(parser)
    parser.add_argument("--dt", action="append", metavar="DATE", help="a date to merge files of; repeatable")
    parser.add_argument(
        "--attempt", type=int, metavar="N", help="carry out this attempt's plan; make it if there is none"
    )
    parser.add_argument("--dry-run", action="store_true", help="print what would be merged, and do nothing")
    parser.add_argument("--json", action="store_true", help="print the last line alone: the result, or the plan")
    return parser


def _dates(given: Sequence[str] | None) -> list[str] | None:
    try:
        return None if given is None else sorted({date.fromisoformat(one).isoformat() for one in given})
    except ValueError as error:
        raise ConfigError("--dt", [("", "must be dates such as 2026-11-20")]) from error


def _on_spark(where: ClusterTarget) -> Execute:
    def execute(job: Job, tasks: Sequence[ConversionTask]) -> list[Outcome]:
        """Starts Spark, which takes seconds, and so only when there is something to merge."""
        from tidemark_spark.cluster.session import execute_on, spark

        return execute_on(spark(f"tidemark compact {job.topic.topic}", where), job, tasks)

    return execute


def _plan(lake: Lake, dates: Collection[str] | None, options: argparse.Namespace) -> RunPlan:
    """The attempt's plan, or a fresh one, which is written unless it is empty or this is a dry run."""
    if options.attempt is not None and (found := find_plan(lake, options.attempt)):
        return found
    plan = plan_compaction(lake, dates, attempt=options.attempt)
    if not (plan.empty or options.dry_run):
        write_plan(lake, plan)
    return plan
