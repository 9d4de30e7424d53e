"""The command line of live landings."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tidemark.errors import PreconditionFailed
from tidemark.formats.table.live_landing import read_landing, write_landing
from tidemark.openlineage.runs import of_run
from tidemark.store import open_store
from tidemark.topics import load_topics
from tidemark_spark.cli.common import check_cluster, executor_of, job_parser, run_job, show
from tidemark_spark.cluster.target import add_options
from tidemark_spark.live.landing import land
from tidemark_spark.model import Executor
from tidemark_spark.openlineage.recorder import Recorder


def main(arguments: Sequence[str] | None = None, executor: Executor | None = None) -> int:
    """Run the job, on Spark unless ``executor`` does it; returns the exit code."""
    options = _parser().parse_args(arguments)
    return run_job("land_live", options, lambda lineage: _land(options, executor, lineage))


def _land(options: argparse.Namespace, executor: Executor | None, lineage: Recorder) -> int:
    deployment = load_topics(options.topics)
    check_cluster(deployment, options, "land_live.py")
    store = open_store(deployment.lake_store, deployment.store)
    key = deployment.deployment_keys(options.cluster).landing
    landing, etag = read_landing(store, key)
    if landing is None or landing.ended_at is not None:
        show("there is no landing that has not ended")
        return 0
    executor = executor_of(options, executor, f"live {options.cluster}")
    done = land(deployment, landing, executor, lambda *ran: lineage.note(lambda: of_run(*ran)))
    for topic in done.topics:
        show(topic.model_copy(update={"partitions": ()}).model_dump_json(exclude_defaults=True))
    try:
        write_landing(store, key, done, etag)
    except PreconditionFailed:
        sys.stderr.write(f"{key}: another process carries out this landing or a later one, and reports it\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = job_parser(
        "land_live.py",
        "Land what is new of all topics of a cluster that are due, each by itself, in one query.",
        "--cluster prod",
    )
    add_options(parser)
    return parser
