"""The command line of the retention of packs. Spark is not started: nothing is converted."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from tidemark.topics import load_topics
from tidemark_spark.cli.common import exit_code, job_parser, show
from tidemark_spark.retention.packs import retain_packs


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job; returns the exit code."""
    options = _parser().parse_args(arguments)
    return exit_code(lambda: _retain_all(options))


def _retain_all(options: argparse.Namespace) -> int:
    deployment = load_topics(options.topics)
    clusters = [options.cluster] if options.cluster else deployment.clusters
    for cluster in clusters:
        for report in retain_packs(deployment, cluster, dry_run=options.dry_run):
            show(report.to_bytes().decode() if options.json else report.text())
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = job_parser(
        "retain_packs.py",
        "Remove the packs whose batches seals hold. A pack has batches of many topics, so this goes by cluster.",
        "--dry-run",
    )
    parser.add_argument("--dry-run", action="store_true", help="only report what would be removed, and why others stay")
    parser.add_argument("--json", action="store_true", help="print the reports as JSON, one a line")
    return parser
