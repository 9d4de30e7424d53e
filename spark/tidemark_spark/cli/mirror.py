"""The command line of the mirrors in catalogs. Spark is not started: nothing is converted."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from tidemark.topics import load_topics
from tidemark_spark.cli.common import add_some_topics, check_cluster, exit_code, job_parser, show
from tidemark_spark.mirror.cluster import mirror_cluster


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job; returns the exit code."""
    options = _parser().parse_args(arguments)
    return exit_code(lambda: _mirror(options))


def _mirror(options: argparse.Namespace) -> int:
    deployment = load_topics(options.topics)
    check_cluster(deployment, options, "mirror.py")
    topics = [deployment.topic(name, options.cluster).topic for name in options.topic or ()]
    status = mirror_cluster(deployment, options.cluster, topics)
    for table in status.tables:
        show(table.model_dump_json())
    return 1 if any(table.failing_since and (not topics or table.topic in topics) for table in status.tables) else 0


def _parser() -> argparse.ArgumentParser:
    parser = job_parser(
        "mirror.py",
        "List the tables of a cluster in the catalogs of the topics file, a snapshot for each commit.",
        "--cluster prod",
    )
    add_some_topics(parser)
    return parser
