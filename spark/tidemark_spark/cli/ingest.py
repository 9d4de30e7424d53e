"""The command line of ingestion."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import nullcontext

from tidemark.planning import find_plan, plan_ingest
from tidemark.planning.unread_status import recording_failure
from tidemark_spark.cli.common import add_attempt, add_topic, begun_table, executor_of, job_parser, run_job, show
from tidemark_spark.cli.plans import carry_out, write_and_carry_out
from tidemark_spark.cluster.target import add_options
from tidemark_spark.model import Executor
from tidemark_spark.openlineage.recorder import Recorder
from tidemark_spark.run.followed_schema import followed


def main(arguments: Sequence[str] | None = None, executor: Executor | None = None) -> int:
    """Run the job, on Spark unless ``executor`` does it; returns the exit code."""
    options = _parser().parse_args(arguments)
    return run_job("ingest", options, lambda lineage: _ingest(options, executor, lineage))


def _ingest(options: argparse.Namespace, executor: Executor | None, lineage: Recorder) -> int:
    executor = executor_of(options, executor, options.topic)
    table = begun_table(options)
    known = find_plan(table, options.attempt) if options.attempt is not None else None
    with nullcontext() if options.dry_run else recording_failure(table):
        if not (known or options.dry_run):
            table = followed(table)
        plan = known or plan_ingest(table, attempt=options.attempt)
    if options.dry_run:
        show(plan.to_bytes().decode())
        return 0
    return (carry_out if known else write_and_carry_out)(table, plan, executor, lineage)


def _parser() -> argparse.ArgumentParser:
    parser = job_parser(
        "ingest.py",
        "Land what is new of a topic in its table, and close the dates that are complete.",
        "--topic orders",
    )
    add_topic(parser)
    add_options(parser)
    add_attempt(parser)
    parser.add_argument("--dry-run", action="store_true", help="print the plan, and do nothing")
    return parser
