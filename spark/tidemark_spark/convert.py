"""The command line of the convert job."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import date, timedelta
from pathlib import Path

from tidemark.errors import ConfigError, FormatError, TidemarkError
from tidemark.planning import find_plan, plan_ingest, plan_rebuild, plan_replay, read_plan, write_plan
from tidemark.runs import RunPlan, Task
from tidemark.table import Lake, open_lake
from tidemark.topics import load_topics
from tidemark_spark.driver import run
from tidemark_spark.job import Job, Outcome
from tidemark_spark.sweep import sweep


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job; returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        lake = lake_of(options.topics, options.topic, options.cluster)
        if options.sweep:
            _print(sweep(lake, dry_run=options.dry_run).to_bytes())
            return 0
        plan = _plan(lake, options)
        if options.dry_run:
            _print(plan.to_bytes())
        else:
            _print(run(lake, plan, lambda job, tasks: _on_spark(options.master, job, tasks)).to_bytes())
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except TidemarkError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="convert.py", description="Raw segments of one topic to its table.")
    parser.add_argument("--topics", type=Path, required=True, metavar="FILE", help="the topics file")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--cluster", help="needed where two clusters have the topic's name")
    parser.add_argument("--master", help="Spark's master, where spark-submit does not say it (default: local[*])")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--plan", metavar="KEY", help="carry out the plan under this key of the lake")
    which.add_argument(
        "--attempt", type=int, metavar="N", help="carry out this attempt's plan; make it if there is none"
    )
    which.add_argument("--rebuild", action="store_true", help="make the dates --from to --to again")
    which.add_argument("--sweep", action="store_true", help="remove what dead runs left and others replaced")
    which.add_argument("--replay", action="store_true", help="parse quarantined rows again, those of --dt or all")
    parser.add_argument(
        "--dt",
        action="append",
        metavar="DATE",
        help="date of the rows to replay, or none for those without; repeatable",
    )
    parser.add_argument("--from", dest="first", type=date.fromisoformat, metavar="DATE", help="first date to rebuild")
    parser.add_argument("--to", dest="last", type=date.fromisoformat, metavar="DATE", help="last date to rebuild")
    parser.add_argument(
        "--dry-run", action="store_true", help="print the plan, or what would be removed, and do nothing"
    )
    return parser


def lake_of(topics: Path, topic: str, cluster: str | None) -> Lake:
    """The table of a topic. Raises ConfigError: the topics file is wrong, or has no such topic."""
    deployment = load_topics(topics)
    try:
        return open_lake(deployment, deployment.topic(topic, cluster))
    except FormatError as error:
        raise ConfigError(str(topics), [("topics", str(error))]) from error


def _plan(lake: Lake, options: argparse.Namespace) -> RunPlan:
    """The plan that the options name, or a fresh one, which is written unless this is a dry run."""
    if options.plan:
        return read_plan(lake, options.plan)
    if options.attempt is not None and (found := find_plan(lake, options.attempt)):
        return found
    if options.replay:
        plan = plan_replay(lake, _replayed(options.dt))
    elif options.rebuild:
        plan = plan_rebuild(lake, _dates(options))
    else:
        plan = plan_ingest(lake, attempt=options.attempt)
    if not (plan.empty or options.dry_run):
        write_plan(lake, plan)
    return plan


def _dates(options: argparse.Namespace) -> list[str]:
    if options.first is None or options.last is None or options.last < options.first:
        raise ConfigError("--rebuild", [("--from, --to", "both dates are needed, and --to not before --from")])
    days = (options.last - options.first).days + 1
    return [(options.first + timedelta(days=day)).isoformat() for day in range(days)]


def _replayed(dates: list[str] | None) -> list[str] | None:
    try:
        return (
            None if dates is None else ["" if one == "none" else date.fromisoformat(one).isoformat() for one in dates]
        )
    except ValueError as error:
        raise ConfigError("--replay", [("--dt", f"must be dates such as 2026-11-20, or none: {error}")]) from error


def _on_spark(master: str | None, job: Job, tasks: Sequence[Task]) -> list[Outcome]:
    """Starts Spark, which takes seconds, and so only when there is something to convert."""
    from tidemark_spark.session import context, execute_on

    return execute_on(context(f"tidemark {job.topic.topic}", master), job, tasks)


def _print(body: bytes) -> None:
    sys.stdout.write(f"{body.decode()}\n")
    sys.stdout.flush()
