"""The command line of rebuilding."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from tidemark.errors import ConfigError
from tidemark.formats.table.plan import RunPlan, RunResult
from tidemark.planning import lost_files
from tidemark.planning.schema_following import proposed
from tidemark.table.delta_table import TopicTable
from tidemark_spark.cli.common import add_topic, begun_table, day, executor_of, job_parser, run_job
from tidemark_spark.cli.plans import (
    add_preview,
    previews,
    show_comparison,
    show_preview,
    shown_result,
    write_and_carry_out,
)
from tidemark_spark.cluster.target import add_options
from tidemark_spark.model import Executor
from tidemark_spark.openlineage.recorder import Recorder
from tidemark_spark.rebuild.by_date import rebuild_by_date
from tidemark_spark.rebuild.plan import planned
from tidemark_spark.rebuild.preview import preview

TOGETHER: Final = "together"
BY_DATE: Final = "by-date"


def main(arguments: Sequence[str] | None = None, executor: Executor | None = None) -> int:
    """Run the job, on Spark unless ``executor`` does it; returns the exit code."""
    options = _parser().parse_args(arguments)
    return run_job(
        "rebuild",
        options,
        lambda lineage: _rebuild(options, executor, lineage),
        failed=2 if options.compare and not options.report else 1,
    )


def _rebuild(options: argparse.Namespace, executor: Executor | None, lineage: Recorder) -> int:
    executor = executor_of(options, executor, options.topic)
    dates = _dates(options)
    table = begun_table(options)
    if options.schema is not None:
        if dates is not None:
            raise ConfigError("rebuild.py", [("--schema", "needs --all: all rows must have the same columns")])
        table = proposed(table, options.schema)
    lost = lost_files(table, dates) if options.missing and dates else {}
    if options.missing:
        dates = list(lost)
    if options.exchange == BY_DATE and not (options.dry_run or options.compare):
        return _by_date(options, table, dates, executor, lineage)
    rebuild = planned(table, dates, executor, extend=options.extend)
    if options.compare:
        return show_comparison(table, rebuild.plan, executor, options.report)
    if previews(options):
        return show_preview(table, rebuild.plan, preview(table, rebuild.plan, rebuild.moves, lost), options)
    return write_and_carry_out(table, rebuild.plan, executor, lineage)


def _by_date(
    options: argparse.Namespace, table: TopicTable, dates: list[str] | None, executor: Executor, lineage: Recorder
) -> int:
    if dates is None or options.report:
        raise ConfigError("rebuild.py", [("--exchange", f"{BY_DATE} needs --from and --to, and takes no --report")])

    def carry_out(table: TopicTable, plan: RunPlan) -> RunResult:
        return shown_result(table, plan, executor, lineage)

    for _ in rebuild_by_date(table, dates, executor, carry_out, extend=options.extend):
        pass
    return 0


def _dates(options: argparse.Namespace) -> list[str] | None:
    if options.all and options.first is None and options.last is None:
        return None
    if options.all or options.first is None or options.last is None or options.last < options.first:
        rule = "give both dates, with --to not before --from; or only --all"
        raise ConfigError("rebuild.py", [("--from, --to", rule)])
    days = (options.last - options.first).days + 1
    return [(options.first + timedelta(days=day)).isoformat() for day in range(days)]


def _parser() -> argparse.ArgumentParser:
    parser = job_parser(
        "rebuild.py",
        "Make dates of a table again from raw, with the settings of the topics file and the code of this installation.",
        "--topic orders --from 2026-11-18 --to 2026-11-20 --dry-run",
    )
    add_topic(parser)
    add_options(parser)
    parser.add_argument("--from", dest="first", type=day, metavar="DATE", help="first date to rebuild")
    parser.add_argument("--to", dest="last", type=day, metavar="DATE", help="last date to rebuild")
    parser.add_argument("--all", action="store_true", help="rebuild all dates; then columns may become wider")
    parser.add_argument(
        "--schema",
        type=int,
        metavar="VERSION",
        help="with --all: accept what this version of the registry's schema proposes, see docs/schemas.md",
    )
    parser.add_argument(
        "--extend",
        action="store_true",
        help="also rebuild the dates that exchange rows with these because of the settings",
    )
    parser.add_argument(
        "--exchange",
        choices=(TOGETHER, BY_DATE),
        default=TOGETHER,
        help="together (default): one commit replaces the rows of all dates; by-date: one for each date, or for dates "
        "that exchange rows; after a kill, the same command goes on with those that are left",
    )
    parser.add_argument("--missing", action="store_true", help="rebuild only the dates that have lost files")
    parser.add_argument(
        "--compare",
        action="store_true",
        help="write nothing, and print the rows that would change; exit code 0 if none, 1 if any, 2 for trouble. With "
        "--report write them there as well, and exit with 0 either way",
    )
    add_preview(parser)
    return parser
