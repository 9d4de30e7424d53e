"""The command line of the convert job."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import date, timedelta
from pathlib import Path

from tidemark.backfill.preview import Preview
from tidemark.backfill.report import write_part
from tidemark.errors import ConfigError, TidemarkError
from tidemark.formats.keys import check_report
from tidemark.formats.plan import ConversionTask, RunPlan
from tidemark.inspection.agent_sightings import check_begun
from tidemark.planning import find_plan, lost_files, plan_ingest, plan_repair, plan_replay, read_plan, write_plan
from tidemark.table.delta_table import Lake
from tidemark_spark.audit.worker import AuditTask, Tally
from tidemark_spark.cli.common import day, lake_of
from tidemark_spark.cluster.target import ClusterTarget, add_options
from tidemark_spark.model import Job, Outcome
from tidemark_spark.rebuild.diff import comparison
from tidemark_spark.rebuild.diff_worker import Compared, CompareTask
from tidemark_spark.rebuild.plan import planned
from tidemark_spark.rebuild.preview import preview
from tidemark_spark.run.driver import run
from tidemark_spark.run.progress import watched
from tidemark_spark.vacuum import sweep


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job; returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        return _done(options)
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except TidemarkError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 2 if options.compare and not options.report else 1


def _done(options: argparse.Namespace) -> int:
    if (options.missing or options.extend or options.all) and not options.rebuild:
        raise ConfigError("--missing, --extend, --all", [("", "are options of --rebuild")])
    if options.compare and not (options.rebuild or (options.plan and options.report)):
        raise ConfigError("--compare", [("", "is an option of --rebuild, and of --plan with --report")])
    dates = _dates(options) if options.rebuild else _replayed(options.dt)
    lake = lake_of(options.topics, options.topic, options.cluster)
    check_begun(lake)
    if options.sweep:
        _print(sweep(lake, dry_run=options.dry_run).to_bytes())
        return 0
    if options.repair:
        return _repair(lake, options)
    if options.rebuild:
        return _rebuild(lake, options, dates)
    if options.replay and options.report:
        plan = plan_replay(lake, dates)
        return _prepare(lake, options, plan, preview(lake, plan))
    if options.compare:
        return _compared(lake, options, read_plan(lake, options.plan))
    return _carry_out(lake, options, _plan(lake, options, dates))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="convert.py",
        description="Raw segments of one topic to its table.",
        epilog="Example: convert.py --topics topics.yaml --topic orders --rebuild --from 2026-11-18 --to 2026-11-20 "
        "--dry-run. The parser is that of the topics file, the code that of this installation.",
    )
    parser.add_argument("--topics", type=Path, required=True, metavar="FILE", help="the topics file")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--cluster", help="needed where two clusters have the topic's name")
    add_options(parser)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--plan", metavar="KEY", help="carry out the plan under this key of the lake")
    which.add_argument(
        "--attempt", type=int, metavar="N", help="carry out this attempt's plan; make it if there is none"
    )
    which.add_argument("--rebuild", action="store_true", help="make the dates --from to --to again, or --all")
    which.add_argument(
        "--repair", action="store_true", help="make the table right again, from raw, after somebody else changed it"
    )
    which.add_argument("--sweep", action="store_true", help="remove what dead runs left and others replaced")
    which.add_argument("--replay", action="store_true", help="parse quarantined rows again, those of --dt or all")
    parser.add_argument(
        "--dt",
        action="append",
        metavar="DATE",
        help="date of the rows to replay, or none for those without; repeatable",
    )
    parser.add_argument("--from", dest="first", type=day, metavar="DATE", help="first date to rebuild")
    parser.add_argument("--to", dest="last", type=day, metavar="DATE", help="last date to rebuild")
    parser.add_argument("--all", action="store_true", help="rebuild all dates; then columns may become wider")
    parser.add_argument(
        "--extend", action="store_true", help="rebuild also the dates that exchange rows with those, by the settings"
    )
    parser.add_argument(
        "--missing", action="store_true", help="rebuild only those of the dates of which files are lost"
    )
    parser.add_argument(
        "--compare",
        action="store_true",
        help="write nothing, and tell which rows a rebuild would change; exit code 0 if none, 1 if any, 2 for trouble",
    )
    parser.add_argument(
        "--report",
        type=check_report,
        metavar="NAME",
        help="write what a rebuild or replay would do to the topic's reports, under this name, and the plan, for "
        "--plan; convert nothing. With --compare, write what would change, and exit with 0 either way",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print the plan, or what would be removed or replaced, and do nothing"
    )
    return parser


def _plan(lake: Lake, options: argparse.Namespace, dates: list[str] | None) -> RunPlan:
    """The plan that the options name, or a fresh one, which is written unless this is a dry run."""
    if options.plan:
        return read_plan(lake, options.plan)
    if options.attempt is not None and (found := find_plan(lake, options.attempt)):
        return found
    plan = plan_replay(lake, dates) if options.replay else plan_ingest(lake, attempt=options.attempt)
    if not (plan.empty or options.dry_run):
        write_plan(lake, plan)
    return plan


def _carry_out(lake: Lake, options: argparse.Namespace, plan: RunPlan) -> int:
    if options.dry_run:
        _print(plan.to_bytes())
    else:
        _print(run(lake, plan, lambda job, tasks: _on_spark(ClusterTarget.of(options), job, tasks)).to_bytes())
    return 0


def _rebuild(lake: Lake, options: argparse.Namespace, dates: list[str] | None) -> int:
    lost = lost_files(lake, dates) if options.missing and dates else {}
    if options.missing:
        dates = list(lost)
    rebuild = planned(
        lake, dates, lambda job, tasks: _examine(ClusterTarget.of(options), job, tasks), extend=options.extend
    )
    if options.compare:
        return _compared(lake, options, rebuild.plan)
    if options.dry_run or options.report:
        return _prepare(lake, options, rebuild.plan, preview(lake, rebuild.plan, rebuild.moves, lost))
    if not rebuild.plan.empty:
        write_plan(lake, rebuild.plan)
    return _carry_out(lake, options, rebuild.plan)


def _repair(lake: Lake, options: argparse.Namespace) -> int:
    plan = plan_repair(lake)
    if options.dry_run or options.report:
        return _prepare(lake, options, plan, preview(lake, plan))
    if not plan.empty:
        write_plan(lake, plan)
    return _carry_out(lake, options, plan)


def _prepare(lake: Lake, options: argparse.Namespace, plan: RunPlan, shown: Preview) -> int:
    """Show what ``plan`` would do; with ``--report`` also there, and with the plan unless this is a dry run."""
    if options.report:
        if not (plan.empty or options.dry_run):
            shown = shown.model_copy(update={"attempt": plan.attempt, "plan": write_plan(lake, plan)})
        write_part(lake, options.report, "preview", shown)
    _print(f"{shown.text()}\n".encode() + shown.to_bytes())
    return 0


def _compared(lake: Lake, options: argparse.Namespace, plan: RunPlan) -> int:
    found = comparison(lake, plan, lambda job, tasks: _compare(ClusterTarget.of(options), job, tasks))
    if options.report:
        write_part(lake, options.report, "comparison", found, plan.attempt)
    _print(f"{found.text()}\n".encode() + found.to_bytes())
    return 1 if found.differences and not options.report else 0


def _dates(options: argparse.Namespace) -> list[str] | None:
    if options.all and options.first is None and options.last is None:
        return None
    if options.all or options.first is None or options.last is None or options.last < options.first:
        rule = "both dates are needed, and --to not before --from; or --all alone"
        raise ConfigError("--rebuild", [("--from, --to", rule)])
    days = (options.last - options.first).days + 1
    return [(options.first + timedelta(days=day)).isoformat() for day in range(days)]


def _replayed(dates: list[str] | None) -> list[str] | None:
    try:
        return (
            None if dates is None else ["" if one == "none" else date.fromisoformat(one).isoformat() for one in dates]
        )
    except ValueError as error:
        raise ConfigError("--replay", [("--dt", "must be dates such as 2026-11-20, or none")]) from error


def _on_spark(where: ClusterTarget, job: Job, tasks: Sequence[ConversionTask]) -> list[Outcome]:
    """Starts Spark, which takes seconds, and so only when there is something to convert."""
    from tidemark_spark.cluster.session import execute_on, spark

    there = spark(f"tidemark {job.topic.topic}", where)
    with watched(job, len(tasks), there.finished):
        return execute_on(there, job, tasks)


def _examine(where: ClusterTarget, job: Job, tasks: Sequence[AuditTask]) -> list[Tally]:
    """Reads raw on Spark, and writes nothing."""
    from tidemark_spark.cluster.session import examine_on, spark

    return examine_on(spark(f"tidemark {job.topic.topic}", where), job, tasks)


def _compare(where: ClusterTarget, job: Job, tasks: Sequence[CompareTask]) -> list[Compared]:
    """Compares rows on Spark, and writes nothing."""
    from tidemark_spark.cluster.session import compare_on, spark

    there = spark(f"tidemark {job.topic.topic}", where)
    with watched(job, len(tasks), there.finished):
        return compare_on(there, job, tasks)


def _print(body: bytes) -> None:
    sys.stdout.write(f"{body.decode()}\n")
    sys.stdout.flush()
