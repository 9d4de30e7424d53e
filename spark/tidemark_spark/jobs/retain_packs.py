"""The job of the retention of packs."""

from __future__ import annotations

from functools import partial

from tidemark.errors import ConfigError
from tidemark.jobs.registry import RetainPacksOptions
from tidemark.openlineage.facets import LineagePart
from tidemark.openlineage.runs import of_pack_retention
from tidemark_spark.jobs.running import RunningJob, show
from tidemark_spark.retention.forgetting import forget
from tidemark_spark.retention.packs import PacksReport, retain_packs


def work(options: RetainPacksOptions, job: RunningJob) -> int:
    """Remove or forget packs of the clusters, and show the reports; returns the exit code."""
    clusters = [options.cluster] if options.cluster else job.deployment.clusters
    if options.forget:
        approval = (options.by, options.reason) if options.apply else ()
        reports = [
            found for cluster in clusters for found in forget(job.deployment, cluster, options.forget, *approval)
        ]
        if not reports:
            rule = f"no pack has a range of the topic id {options.forget}"
            raise ConfigError(options.program(), [("--forget", rule)])
        for report in reports:
            show(report.to_bytes().decode() if options.json_lines else report.text())
        return 0
    for cluster in clusters:
        for removed in retain_packs(job.deployment, cluster, dry_run=options.dry_run):
            job.lineage.note(partial(_lineage_of, removed))
            show(removed.to_bytes().decode() if options.json_lines else removed.text())
    return 0


def _lineage_of(report: PacksReport) -> LineagePart:
    removed = (0, 0) if report.dry_run else (report.removed, report.removed_bytes)
    return of_pack_retention(report.cluster, report.store, report.prefix, *removed)
