"""The command line of repairing a table that another program changed."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from tidemark.planning import plan_repair
from tidemark_spark.cli.common import add_topic, begun_table, executor_of, job_parser, run_job
from tidemark_spark.cli.plans import add_preview, previews, show_preview, write_and_carry_out
from tidemark_spark.cluster.target import add_options
from tidemark_spark.model import Executor
from tidemark_spark.openlineage.recorder import Recorder
from tidemark_spark.rebuild.preview import preview


def main(arguments: Sequence[str] | None = None, executor: Executor | None = None) -> int:
    """Run the job, on Spark unless ``executor`` does it; returns the exit code."""
    options = _parser().parse_args(arguments)
    return run_job("repair", options, lambda lineage: _repair(options, executor, lineage))


def _repair(options: argparse.Namespace, executor: Executor | None, lineage: Recorder) -> int:
    executor = executor_of(options, executor, options.topic)
    table = begun_table(options)
    plan = plan_repair(table)
    if previews(options):
        return show_preview(table, plan, preview(table, plan), options)
    return write_and_carry_out(table, plan, executor, lineage)


def _parser() -> argparse.ArgumentParser:
    parser = job_parser(
        "repair.py",
        "Repair a table from raw after another program changed it.",
        "--topic orders --dry-run",
    )
    add_topic(parser)
    add_options(parser)
    add_preview(parser)
    return parser
