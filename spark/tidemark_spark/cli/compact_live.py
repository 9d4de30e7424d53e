"""The command line of the compaction of topics that land every minute."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Final

from tidemark.errors import SparkUnavailable, TidemarkError
from tidemark.openlineage.runs import of_run
from tidemark.planning import plan_compaction, write_plan
from tidemark.planning.maintenance.fold import plan_fold
from tidemark.table.delta_table import TopicTable, committed_ledger, open_topic_table
from tidemark.topics import load_topics
from tidemark_spark.cli.common import check_cluster, executor_of, job_parser, run_job, show
from tidemark_spark.cluster.target import add_options
from tidemark_spark.model import Executor
from tidemark_spark.openlineage.recorder import Recorder
from tidemark_spark.run.driver import run
from tidemark_spark.run.fold import fold

FILES: Final = 2
"""Least number of small files of a partition to merge: two, so that no mergeable pair of an hour's landings stays."""


def main(arguments: Sequence[str] | None = None, executor: Executor | None = None) -> int:
    """Run the job, on Spark unless ``executor`` does it; returns the exit code."""
    options = _parser().parse_args(arguments)
    return run_job("compact_live", options, lambda lineage: _compact_all(options, executor, lineage))


def _compact_all(options: argparse.Namespace, executor: Executor | None, lineage: Recorder) -> int:
    deployment = load_topics(options.topics)
    check_cluster(deployment, options, "compact_live.py")
    executor = executor_of(options, executor, f"compact {options.cluster}")
    failed = False
    for topic in deployment.live_topics(options.cluster):
        try:
            _compact(open_topic_table(deployment, topic), executor, lineage)
        except SparkUnavailable:
            raise
        except TidemarkError as error:  # of this table only: continue with the others
            sys.stderr.write(f"{topic.topic}: {type(error).__name__}: {error}\n")
            failed = True
    return 1 if failed else 0


def _compact(table: TopicTable, executor: Executor, lineage: Recorder) -> None:
    while _merged(table, executor, lineage):
        pass
    fold(table, plan_fold(table, committed_ledger(table)))


def _merged(table: TopicTable, executor: Executor, lineage: Recorder) -> bool:
    """Merge the files of one run; True if there may be more."""
    plan = plan_compaction(table, files=FILES)
    if plan.empty:
        return False
    write_plan(table, plan)
    result = run(table, plan, executor)
    lineage.note(lambda: of_run(table, plan, result))
    show(result.to_bytes().decode())
    return result.status == "landed"


def _parser() -> argparse.ArgumentParser:
    parser = job_parser(
        "compact_live.py",
        "Merge small files of the tables of a cluster whose topics have a freshness, one after the other.",
        "--cluster prod",
    )
    add_options(parser)
    return parser
