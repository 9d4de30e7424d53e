"""The command line that carries out a stored plan of any kind."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from tidemark.errors import ConfigError
from tidemark.planning import read_plan
from tidemark.planning.schema_following import proposed
from tidemark_spark.cli.common import add_topic, begun_table, executor_of, job_parser, report_name, run_job
from tidemark_spark.cli.plans import carry_out, show_comparison
from tidemark_spark.cluster.target import add_options
from tidemark_spark.model import Executor
from tidemark_spark.openlineage.recorder import Recorder


def main(arguments: Sequence[str] | None = None, executor: Executor | None = None) -> int:
    """Run the job, on Spark unless ``executor`` does it; returns the exit code."""
    options = _parser().parse_args(arguments)
    return run_job(
        "run_plan",
        options,
        lambda lineage: _run_plan(options, executor, lineage),
        failed=2 if options.compare and not options.report else 1,
    )


def _run_plan(options: argparse.Namespace, executor: Executor | None, lineage: Recorder) -> int:
    if options.report and not options.compare:
        raise ConfigError("run_plan.py", [("--report", "is an option of --compare")])
    executor = executor_of(options, executor, options.topic)
    table = begun_table(options)
    plan = read_plan(table, options.plan)
    if plan.accepts is not None:
        table = proposed(table, plan.accepts)
    if options.compare:
        return show_comparison(table, plan, executor, options.report)
    return carry_out(table, plan, executor, lineage)


def _parser() -> argparse.ArgumentParser:
    parser = job_parser(
        "run_plan.py",
        "Execute a plan that another job or Airflow stored. If it is executed twice, it lands once.",
        "--topic orders --plan KEY",
    )
    add_topic(parser)
    add_options(parser)
    parser.add_argument("--plan", required=True, metavar="KEY", help="the plan's key in the lake")
    parser.add_argument(
        "--compare",
        action="store_true",
        help="write nothing, and print the rows that would change; exit code 0 if none, 1 if any, 2 for trouble",
    )
    parser.add_argument(
        "--report",
        type=report_name,
        metavar="NAME",
        help="with --compare: write these rows to the topic's reports as well, and exit with 0 either way",
    )
    return parser
