"""The command line of replaying quarantined records."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from datetime import date

from tidemark.errors import ConfigError
from tidemark.planning import plan_replay
from tidemark_spark.cli.common import add_topic, begun_table, executor_of, job_parser, run_job
from tidemark_spark.cli.plans import add_preview, previews, show_preview, write_and_carry_out
from tidemark_spark.cluster.target import add_options
from tidemark_spark.model import Executor
from tidemark_spark.openlineage.recorder import Recorder
from tidemark_spark.rebuild.preview import preview


def main(arguments: Sequence[str] | None = None, executor: Executor | None = None) -> int:
    """Run the job, on Spark unless ``executor`` does it; returns the exit code."""
    options = _parser().parse_args(arguments)
    return run_job("replay", options, lambda lineage: _replay(options, executor, lineage))


def _replay(options: argparse.Namespace, executor: Executor | None, lineage: Recorder) -> int:
    executor = executor_of(options, executor, options.topic)
    dates = _dates(options.dt)
    table = begun_table(options)
    plan = plan_replay(table, dates)
    if previews(options):
        return show_preview(table, plan, preview(table, plan), options)
    return write_and_carry_out(table, plan, executor, lineage)


def _dates(given: list[str] | None) -> list[str] | None:
    try:
        return None if given is None else ["" if dt == "none" else date.fromisoformat(dt).isoformat() for dt in given]
    except ValueError as error:
        raise ConfigError("replay.py", [("--dt", "must be dates such as 2026-11-20, or none")]) from error


def _parser() -> argparse.ArgumentParser:
    parser = job_parser(
        "replay.py",
        "Parse quarantined records of a topic again, with the parser of the topics file; raw is not needed.",
        "--topic orders --dt 2026-11-20 --dt none",
    )
    add_topic(parser)
    add_options(parser)
    parser.add_argument(
        "--dt",
        action="append",
        metavar="DATE",
        help="date of the records' timestamps, or none for records without a sane timestamp; repeatable (default: all)",
    )
    add_preview(parser)
    return parser
