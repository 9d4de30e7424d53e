"""The command line of the retention of packs. Spark is not started: nothing is converted."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial

from tidemark.lineage.collected import Found
from tidemark.lineage.upkeep import of_pack_retention
from tidemark.topics import load_topics
from tidemark_spark.cli.common import job_parser, run_job, show
from tidemark_spark.lineage.recorder import Recorder
from tidemark_spark.retention.packs import PacksReport, retain_packs


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job; returns the exit code."""
    options = _parser().parse_args(arguments)
    return run_job("retain_packs", options, lambda lineage: _retain_all(options, lineage))


def _retain_all(options: argparse.Namespace, lineage: Recorder) -> int:
    deployment = load_topics(options.topics)
    clusters = [options.cluster] if options.cluster else deployment.clusters
    for cluster in clusters:
        for report in retain_packs(deployment, cluster, dry_run=options.dry_run):
            lineage.note(partial(_told, report))
            show(report.to_bytes().decode() if options.json else report.text())
    return 0


def _told(report: PacksReport) -> Found:
    went = (0, 0) if report.dry_run else (report.removed, report.removed_bytes)
    return of_pack_retention(report.cluster, report.store, report.prefix, *went)


def _parser() -> argparse.ArgumentParser:
    parser = job_parser(
        "retain_packs.py",
        "Remove the packs whose batches seals hold. A pack has batches of many topics, so this goes by cluster.",
        "--dry-run",
    )
    parser.add_argument("--dry-run", action="store_true", help="only report what would be removed, and why others stay")
    parser.add_argument("--json", action="store_true", help="print the reports as JSON, one a line")
    return parser
