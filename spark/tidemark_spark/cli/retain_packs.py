"""The command line of the retention of packs. Spark is not started: nothing is converted."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial

from tidemark.errors import ConfigError
from tidemark.openlineage.facets import LineagePart
from tidemark.openlineage.upkeep import of_pack_retention
from tidemark.topics import load_topics
from tidemark_spark.cli.common import job_parser, run_job, show
from tidemark_spark.openlineage.recorder import Recorder
from tidemark_spark.retention.forgetting import forget
from tidemark_spark.retention.packs import PacksReport, retain_packs


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job; returns the exit code."""
    options = _parser().parse_args(arguments)
    return run_job("retain_packs", options, partial(_forget if options.forget else _retain_all, options))


def _forget(options: argparse.Namespace, _lineage: Recorder) -> int:
    deployment = load_topics(options.topics)
    if options.apply and not (options.by and options.reason):
        raise ConfigError("retain_packs.py", [("--apply", "needs --by and --reason")])
    approval = (options.by, options.reason) if options.apply else ()
    clusters = [options.cluster] if options.cluster else deployment.clusters
    reports = [report for cluster in clusters for report in forget(deployment, cluster, options.forget, *approval)]
    if not reports:
        raise ConfigError("retain_packs.py", [("--forget", f"no pack has a range of the topic id {options.forget}")])
    for report in reports:
        show(report.to_bytes().decode() if options.json else report.text())
    return 0


def _retain_all(options: argparse.Namespace, lineage: Recorder) -> int:
    deployment = load_topics(options.topics)
    clusters = [options.cluster] if options.cluster else deployment.clusters
    for cluster in clusters:
        for report in retain_packs(deployment, cluster, dry_run=options.dry_run):
            lineage.note(partial(_lineage_of, report))
            show(report.to_bytes().decode() if options.json else report.text())
    return 0


def _lineage_of(report: PacksReport) -> LineagePart:
    removed = (0, 0) if report.dry_run else (report.removed, report.removed_bytes)
    return of_pack_retention(report.cluster, report.store, report.prefix, *removed)


def _parser() -> argparse.ArgumentParser:
    parser = job_parser(
        "retain_packs.py",
        "Remove the packs whose batches are all in seals, in a whole cluster, as a pack has batches of many topics.",
        "--dry-run",
    )
    parser.add_argument("--dry-run", action="store_true", help="only report what would be removed, and why others stay")
    parser.add_argument(
        "--forget",
        metavar="TOPIC_ID",
        help="instead, report the packed ranges of a topic id that nothing will ever seal, because its prefix or "
        "metadata was removed; with --apply, give them up",
    )
    parser.add_argument("--apply", action="store_true", help="with --forget: write the record that gives them up")
    parser.add_argument("--by", metavar="NAME", help="with --apply: the person who gives them up")
    parser.add_argument("--reason", metavar="TEXT", help="with --apply: the reason")
    parser.add_argument("--json", action="store_true", help="print the reports as JSON, one a line")
    return parser
