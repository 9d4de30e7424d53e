"""The job that carries out the approved requests for erasure."""

from __future__ import annotations

from tidemark.erasure.secret import secrets
from tidemark.jobs.registry import EraseOptions
from tidemark.table.delta_table import TopicTable
from tidemark_spark.erasure_pass import Pass, erase
from tidemark_spark.jobs.running import RunningJob, begun, show


def work(options: EraseOptions, job: RunningJob) -> int:
    """Erase from each topic; returns 1 if a request was refused."""

    def erased(table: TopicTable) -> int:
        report = erase(Pass(begun(table), options.by, secrets, job.executor), dry_run=options.dry_run)
        show(report.to_bytes().decode() if options.json_lines else report.text())
        return int(any(request.status == "refused" for request in report.requests))

    return job.on_each_table(erased)
